"""Why a job waits, in a sentence: each kind of wait, told by what would have to change first."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from planq.shared.subjects.jobs.waiting import JobWait, WaitKind, shown_seconds, wait_of

NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)
JOB_ID = UUID(int=1)
CHILD_ID = UUID(int=2)
IDLE = {"io": {"in_flight": 0, "capacity": 10}}


def job(status: str = "queued", **changed: Any) -> dict[str, Any]:
    """A row of the query `job_waits`."""
    nothing = ("error", "paused_at", "question", "stage_worker_name", "stage_error", "turn_before", "deferred_to")
    own = {"id": JOB_ID, "priority": "interactive", "status": status, "now": NOW, "run_at": NOW}
    own |= {"is_claimed": False, "pools": IDLE}
    return {**dict.fromkeys(nothing), **own, "open_steps": [], **changed}


def step(status: str = "ready", **changed: Any) -> dict[str, Any]:
    """An open step in such a row."""
    nothing = ("tool_away_since", "error", "open_children", "worker", "child", "started_at")
    own = {"index": 3, "tool_name": "pay", "status": status, "pool": "io", "run_at": NOW, "wake_at": NOW}
    return {**dict.fromkeys(nothing), **own, **changed}


def executing(*steps: dict[str, Any], **changed: Any) -> dict[str, Any]:
    return job("executing", open_steps=steps, **changed)


def ago(**lengths: float) -> datetime:
    return NOW - timedelta(**lengths)


def ahead(**lengths: float) -> datetime:
    return NOW + timedelta(**lengths)


NEVER = datetime(9999, 1, 1, tzinfo=UTC)
ASKED = {
    "job_id": JOB_ID,
    "step_index": 4,
    "kind": "approval",
    "tool_name": "pay_invoice",
    "created_at": ago(minutes=3),
    "asked_ids": ["ann"],
    "more": 0,
}
STARTED = {"started_at": ago(seconds=9)}


@pytest.mark.parametrize(
    ("row", "kind", "sentence"),
    [
        (job("completed"), "nothing", "It has completed."),
        (job("cancelled"), "nothing", "It has been cancelled."),
        (job("failed", error={"code": "a", "message": "no disk"}), "nothing", "It has failed: no disk"),
        (job(paused_at=ago(hours=3)), "pause", "It has been paused for 3 h; resume lets it go on."),
        (
            job("input_required", question=ASKED),
            "person",
            "$4 pay_invoice waits for an approval, asked 3 min ago of ann.",
        ),
        (
            job("executing", question={**ASKED, "job_id": CHILD_ID, "kind": "form", "asked_ids": [], "more": 2}),
            "person",
            f"$4 pay_invoice of the job {CHILD_ID} below it waits for an answer, asked 3 min ago. 2 more are asked.",
        ),
        (job(), "slot", "It waits to be planned; a worker of the pool io takes it next."),
        (
            job("responding", pools={"io": {"in_flight": 10, "capacity": 10}}),
            "slot",
            "It waits to be answered; all 10 places of the pool io are taken just now.",
        ),
        (
            job(pools={}),
            "worker",
            "It waits to be planned, but no worker of the pool io is alive for interactive jobs; "
            "`planq worker io` starts one.",
        ),
        (job("planning", is_claimed=True, stage_worker_name="w-1"), "work", "It is being planned on w-1."),
        (job(run_at=ahead(minutes=5)), "time", "Its time comes in 5 min."),
        (job(run_at=NEVER), "parent", "It waits until its parent begins another child job."),
        (
            job(run_at=NEVER, deferred_to="openai:gpt-5-mini"),
            "provider",
            "It waits for the provider's batch: openai:gpt-5-mini answers within 24 hours.",
        ),
        (
            job(run_at=NEVER, turn_before=CHILD_ID),
            "turn",
            f"It waits behind an earlier turn of its conversation, job {CHILD_ID}.",
        ),
        (
            job("planning", run_at=ahead(seconds=8), stage_error={"message": "overloaded"}),
            "retry",
            "It is planned again in 8 s, after: overloaded",
        ),
        (executing(), "work", "Its steps have ended; a worker goes on with it."),
        (executing(step("running", worker="w-2", **STARTED)), "work", "$3 pay has been running for 9 s on w-2."),
        (
            executing(step(pool="cpu"), step("running", **STARTED)),
            "worker",
            "$3 pay waits to begin, but no worker of the pool cpu is alive for interactive jobs; "
            "`planq worker cpu` starts one.",
        ),
        (
            executing(step(tool_away_since=ago(days=3))),
            "tool",
            "$3 pay has waited for 3 d for a live worker of the pool io that has its tool.",
        ),
        (
            executing(step("waiting", open_children=2, child={"id": str(CHILD_ID), "status": "planning"})),
            "children",
            f"$3 pay waits for 2 child jobs, first for {CHILD_ID}, which is planning.",
        ),
        (executing(step("waiting", wake_at=ahead(hours=2))), "time", "$3 pay waits for 2 h more."),
        (
            executing(step(run_at=ahead(seconds=30), error={"message": "503"})),
            "retry",
            "$3 pay is tried again in 30 s, after: 503",
        ),
        (executing(step(wake_at=None)), "slot", "$3 pay is held until another step of this job has ended."),
        (executing(step("pending"), step()), "slot", "$3 pay waits to begin; a worker of the pool io takes it next."),
    ],
)
def test_a_job_says_why_it_waits(row: dict[str, Any], kind: str, sentence: str) -> None:
    assert wait_of(row) == JobWait(WaitKind(kind), sentence)


def test_a_long_error_is_cut() -> None:
    assert len(wait_of(job("failed", error={"code": "a", "message": "x" * 10_000})).sentence) < 300


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-1, "0 s"), (0.4, "0 s"), (59, "59 s"), (60, "1 min"), (7_199, "119 min"), (7_200, "2 h"), (172_800, "2 d")],
)
def test_a_length_of_time_is_told_in_its_largest_unit(seconds: float, shown: str) -> None:
    assert shown_seconds(seconds) == shown
