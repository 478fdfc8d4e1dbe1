"""Progress: each change is told once, in order, and text from elsewhere is printed as it is."""

from __future__ import annotations

import io
from datetime import datetime, timedelta
from typing import Any, cast

import pytest
from rich.console import Console

from planq.api.cli.client import CommandClient
from planq.api.jobs.commands.progress import follow_job, print_outcome, tree_totals
from planq.shared.client.wire import Json


class Replay:
    """Stands in for the client's one method that `follow` uses: answers with the given states of a job in turn."""

    def __init__(self, *states: Json) -> None:
        self._states = list(states)

    def job(self, _job_id: str) -> Json:
        return self._states.pop(0) if len(self._states) > 1 else self._states[0]


ZERO = "2026-01-01T00:00:00+00:00"


def at(seconds: float) -> str:
    return (datetime.fromisoformat(ZERO) + timedelta(seconds=seconds)).isoformat()


def job(status: str, *steps: Json, plan: Json | None = None) -> Json:
    first = {
        "round": 0,
        "source": "model",
        "plan": plan,
        "plan_errors": None,
        "steps": [one["index"] for one in steps],
    }
    return {
        "status": status,
        "created_at": ZERO,
        "plan": plan,
        "rounds": [] if plan is None else [first],
        "steps": list(steps),
    }


def step(index: int, status: str, **fields: Any) -> Json:
    return {
        "index": index,
        "round": 0,
        "tool_name": "search",
        "status": status,
        "attempt": 1,
        "arguments": {"q": "got"},
        **fields,
    }


def told(*states: Json, timeout: float | None = None) -> list[str]:
    output = io.StringIO()
    console = Console(file=output, markup=False, emoji=False, highlight=False, width=200)
    ticks = iter(range(1000))
    follow_job(
        cast(CommandClient, Replay(*states)),
        "1",
        console,
        timeout=timeout,
        clock=lambda: float(next(ticks)),
        pause=lambda _: None,
    )
    return [line.strip() for line in output.getvalue().splitlines()]


def test_plan_steps_and_states_are_told_once_and_in_order() -> None:
    plan = {"calls": [{"tool_name": "search", "arguments": {"q": "[b]x"}}, {"arguments": {"q": "$0.output.text"}}]}
    first = step(0, "succeeded", started_at=at(0.1), finished_at=at(0.35))
    running = job(
        "executing", step(0, "running", started_at=at(0.1)), step(1, "pending", attempt=0, depends_on=[0]), plan=plan
    )

    lines = told(
        job("planning"),
        running,
        running,
        job("executing", first, step(1, "running", started_at=at(0.4)), plan=plan),
        job(
            "failed",
            first,
            step(1, "failed", started_at=at(0.4), finished_at=at(0.5), error={"message": "no"}),
            plan=plan,
        ),
    )

    assert lines == [
        "job planning",
        "plan",
        '$0 search(q="[b]x")',
        '$1 search(q="$0.output.text")  (after $0)',
        "0.10 s  step $0 search started",
        "job executing",
        "0.35 s  step $0 search succeeded after 250 ms",
        "0.40 s  step $1 search started",
        '0.50 s  step $1 search failed after 100 ms: "no"',
        "job failed",
    ]


def test_the_plan_of_every_round_is_told_before_its_steps() -> None:
    rounds = [
        {"round": 0, "source": "model", "plan": {"calls": [{"arguments": {"q": "a"}}]}, "steps": [0]},
        {"round": 1, "source": "model", "plan": {"calls": [{"arguments": {"q": "$0.output.text"}}]}, "steps": [1]},
        {"round": 2, "source": "chained", "plan": None, "steps": [2]},
    ]
    steps = [
        step(0, "succeeded", started_at=at(0.1), finished_at=at(0.2)),
        step(1, "failed", round=1, started_at=at(0.3), finished_at=at(0.4)),
        step(2, "pending", round=2, attempt=0),
    ]
    states = [{**job("executing", *steps[:many]), "rounds": rounds[:many]} for many in (1, 2, 3)]

    assert told(*states, timeout=2.5) == [
        "plan",
        '$0 search(q="a")',
        "0.10 s  step $0 search started",
        "0.20 s  step $0 search succeeded after 100 ms",
        "job executing",
        "round 1: plan",
        '$1 search(q="$0.output.text")',
        "0.30 s  step $1 search started",
        "0.40 s  step $1 search failed after 100 ms",
        "round 2: the chained tool",
        '$2 search(q="got")',
    ]


def test_a_step_that_hands_over_goes_on_and_does_not_start_again() -> None:
    running = step(0, "waiting", kind="agent", started_at=at(0.1))
    ended = step(0, "succeeded", kind="agent", attempt=2, started_at=at(0.3), finished_at=at(0.4))

    assert told(job("executing", running), job("completed", ended)) == [
        "0.10 s  step $0 search started",
        "job executing",
        "0.30 s  step $0 search goes on",
        "0.40 s  step $0 search succeeded after 100 ms",
        "job completed",
    ]
    assert told(job("completed", ended))[0] == "0.30 s  step $0 search started"


def test_steps_that_ran_side_by_side_between_two_looks_are_told_as_they_ran() -> None:
    lines = told(
        job(
            "completed",
            step(0, "succeeded", started_at=at(0.2), finished_at=at(0.5)),
            step(1, "succeeded", started_at=at(0.1), finished_at=at(0.4)),
        )
    )

    assert [line.split("step ")[1][:20] for line in lines[:4]] == [
        "$1 search started",
        "$0 search started",
        "$1 search succeeded ",
        "$0 search succeeded ",
    ]


def test_a_retry_is_told_with_its_attempt_and_a_skipped_step_without_a_start() -> None:
    lines = told(
        job("executing", step(0, "running", started_at=at(1))),
        job("executing", step(0, "running", started_at=at(2), attempt=2)),
        job("completed", step(0, "skipped", attempt=2, started_at=None, finished_at=at(3))),
    )

    assert "2.00 s  step $0 search started again (attempt 2)" in lines
    assert "3.00 s  step $0 search skipped" in lines


def test_a_retry_is_not_told_with_the_time_of_the_first_start_as_its_own() -> None:
    lines = told(
        job("executing", step(0, "running", started_at=at(1)), step(1, "running", started_at=at(1.5), attempt=2)),
        job("executing", step(0, "running", started_at=at(1), attempt=2)),
        job("completed", step(0, "succeeded", started_at=at(1), finished_at=at(3), attempt=2)),
    )

    assert "1.50 s  step $1 search started, and is in attempt 2" in lines
    assert "1.00 s  step $0 search started, and is in attempt 2" in lines
    assert not any("again" in line for line in lines)


def test_a_wait_for_a_model_is_told_with_its_cause_and_its_end() -> None:
    retry = {"stage": "planning", "attempts": 2, "next_attempt_at": at(9), "error": {"message": "503\nbusy"}}
    lines = told({**job("planning"), "retry": retry}, {**job("planning"), "retry": retry}, job("completed"))

    waits = f"planning waits for its model, which failed in attempt 2: 503 busy; it is asked again at {at(9)}"
    assert lines.count(waits) == 1


def test_following_ends_at_its_timeout_with_the_job_unfinished() -> None:
    assert told(job("queued"), timeout=3) == ["job queued"]


def test_one_model_call_is_told_as_one() -> None:
    output = io.StringIO()

    print_outcome({"model_calls": 1}, Console(file=output, width=80))

    assert output.getvalue().strip() == "1 model call, 0 + 0 tokens"


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


@pytest.mark.parametrize(
    ("tokens", "cost", "shown"),
    [(3, None, "3 + 4 tokens, – USD"), (3, 0.0, "3 + 4 tokens"), (0, None, "0 + 0 tokens")],
)
def test_an_unknown_price_is_a_dash(tokens: int, cost: float | None, shown: str) -> None:
    output = io.StringIO()
    usage = {"input_tokens": tokens, "output_tokens": tokens and tokens + 1, "cost_usd": cost}
    job = {"model_calls": 2, "usage": usage, "children": [{"job": {"model_calls": 0, "usage": {"cost_usd": None}}}]}

    print_outcome(job, Console(file=output, width=80))

    assert output.getvalue().endswith(f"2 model calls, {shown}\n")
    assert tree_totals(job).endswith(f"2 model calls, {shown}")


def test_what_child_jobs_used_is_shown_and_counted_once() -> None:
    output = io.StringIO()
    own = {"input_tokens": 3, "output_tokens": 4, "cost_usd": 0.5}
    below = {"input_tokens": 10, "output_tokens": 1, "cost_usd": 0.25}
    child = {"model_calls": 1, "usage": below, "tree_usage": {**below, "jobs": 1, "model_calls": 1}}
    tree = {"jobs": 2, "model_calls": 3, "input_tokens": 13, "output_tokens": 5, "cost_usd": 0.75}
    job = {"model_calls": 2, "usage": own, "tree_usage": tree, "children": [{"job": child}]}

    print_outcome(job, Console(file=output, width=80))
    print_outcome(child, Console(file=output, width=80))

    assert output.getvalue().splitlines() == [
        "2 model calls, 3 + 4 tokens, 0.5000 USD",
        "with 1 child job: 3 model calls, 13 + 5 tokens, 0.7500 USD",
        "1 model call, 10 + 1 tokens, 0.2500 USD",
    ]
    assert tree_totals(job) == "2 jobs, 3 model calls, 13 + 5 tokens, 0.7500 USD"


def test_on_a_terminal_an_answer_is_wrapped_and_never_cut() -> None:
    output = io.StringIO()
    console = Console(file=output, markup=False, soft_wrap=True, width=40, force_terminal=True, color_system=None)

    print_outcome({"answer": "\x1b[2J" + " ".join(f"word{number}" for number in range(40))}, console)

    text = output.getvalue()
    assert all(f"word{number}" in text for number in range(40))
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 40
