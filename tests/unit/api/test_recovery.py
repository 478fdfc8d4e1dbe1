"""What a resumed job would do again, decided on rows."""

from __future__ import annotations

from typing import Any

import pytest

from planq.shared.platform.errors import Conflict, OutcomeUnknown
from planq.shared.subjects.jobs.again import seconds_again, steps_with_unknown_outcome

FAILED = {"code": "timeout", "message": "no"}


def job(**columns: Any) -> dict[str, Any]:
    row = {
        "id": "1",
        "status": "failed",
        "parent_job_id": None,
        "failed_steps": 1,
        "round": 1,
        "on_failure": "answer",
    }
    return {
        **row,
        "round": 1,
        "strategy": "plan",
        "limits": {"plan_timeout_seconds": 30, "loop_timeout_seconds": 90},
        **columns,
    }


def step(number: int, status: str, recovery: str = "fail") -> dict[str, Any]:
    return {
        "index": 0,
        "round": number,
        "tool_name": "pay",
        "effect": "unsafe",
        "recovery": recovery,
        "status": status,
        "attempt": 1,
        "releases": 0,
        "in_doubt": False,
        "is_known": False,
        "error": FAILED if status == "failed" else None,
    }


def test_only_what_would_run_again_is_in_doubt() -> None:
    with pytest.raises(OutcomeUnknown):
        steps_with_unknown_outcome(job(), [step(1, "failed")], repeat_unsafe=False)
    assert steps_with_unknown_outcome(job(), [step(1, "failed", "find_out")], repeat_unsafe=False) == [0]
    # An earlier round is over.
    assert steps_with_unknown_outcome(job(), [step(0, "failed")], repeat_unsafe=False) == []


def test_a_recorded_failure_is_not_repeated_and_so_in_no_doubt() -> None:
    assert steps_with_unknown_outcome(job(on_failure="record"), [step(1, "failed")], repeat_unsafe=False) == []
    with pytest.raises(OutcomeUnknown):
        steps_with_unknown_outcome(job(on_failure="record"), [step(1, "cancelled")], repeat_unsafe=False)


def test_a_job_whose_failures_its_answer_knows_is_not_resumed_and_names_them() -> None:
    done = job(status="completed", failed_steps=0, on_failure="record")

    with pytest.raises(Conflict, match=r"its answer knows that \$0 \('pay'\) failed.* A fork"):
        steps_with_unknown_outcome(done, [step(0, "failed")], repeat_unsafe=False)
    with pytest.raises(Conflict, match="none of its steps has failed"):
        steps_with_unknown_outcome(done, [step(0, "succeeded")], repeat_unsafe=False)


def test_a_call_that_the_guard_blocked_is_in_no_doubt() -> None:
    blocked = {
        **step(1, "failed"),
        "attempt": 0,
        "is_known": True,
        "error": {"code": "duplicate_call_blocked", "message": "no"},
    }

    assert steps_with_unknown_outcome(job(), [blocked], repeat_unsafe=False) == []


def test_the_rounds_of_a_loop_have_the_time_of_a_loop_again() -> None:
    assert seconds_again(job(strategy="loop")) == 90
    assert [seconds_again(job(strategy=one)) for one in ("plan", "react")] == [30, 30]
