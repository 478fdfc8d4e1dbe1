"""The outcome of an agent's job as its caller gets it: a status, an output, or an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planq.shared.agentic.agents.chaining import stored_chained_result
from planq.shared.kernel.children import ChildOutcome
from planq.shared.kernel.states import JobStatus
from planq.shared.platform import errors
from planq.shared.platform.errors import AGENT_TIMEOUTS, ErrorRecord, ExecutionFailed, capped
from planq.worker.agents.orchestration.results import AgentResult, Status

FAULTS = frozenset({errors.InternalFault.code, errors.WorkerLost.code, errors.OutcomeUnknown.code})
"""Codes of faults that no agent is to blame for."""

_CLASSES: Mapping[str, type[ExecutionFailed]] = {
    **dict.fromkeys(AGENT_TIMEOUTS, errors.TimedOut),
    **{
        kind.code: kind
        for kind in (
            errors.BudgetExceeded,
            errors.Cancelled,
            errors.ContextExceeded,
            errors.DepthExceeded,
            errors.InternalFault,
            errors.InvalidArguments,
            errors.InvalidOutput,
            errors.ModelRefused,
            errors.OutcomeUnknown,
            errors.PolicyDenied,
            errors.RateLimited,
            errors.Transient,
            errors.UnknownAgent,
            errors.UnknownTool,
            errors.WorkerLost,
        )
    },
    "invalid_request": errors.InvalidArguments,
}

_PUBLISHED_CODES: Mapping[str, str] = {
    **dict.fromkeys(AGENT_TIMEOUTS, "DeadlineExceeded"),
    errors.UnknownAgent.code: "NotFound",
    "invalid_request": "InvalidArgument",
    errors.InvalidArguments.code: "InvalidArgument",
    errors.PolicyDenied.code: "PermissionDenied",
    errors.DepthExceeded.code: "PermissionDenied",
    errors.BudgetExceeded.code: "ResourceExhausted",
    errors.Cancelled.code: "Canceled",
}


def status_of(child: ChildOutcome) -> Status:
    """Return the status of an agent; one that has not ended, or was cancelled, was not needed: it is skipped."""
    ended = {JobStatus.COMPLETED: Status.SUCCESS, JobStatus.FAILED: Status.FAILED}
    return ended.get(child.status, Status.SKIPPED)


def output_of(child: ChildOutcome) -> Any:
    """Return the output of an agent that succeeded: its object, or its text as `{"text": …}`; None of any other."""
    if child.status is not JobStatus.COMPLETED:
        return None
    return {"text": child.answer or ""} if child.output is None else child.output


def error_of(child: ChildOutcome) -> dict[str, Any] | None:
    """Return `{code, message}` of an agent that did not succeed; None of one that did."""
    if child.status is JobStatus.COMPLETED:
        return None
    if child.error is not None:
        return shown_error(child.error)
    message = "cancelled before its end" if child.status.is_terminal else "not needed any more"
    return {"code": errors.Cancelled.code, "message": message}


def shown_error(error: ErrorRecord) -> dict[str, Any]:
    return {"code": errors.TimedOut.code if error.code in AGENT_TIMEOUTS else error.code, "message": error.message}


def agent_result(child: ChildOutcome, result_key: str = "") -> AgentResult:
    return AgentResult(
        status=status_of(child),
        exec_id=str(child.job_id),
        output=output_of(child),
        error=error_of(child),
        elapsed_ms=child.elapsed_ms,
        order=child.ended_at.timestamp() if child.ended_at is not None else float("inf"),
        result_key=result_key,
        timed_out=child.error is not None and child.error.code in AGENT_TIMEOUTS,
        chained=stored_chained_result(child.chained),
    )


def agent_failure(child: ChildOutcome, **details: Any) -> ExecutionFailed:
    """Return the error of a step whose agent did not succeed: the agent's own, with its name and its job."""
    error = error_of(child) or {"code": errors.InternalFault.code, "message": "it succeeded"}
    name = f"agent {capped(child.agent or '', 100)!r}" if child.agent else "the job"
    kind = _CLASSES.get(error["code"], errors.ToolFailed)
    cause = error["code"] if child.error is None else child.error.code
    known = {"exec_id": str(child.job_id), "agent_id": child.agent, "cause": cause}
    return kind(f"{name} did not succeed: {error['message']}", **known, **details)


def published_code(code: str) -> str:
    return _PUBLISHED_CODES.get(code, "Internal")
