"""What an ended job may retry, and what it would repeat blindly."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from planq.shared.agentic.rounds.ending import time_for_steps
from planq.shared.kernel.limits import Limits
from planq.shared.kernel.retry import may_have_taken_effect
from planq.shared.kernel.states import RUNNING_STEP, Effect, JobStatus, OnFailure, Recovery, StepStatus, Strategy
from planq.shared.platform.errors import Conflict, OutcomeUnknown


def steps_with_unknown_outcome(
    job: Mapping[str, Any], steps: Sequence[Mapping[str, Any]], *, repeat_unsafe: bool
) -> Collection[int]:
    """Return the steps whose tool must find out its effect before the next call.

    Raises `Conflict` without anything to retry, and, unless `repeat_unsafe`, `OutcomeUnknown` naming the steps that
    would be repeated blindly.
    """
    _require_failures(job, steps)
    doubtful = [
        step
        for step in steps
        if _is_tried_again(job, step) and rule_says(may_have_taken_effect, step, Effect(step["effect"]))
    ]
    blind = [step for step in doubtful if step["recovery"] != Recovery.FIND_OUT]
    if blind and not repeat_unsafe:
        raise OutcomeUnknown(
            f"job {job['id']} stays as it is: {named_steps(blind)} may have taken effect, and its tool is unsafe to "
            'repeat; find out, then send {"repeat_unsafe": true} to repeat it all the same, or fork the job with a '
            "plan that goes without",
            errors=[doubt_of(step) for step in blind],
        )
    return [step["index"] for step in doubtful if step["recovery"] == Recovery.FIND_OUT]


def _is_tried_again(job: Mapping[str, Any], step: Mapping[str, Any]) -> bool:
    """True for the steps that `planq_reopen_job` opens; the planner has seen recorded failures."""
    if step["round"] != job["round"]:
        return False
    status = StepStatus(step["status"])
    if job["on_failure"] == OnFailure.RECORD:
        return status is StepStatus.CANCELLED
    return not step["is_known"]


def seconds_again(job: Mapping[str, Any]) -> float:
    """Return the time for a resumed job's steps: the same as at first."""
    return time_for_steps(Strategy(job["strategy"]), Limits.from_json(job["limits"]))


def _require_failures(job: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> None:
    status = JobStatus(job["status"])
    if job["parent_job_id"] is not None:
        raise Conflict(
            f"job {job['id']} cannot be resumed: it is a child of job {job['parent_job_id']}, whose step knows of "
            "its end. Resume that job, which hands its failed steps over to new children, or fork this one",
            job_status=status,
        )
    if status is JobStatus.FAILED or (status is JobStatus.COMPLETED and job["failed_steps"] > 0):
        return
    failed = [step for step in steps if step["status"] == StepStatus.FAILED]
    if status is JobStatus.CANCELLED:
        why = "it was cancelled, and a cancelled job does not go on"
    elif failed:
        why = (
            f"it has completed, its answer knows that {named_steps(failed)} failed, and nothing is left to try again"
        )
    else:
        why = "it has completed, and none of its steps has failed"
    raise Conflict(
        f"job {job['id']} cannot be resumed: {why}. A fork takes over what it has done, and runs what is changed or "
        "not done",
        job_status=status,
    )


def rule_says(judge: Callable[..., bool], step: Mapping[str, Any], effect: Effect) -> bool:
    """Apply a rule of `retry` to a step's row."""
    error = step["error"] or {}
    is_begun = step["attempt"] > step["releases"]
    status = StepStatus(step["status"])
    return judge(status, effect, error.get("code"), is_begun=is_begun, is_in_doubt=step["in_doubt"])


def doubt_of(step: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of a step with unknown outcome."""
    error = step["error"] or {"code": "cancelled", "message": "cut off when its job ended"}
    if step["status"] in RUNNING_STEP:  # what an earlier attempt ended by says nothing about this one
        error = {"code": OutcomeUnknown.code, "message": "it runs now"}
    return {
        "step": step["index"],
        "tool_name": step["tool_name"],
        "code": error.get("code"),
        "message": error.get("message"),
    }


def named_steps(steps: Sequence[Mapping[str, Any]]) -> str:
    """Name the first ten steps, and count the others."""
    named = ", ".join(f"${step['index']} ({step['tool_name']!r})" for step in steps[:10])
    return f"{named} and {len(steps) - 10} more" if len(steps) > 10 else named
