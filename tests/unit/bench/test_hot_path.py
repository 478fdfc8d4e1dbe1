"""B1 to B4 without servers: whose turn it is, what becomes of the seconds, and what a job moves."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from tests.bench import hot_path, submitting
from tests.bench.context import Context
from tests.bench.figures import Figure
from tests.bench.footprint import TransitionResult, figures
from tests.bench.peers import orders


class Recorded:
    """A subject that takes a given time for everything, and writes down when it was asked."""

    def __init__(self, name: str, seconds: float, asked: list[str]) -> None:
        self._name, self._seconds, self._asked = name, seconds, asked

    def run(self, workload: str, *, size: int, times: int) -> list[float]:
        self._asked.append(f"{self._name} {workload}")
        return [self._seconds] * times


def measured(workload: str, tmp_path: Path) -> tuple[Figure, list[str]]:
    asked: list[str] = []
    everybody = {name: Recorded(name, s, asked) for name, s in (("planq", 2.0), ("Celery", 4.0), ("DBOS", 8.0))}
    limits = {hot_path.COMMIT: Recorded("commit", 0.5, []), hot_path.MESSAGE: Recorded("message", 1.0, [])}
    context = Context(tmp_path, quick=True, names=[workload])
    (chosen,) = hot_path.workloads(context)
    return hot_path.compared(context, chosen, everybody, limits), asked


def test_everybody_takes_turns_and_another_begins_each_time(tmp_path: Path) -> None:
    _, asked = measured("B1", tmp_path)

    assert [line.removesuffix(" B1") for line in asked] == [
        *("planq", "Celery", "DBOS"),
        *("Celery", "DBOS", "planq"),
        *("DBOS", "planq", "Celery"),
        *("planq", "Celery", "DBOS"),
    ]


@pytest.mark.parametrize(
    ("workload", "value", "celery", "limits", "good"),
    [
        ("B1", 2000.0, 4000.0, {"one commit": 500.0, "a Celery message": 1000.0}, True),
        ("B2", 75.0, 37.5, {"one commit": 2.0}, True),
        ("B3", 2000.0, 4000.0, {"ideal": 50.0}, False),
        ("B4", 20.0, 40.0, {"one commit": 500.0}, True),
    ],
)
def test_seconds_become_the_figure_of_each_workload(
    workload: str, value: float, celery: float, limits: dict[str, float], good: bool, tmp_path: Path
) -> None:
    figure, _ = measured(workload, tmp_path)

    assert figure.value == value
    assert figure.peers["Celery"] == celery
    assert figure.limits == limits
    assert figure.samples == [value] * 3, "the first turn does not count"
    assert figure.is_good is good


def test_a_peer_answers_each_order_with_its_seconds_or_its_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[int] = []

    def fail(_: int) -> None:
        orders.expect(1, 2)

    lines = [{"workload": "good", "size": 7, "times": 2}, {"workload": "bad", "size": 1, "times": 1}]
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{json.dumps(line)}\n" for line in lines)))

    orders.serve({"good": done.append, "bad": fail})

    ready, good, bad = map(json.loads, capsys.readouterr().out.splitlines())
    assert ready == {"ready": ["bad", "good"]}
    assert done == [7, 7]
    assert len(good["seconds"]) == 2
    assert bad == {"error": "RuntimeError: expected 2, found 1"}


@pytest.mark.parametrize("steps", [[], ["succeeded"], ["succeeded", "failed"], ["succeeded"] * 3])
def test_a_job_that_did_not_do_its_steps_is_no_measurement(steps: list[str]) -> None:
    job = {"status": "completed", "steps": [{"status": status} for status in steps]}

    with pytest.raises(RuntimeError, match="expected a completed job of 2 steps"):
        submitting.expect_completed(job, 2)


def test_what_an_idle_planq_moves_is_no_cost_of_a_job() -> None:
    idle = TransitionResult(seconds=10.0, commits=20.0, messages=1.0, log_bytes=1000.0)
    busy = TransitionResult(seconds=5.0, commits=80.0, messages=10.5, log_bytes=10_500.0)

    job = busy.per_job(idle, 10)

    assert job == TransitionResult(0.5, 7.0, 1.0, 1000.0)
    assert [figure.is_good for figure in figures(job, 5000.0)] == [True] * 4
    assert not figures(TransitionResult(0.5, 7.2, 1.0, 0.0), 0.0)[0].is_good
