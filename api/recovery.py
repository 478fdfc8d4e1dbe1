"""What a resumed job or a fork may repeat, and what an answer about a call that was cut off comes to.

Nothing `unsafe` is done twice unless somebody says so. Nothing is stored here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from api.schemas import SettleRequest
from api.submission import TENANT
from shared.domain.artifacts import identify
from shared.domain.encoding import encode
from shared.domain.errors import Conflict, ErrorRecord, InvalidRequest, OutcomeUnknown, TooLarge
from shared.domain.excerpts import excerpts_json, path_of
from shared.domain.preview import preview_json
from shared.domain.retry import is_in_doubt, may_have_taken_effect
from shared.domain.schemas import violations
from shared.domain.states import Effect, JobStatus, Recovery, Settlement, StepStatus
from shared.domain.tool import ToolDefinition
from shared.ports import ArtifactRecord, PayloadRecord, Payloads
from shared.settings import Settings
from shared.store.database import Row
from shared.store.requests import Verdict


def doubts_about(job: Row, steps: Sequence[Row], *, repeat_unsafe: bool) -> Collection[int]:
    """Return the steps of an ended job whose tool has to find out, before it is called again, whether it took effect.

    Raises `Conflict` when there is nothing to try again, and `OutcomeUnknown` with every step that would be repeated
    blindly, unless `repeat_unsafe`.
    """
    _require_failures(job)
    doubtful = [step for step in steps if _says(may_have_taken_effect, step, Effect(step["effect"]))]
    blind = [step for step in doubtful if step["recovery"] != Recovery.FIND_OUT]
    if blind and not repeat_unsafe:
        raise OutcomeUnknown(
            f"job {job['id']} stays as it is: {_named(blind)} may have taken effect, and its tool is unsafe to "
            'repeat; find out, then send {"repeat_unsafe": true} to repeat it all the same, or fork the job with a '
            "plan that goes without",
            errors=[_doubt(step) for step in blind],
        )
    return [step["index"] for step in doubtful if step["recovery"] == Recovery.FIND_OUT]


def would_repeat(step: Row, effect: Effect) -> bool:
    """True when to do the same as a step, in another job, could do twice what must not be done twice.

    `effect` is the class that its tool has now.
    """
    return _says(is_in_doubt, step, effect)


def refused_fork(job: Row, steps: Sequence[Row], doubts: Mapping[int, int]) -> OutcomeUnknown:
    """Return the refusal of a fork whose steps `doubts` would do what steps of its source may have done.

    `doubts` maps steps of the fork to those of the source, whose rows are `steps` in plan order.
    """
    named = _named([steps[own] for own in doubts.values()])
    return OutcomeUnknown(
        f"job {job['id']} is not forked: {named} may have taken effect, or still may, and its tool is unsafe to "
        'repeat; the fork would call it again: find out, then send {"repeat_unsafe": true} to call it all the same, '
        "or a plan that goes without",
        errors=[{**_doubt(steps[own]), "step": index, "source_step": own} for index, own in doubts.items()],
    )


def _named(steps: Sequence[Row]) -> str:
    named = ", ".join(f"step {step['index']} ({step['tool_name']!r})" for step in steps[:10])
    return f"{named} and {len(steps) - 10} more" if len(steps) > 10 else named


def _require_failures(job: Row) -> None:
    status = JobStatus(job["status"])
    if job["parent_job_id"] is not None:
        raise Conflict(
            f"job {job['id']} cannot be resumed: it is a child of job {job['parent_job_id']}, whose step knows of "
            "its end. Resume that job, which hands its failed steps over to new children, or fork this one",
            job_status=status,
        )
    if status is JobStatus.FAILED or (status is JobStatus.COMPLETED and job["failed_steps"] > 0):
        return
    why = (
        "it was cancelled, and a cancelled job does not go on"
        if status is JobStatus.CANCELLED
        else "it has completed, and none of its steps has failed"
    )
    raise Conflict(
        f"job {job['id']} cannot be resumed: {why}. A fork takes over what it has done, and runs what is changed or "
        "not done",
        job_status=status,
    )


def _says(judge: Callable[..., bool], step: Row, effect: Effect) -> bool:
    error = step["error"] or {}
    is_begun = step["attempt"] > step["releases"]
    status = StepStatus(step["status"])
    return judge(status, effect, error.get("code"), is_begun=is_begun, is_in_doubt=step["in_doubt"])


def _doubt(step: Row) -> dict[str, Any]:
    error = step["error"] or {"code": "cancelled", "message": "cut off when its job ended"}
    if step["status"] == StepStatus.RUNNING:  # what an earlier attempt ended by says nothing about this one
        error = {"code": OutcomeUnknown.code, "message": "it runs now"}
    return {
        "step": step["index"],
        "tool_name": step["tool_name"],
        "code": error.get("code"),
        "message": error.get("message"),
    }


async def verdict_of(
    request: SettleRequest,
    job: Row,
    step: Row,
    tools: Mapping[str, ToolDefinition],
    settings: Settings,
    payloads: Payloads,
) -> Verdict:
    """Return what an answer means for the step that asked; a large output of what happened is stored as a payload.

    Raises `Conflict` when the step asks nothing (any more), `InvalidRequest` with every defect of `output`, and
    `TooLarge`.
    """
    if step["question"] is None:
        raise asks_nothing(job, step["index"], StepStatus(step["status"]))
    outcome = Settlement(request.outcome)
    if outcome is Settlement.HAPPENED:
        given = (request.output, step["tool_name"], tools, settings.max_output_bytes)
        body = await asyncio.to_thread(_checked_output, *given)
        found = identify(request.output)
        artifact = None if found is None else ArtifactRecord(found.id, found.skill_id, found.type, found.metadata)
        if len(body) <= settings.inline_output_bytes:
            return Verdict(outcome, output=request.output, artifact=artifact)
        return Verdict(outcome, artifact=artifact, payload=await _keep(request.output, body, step, payloads))
    if request.output is not None:
        raise InvalidRequest('output: expected none, since it only belongs to the outcome "happened"')
    if outcome is Settlement.DID_NOT_HAPPEN:
        return Verdict(outcome)
    unknown = OutcomeUnknown(
        f"the call of the unsafe tool {step['tool_name']!r} was cut off, and whether it took effect could not be "
        "found out; it is not repeated"
    )
    return Verdict(outcome, error=ErrorRecord.of(unknown))


def asks_nothing(job: Row, index: int, status: StepStatus) -> Conflict:
    """Return the refusal of an answer to a step that waits for none."""
    return Conflict(
        f"step {index} of job {job['id']} asks nothing; its status is {status}. Only a step that waits for a person "
        "to say what became of its call can be settled, and only once",
        step_status=status,
    )


async def _keep(output: Any, body: bytes, step: Row, payloads: Payloads) -> PayloadRecord:
    """Store a large output as workers do: apart from its step, with the parts that later steps refer to."""
    wanted = [path_of(path) for path in step["wanted"] or ()]
    excerpts = await asyncio.to_thread(excerpts_json, output, wanted)
    digest = await payloads.put(TENANT, body, await asyncio.to_thread(preview_json, output))
    return PayloadRecord(digest, len(body), excerpts)


def _checked_output(output: Any, tool_name: str, tools: Mapping[str, ToolDefinition], most: int) -> bytes:
    if not isinstance(output, dict):
        found = "none" if output is None else "something else"
        raise InvalidRequest(f"output: expected the object that {tool_name!r} would have returned, found {found}")
    body = encode(output)
    if len(body) > most:
        raise TooLarge(
            f"output: expected at most {most} bytes of JSON, found {len(body)}", limit=most, actual=len(body)
        )
    # Where no worker publishes the tool any more there is nothing to check against.
    schema = tools[tool_name].output_schema if tool_name in tools else None
    defects = violations(schema or {}, output)
    if defects:
        errors = [{"pointer": f"/output{defect.pointer}", "message": defect.message} for defect in defects]
        told = "; ".join(f"{error['pointer']}: {error['message']}" for error in errors)
        raise InvalidRequest(f"the output breaks the output schema of {tool_name!r}: {told}", errors=errors)
    return body
