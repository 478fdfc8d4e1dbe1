"""Progress: each change is told once, in order, and text from elsewhere is printed as it is."""

from __future__ import annotations

import io
from typing import Any, cast

from rich.console import Console

from shared.cli.client import Client, Json
from shared.cli.progress import follow, print_outcome


class Replay:
    """Stands in for the client's one method that `follow` uses: answers with the given states of a job in turn."""

    def __init__(self, *states: Json) -> None:
        self._states = list(states)

    def job(self, _job_id: str) -> Json:
        return self._states.pop(0) if len(self._states) > 1 else self._states[0]


def step(index: int, status: str, **fields: Any) -> Json:
    return {
        "index": index,
        "tool_name": "search",
        "status": status,
        "attempt": 1,
        "arguments": {"q": "[b]x"},
        **fields,
    }


def told(*states: Json, timeout: float | None = None) -> str:
    output = io.StringIO()
    console = Console(file=output, markup=False, emoji=False, highlight=False, width=200)
    ticks = iter(range(1000))
    follow(
        cast(Client, Replay(*states)),
        "1",
        console,
        timeout=timeout,
        clock=lambda: float(next(ticks)),
        pause=lambda _: None,
    )
    return output.getvalue()


def test_plan_steps_and_states_are_told_once_and_in_order() -> None:
    plan: Json = {"calls": []}
    done = {"started_at": "2026-01-01T00:00:00+00:00", "finished_at": "2026-01-01T00:00:00.250000+00:00"}

    text = told(
        {"status": "planning", "plan": None, "steps": []},
        {"status": "executing", "plan": plan, "steps": [step(0, "running"), step(1, "pending", depends_on=[0])]},
        {"status": "executing", "plan": plan, "steps": [step(0, "running"), step(1, "pending", depends_on=[0])]},
        {"status": "executing", "plan": plan, "steps": [step(0, "succeeded", **done), step(1, "running")]},
        {
            "status": "failed",
            "plan": plan,
            "steps": [step(0, "succeeded", **done), step(1, "failed", error={"message": "no"})],
        },
    )

    lines = [line.split("s  ", 1)[-1].strip() for line in text.splitlines()]
    assert lines == [
        "job planning",
        "plan",
        '$0 search(q="[b]x")',
        '$1 search(q="[b]x")  (after $0)',
        "step $0 search running",
        "job executing",
        "step $0 search succeeded in 250 ms",
        "step $1 search running",
        'step $1 search failed: "no"',
        "job failed",
    ]


def test_a_retry_is_told_with_its_attempt() -> None:
    text = told(
        {"status": "executing", "steps": [step(0, "running")]},
        {"status": "executing", "steps": [step(0, "running") | {"attempt": 2}]},
        {"status": "completed", "steps": []},
    )

    assert "step $0 search running (attempt 2)" in text


def test_following_ends_at_its_timeout_with_the_job_unfinished() -> None:
    assert "job queued" in told({"status": "queued", "steps": []}, timeout=3)


def test_the_outcome_shows_answer_error_and_cost_without_reading_markup() -> None:
    output = io.StringIO()
    console = Console(file=output, markup=False, emoji=False, highlight=False, width=80)

    print_outcome(
        {
            "answer": "[red]plain[/red] :smile: \x1b[31m",
            "error": {"code": "timeout", "message": "too late"},
            "model_calls": 2,
            "usage": {"input_tokens": 3, "output_tokens": 4, "cost_usd": 0.5},
        },
        console,
    )

    text = output.getvalue()
    assert "[red]plain[/red] :smile:" in text
    assert "\x1b" not in text
    assert "timeout: too late" in text
    assert "2 model calls, 3 + 4 tokens, 0.5000 USD" in text
