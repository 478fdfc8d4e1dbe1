"""Why a job waits, in one sentence, by rules: on the page, in `GET /jobs/{id}/why` and `planq status`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from planq.shared.kernel.states import RUNNING_STEP, WAITING_STEP, JobStatus

_NEVER_YEAR = 9999
"""A later time means: held until something else has ended."""

_MOST_NAMED = 3
_MOST_CHARS = 200


class WaitKind(StrEnum):
    """What a job waits for."""

    NOTHING = "nothing"  # it has ended
    PAUSE = "pause"
    PERSON = "person"
    TURN = "turn"  # an earlier turn of its conversation
    PARENT = "parent"  # its parent runs only so many child jobs at once
    PROVIDER = "provider"  # its call is in a provider's batch
    TIME = "time"
    RETRY = "retry"
    WORKER = "worker"  # no live worker of a pool
    TOOL = "tool"  # no live worker with a tool
    SLOT = "slot"  # the workers that could are busy, or are just about to take it
    CHILDREN = "children"
    WORK = "work"  # it runs


class JobWait(NamedTuple):
    """What a job waits for, and the sentence."""

    kind: WaitKind
    sentence: str


def wait_of(job: Mapping[str, Any]) -> JobWait:
    """Return why a job (a row of the query `job_waits`) waits; what a person can change comes first."""
    status = JobStatus(job["status"])
    if status.is_terminal:
        return JobWait(WaitKind.NOTHING, _ended(status, job["error"]))
    if job["paused_at"] is not None:
        return JobWait(
            WaitKind.PAUSE, f"It has been paused for {_since(job, job['paused_at'])}; resume lets it go on."
        )
    if job["question"] is not None:
        return JobWait(WaitKind.PERSON, _question(job, job["question"]))
    if status.stored is JobStatus.EXECUTING:
        return _of_steps(job)
    return _of_stage(job, status)


def _ended(status: JobStatus, error: Mapping[str, Any] | None) -> str:
    if status is JobStatus.FAILED and error is not None:
        return f"It has failed: {_short(str(error.get('message') or error.get('code')))}"
    return "It has completed." if status is JobStatus.COMPLETED else f"It has {_PAST[status]}."


_PAST = {JobStatus.FAILED: "failed", JobStatus.CANCELLED: "been cancelled"}


def _question(job: Mapping[str, Any], question: Mapping[str, Any]) -> str:
    who = f" of {', '.join(question['asked_ids'][:_MOST_NAMED])}" if question["asked_ids"] else ""
    where = f"${question['step_index']} {question['tool_name']}"
    if question["job_id"] != job["id"]:
        where = f"{where} of the job {question['job_id']} below it"
    since = _since(job, question["created_at"])
    verb = "is" if question["more"] == 1 else "are"
    more = "" if question["more"] == 0 else f" {question['more']} more {verb} asked."
    return f"{where} waits for {_ASKED[question['kind']]}, asked {since} ago{who}.{more}"


_ASKED = {
    "form": "an answer",
    "approval": "an approval",
    "outcome": "somebody to say whether a call that was cut off took effect",
    "url": "a person, who has to go to an address",
}


def _of_stage(job: Mapping[str, Any], status: JobStatus) -> JobWait:
    verb = "answered" if status is JobStatus.RESPONDING else "planned"
    if job["is_claimed"]:
        return JobWait(WaitKind.WORK, f"It is being {verb}{_by(job['stage_worker_name'])}.")
    if job["run_at"].year >= _NEVER_YEAR:
        if job["deferred_to"] is not None:
            return JobWait(
                WaitKind.PROVIDER, f"It waits for the provider's batch: {job['deferred_to']} answers within 24 hours."
            )
        if job["turn_before"] is not None:
            return JobWait(
                WaitKind.TURN, f"It waits behind an earlier turn of its conversation, job {job['turn_before']}."
            )
        return JobWait(WaitKind.PARENT, "It waits until its parent begins another child job.")
    if job["run_at"] > job["now"]:
        if job["stage_error"] is not None:
            message = _short(str(job["stage_error"].get("message")))
            return JobWait(WaitKind.RETRY, f"It is {verb} again in {_until(job, job['run_at'])}, after: {message}")
        return JobWait(WaitKind.TIME, f"Its time comes in {_until(job, job['run_at'])}.")
    return _of_pool(job, f"to be {verb}", "It", "io")


def _of_pool(job: Mapping[str, Any], what: str, who: str, pool: str) -> JobWait:
    load = job["pools"].get(pool)
    if load is None:
        return JobWait(
            WaitKind.WORKER,
            f"{who} waits {what}, but no worker of the pool {pool} is alive for {job['priority']} jobs; "
            f"`planq worker {pool}` starts one.",
        )
    if load["in_flight"] >= load["capacity"]:
        return JobWait(
            WaitKind.SLOT, f"{who} waits {what}; all {load['capacity']} places of the pool {pool} are taken just now."
        )
    return JobWait(WaitKind.SLOT, f"{who} waits {what}; a worker of the pool {pool} takes it next.")


def _of_steps(job: Mapping[str, Any]) -> JobWait:
    """Return the rarest of the steps' reasons."""
    steps: Sequence[Mapping[str, Any]] = job["open_steps"]
    found = [_of_step(job, step) for step in steps]
    if not found:
        return JobWait(WaitKind.WORK, "Its steps have ended; a worker goes on with it.")
    return min(found, key=lambda wait: _RANK.index(wait.kind))


_RANK = (
    *(WaitKind.WORKER, WaitKind.TOOL, WaitKind.WORK, WaitKind.CHILDREN, WaitKind.RETRY),
    *(WaitKind.TIME, WaitKind.PERSON, WaitKind.SLOT),
)


def _of_step(job: Mapping[str, Any], step: Mapping[str, Any]) -> JobWait:
    name = f"${step['index']} {step['tool_name']}"
    run_at = step["run_at"]
    if step["status"] in RUNNING_STEP:
        since = _since(job, step["started_at"])
        return JobWait(WaitKind.WORK, f"{name} has been running for {since}{_by(step['worker'])}.")
    if step["open_children"]:
        count = step["open_children"]
        child = (
            "" if step["child"] is None else f", first for {step['child']['id']}, which is {step['child']['status']}"
        )
        return JobWait(WaitKind.CHILDREN, f"{name} waits for {count} child {'job' if count == 1 else 'jobs'}{child}.")
    if step["tool_away_since"] is not None:
        since = _since(job, step["tool_away_since"])
        return JobWait(
            WaitKind.TOOL,
            f"{name} has waited for {since} for a live worker of the pool {step['pool']} that has its tool.",
        )
    if step["status"] in WAITING_STEP:
        at = step["wake_at"]
        when = "" if at is None or at.year >= _NEVER_YEAR else f" for {_until(job, at)} more"
        return JobWait(WaitKind.TIME, f"{name} waits{when}.")
    if run_at > job["now"]:
        cause = "" if step["error"] is None else f", after: {_short(str(step['error'].get('message')))}"
        return JobWait(WaitKind.RETRY, f"{name} is tried again in {_until(job, run_at)}{cause}")
    if step["wake_at"] is None:
        return JobWait(WaitKind.SLOT, f"{name} is held until another step of this job has ended.")
    return _of_pool(job, "to begin", name, step["pool"])


def _by(worker: str | None) -> str:
    return "" if worker is None else f" on {worker}"


def _since(job: Mapping[str, Any], moment: datetime) -> str:
    return shown_seconds((job["now"] - moment).total_seconds())


def _until(job: Mapping[str, Any], moment: datetime) -> str:
    return shown_seconds((moment - job["now"]).total_seconds())


def _short(text: str) -> str:
    return text if len(text) <= _MOST_CHARS else f"{text[:_MOST_CHARS]}…"


def shown_seconds(seconds: float) -> str:
    """Return a duration in its largest unit."""
    whole = max(0, round(seconds))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if whole >= 2 * size or (unit == "min" and whole >= size):
            return f"{whole // size} {unit}"
    return f"{whole} s"
