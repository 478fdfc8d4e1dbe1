"""A `cpu` child opens its runtime at its first task."""

from __future__ import annotations

import pytest

from planq.shared.platform.errors import DatabaseUnavailable


class Runtime:
    """A runtime whose database is away at first."""

    def __init__(self) -> None:
        self.opened = 0

    async def open(self) -> None:
        self.opened += 1
        if self.opened == 1:
            raise DatabaseUnavailable("the database does not answer")


def test_a_child_whose_database_was_away_at_its_first_task_opens_at_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER_URL", "redis://localhost:1/0")
    from planq.worker.celery.app import WakeTask, app

    runtime = Runtime()
    monkeypatch.setattr(app, "planq_runtime", runtime)
    monkeypatch.setattr(app, "planq_runner", None)

    class Answer(WakeTask):
        name = "test.answer"

        async def run(self) -> int:
            return 42

    task = Answer()
    with pytest.raises(DatabaseUnavailable):
        task()
    assert task() == 42
    assert task() == 42
    assert runtime.opened == 2
    app.planq_runner.close()
