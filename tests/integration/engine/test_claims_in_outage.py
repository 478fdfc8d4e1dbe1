"""A wake-up that comes while the database is away is kept, not dropped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from planq.shared.platform.errors import DatabaseUnavailable
from planq.worker.tools.builtin.pure import calculate
from tests.support.harness import Harness, ScriptedModel, make_tool

Play = Callable[..., Any]

TOOLS = [make_tool(calculate)]
PLAN = {"calls": [{"tool_name": "calculate", "arguments": {"expression": "6*7"}}]}


@pytest.mark.parametrize("asked", ["claim_stage", "claim_step"])
def test_a_claim_waits_for_a_database_that_is_away(play: Play, monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    async def story(harness: Harness) -> None:
        harness.dispatcher.wind_down()  # nothing is taken over, each step is claimed
        ask = getattr(harness.store, asked)
        away = 2

        async def answer(*arguments: Any) -> Any:
            nonlocal away
            if away > 0:
                away -= 1
                raise DatabaseUnavailable("the database does not answer")
            return await ask(*arguments)

        monkeypatch.setattr(harness.store, asked, answer)

        job, steps = await harness.run("", plan=PLAN)

        assert away == 0
        assert job["status"] == "completed"
        assert [(step["output"], step["attempt"]) for step in steps] == [({"result": 42}, 1)]

    play(story, ScriptedModel(), TOOLS)
