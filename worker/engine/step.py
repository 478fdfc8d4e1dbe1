"""One attempt at a step: resolve, validate, call under the timeout, validate, finish (design, "How a step moves")."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shared.domain.artifacts import detect_wrapper, extract_skill_id, infer_type
from shared.domain.errors import (
    ErrorRecord,
    ExecutionFailed,
    InvalidArguments,
    InvalidOutput,
    RateLimited,
    TimedOut,
    ToolFailed,
    UnknownTool,
    storable,
)
from shared.domain.resolution import resolve
from shared.domain.retry import retry_delay
from shared.domain.schemas import violations
from shared.domain.states import Lane
from shared.ports import (
    ArtifactRecord,
    JobStore,
    StepClaim,
    StepWake,
    Suspended,
    Tool,
    Toolbox,
    ToolContext,
)
from worker.engine.carried import Carried
from worker.engine.follow import after_step
from worker.engine.persist import persist

_log = logging.getLogger("planq.engine")

_ABANDON_SECONDS = 2.0
"""How long a cancelled tool may take to clean up before its step goes on without it."""


_MAX_ARTIFACT_ID = 255
"""Longer ids do not fit an index entry of PostgreSQL for certain; such an output is kept, but not as an artifact."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    output: Any = None
    suspended: Suspended | None = None
    failure: ExecutionFailed | None = None
    poisoned: bool = False


class StepRunner:
    """Runs single steps. `draw` returns uniform numbers from [0, 1) for jitter."""

    def __init__(
        self, store: JobStore, toolbox: Toolbox, *, max_output_bytes: int, draw: Callable[[], float]
    ) -> None:
        self._store = store
        self._toolbox = toolbox
        self._max_output_bytes = max_output_bytes
        self._draw = draw

    async def claim(self, wake: StepWake) -> StepClaim | None:
        """Take the step; None when somebody else has it, it is over, or its time has not come."""
        return await self._store.claim_step(wake.ref)

    async def carry_out(self, claim: StepClaim) -> Carried:
        """Run the attempt and store its outcome; returns what became ready."""
        outcome = await self._attempt(claim)
        if outcome.suspended is not None:
            waiting = outcome.suspended
            landed = await persist(lambda: self._store.suspend_step(claim, waiting.delay, waiting.output))
            return Carried.landed(landed, [], attempt=claim.attempt)
        if outcome.failure is not None:
            return await self._fail(claim, outcome.failure, poisoned=outcome.poisoned)
        artifact = describe_artifact(outcome.output)
        moved = await persist(lambda: self._store.succeed_step(claim, outcome.output, artifact))
        _tell("step_succeeded", claim, moved.landed)
        return Carried.landed(moved.landed, after_step(claim.ref, moved), attempt=claim.attempt)

    async def fail_for_good(self, claim: StepClaim, failure: ExecutionFailed) -> Carried:
        """End the attempt with an error that is not retried."""
        record = ErrorRecord.of(failure)
        moved = await persist(lambda: self._store.fail_step(claim, record, None))
        return Carried.landed(moved.landed, after_step(claim.ref, moved), attempt=claim.attempt, error=record)

    async def _fail(self, claim: StepClaim, failure: ExecutionFailed, *, poisoned: bool) -> Carried:
        record = ErrorRecord.of(failure)
        delay = retry_delay(
            record,
            effect=claim.effect,
            attempt=claim.tries,
            retries=claim.retries,
            jitter=self._draw(),
            retry_after=failure.retry_after if isinstance(failure, RateLimited) else None,
        )
        moved = await persist(lambda: self._store.fail_step(claim, record, delay))
        _tell(f"step_{moved.status}", claim, moved.landed, code=record.code)
        wakes = after_step(claim.ref, moved)
        return Carried.landed(moved.landed, wakes, attempt=claim.attempt, error=record, poisoned=poisoned)

    async def _attempt(self, claim: StepClaim) -> _Outcome:
        try:
            tool = self._toolbox.find(claim.tool_name)
            if tool is None:
                raise UnknownTool(
                    f"tool {claim.tool_name!r} is not offered by this worker; start its workers with the same tools"
                )
            arguments = _resolved(claim, tool)
            called = await _call(tool, arguments, claim)
            if called.failure is not None or called.suspended is not None:
                return called
            self._check_output(tool, called.output)
            return called
        except ExecutionFailed as failure:
            return _Outcome(failure=failure)

    def _check_output(self, tool: Tool, output: Any) -> None:
        name = tool.definition.name
        try:
            size = len(json.dumps(output, ensure_ascii=False, allow_nan=False).encode())
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidOutput(f"tool {name!r} returned what is no JSON: {error}") from error
        if size > self._max_output_bytes:
            raise InvalidOutput(
                f"tool {name!r} returned {size} bytes; at most {self._max_output_bytes} are kept: return less, or a "
                "reference to where the data lies"
            )
        defects = violations(tool.definition.output_schema or {}, output)
        if defects:
            told = "; ".join(f"{d.pointer or 'the output'}: {d.message}" for d in defects[:5])
            raise InvalidOutput(f"tool {name!r} broke its output schema: {told}")


def _resolved(claim: StepClaim, tool: Tool) -> dict[str, Any]:
    """Return the arguments to call with; a missing reference is named when the schema does not take its null."""
    resolved = resolve(claim.arguments, claim.outputs)
    defects = violations(tool.definition.input_schema, resolved.arguments)
    if defects or not isinstance(resolved.arguments, dict):
        told = [f"{d.pointer or 'the arguments'}: {d.message}" for d in defects[:5]]
        told += [missing.render() for missing in resolved.missing[:5]]
        raise InvalidArguments(f"arguments of {claim.tool_name!r} do not fit its input schema: {'; '.join(told)}")
    return resolved.arguments


async def _call(tool: Tool, arguments: dict[str, Any], claim: StepClaim) -> _Outcome:
    """Call the tool under its timeout. A tool that ignores its cancellation is abandoned, not waited for."""
    call = asyncio.ensure_future(tool.call(arguments, _context(claim)))
    try:
        done, _ = await asyncio.wait([call], timeout=claim.timeout_seconds)
    except asyncio.CancelledError:
        await _abandon(call)
        raise
    if call.cancelled():
        # Not from here: passed on, it would look like this process stopping, and be repeated for ever.
        raise ToolFailed(f"tool {claim.tool_name!r} cancelled itself")
    if done:
        value = call.result()
        return _Outcome(suspended=value) if isinstance(value, Suspended) else _Outcome(output=value)
    await _abandon(call)
    failure = TimedOut(f"tool {claim.tool_name!r} did not answer within {claim.timeout_seconds:g} s")
    return _Outcome(failure=failure, poisoned=claim.lane is Lane.CPU)


async def _abandon(call: asyncio.Future[Any]) -> None:
    call.cancel()
    await asyncio.wait([call], timeout=_ABANDON_SECONDS)
    if call.done() and not call.cancelled():
        call.exception()  # seen, so that asyncio does not report it as never retrieved


def _context(claim: StepClaim) -> ToolContext:
    return ToolContext(
        job_id=str(claim.ref.job_id),
        step_index=claim.ref.index,
        attempt=claim.attempt,
        tool_name=claim.tool_name,
        tenant_id=claim.tenant_id,
        user_id=claim.user_id,
        context_id=claim.context_id,
        request_id=str(claim.ref.job_id),
        trace_id=claim.trace_id,
    )


def describe_artifact(output: Any) -> ArtifactRecord | None:
    """Return what is stored about an output that is an artifact wrapper, else None (readings row 22)."""
    if not detect_wrapper(output) or not isinstance(output, Mapping):
        return None
    artifact_id = output["artifact_id"]
    if not isinstance(artifact_id, str) or not 0 < len(artifact_id) <= _MAX_ARTIFACT_ID:
        return None
    if artifact_id != storable(artifact_id):
        return None
    skill_id = extract_skill_id(output)
    kind = infer_type(output["artifact"], None)
    return ArtifactRecord(artifact_id, skill_id and storable(skill_id), kind and storable(kind))


def _tell(event: str, claim: StepClaim, landed: bool, **fields: Any) -> None:
    _log.info(
        event if landed else "late_outcome_rejected",
        extra={
            "job": str(claim.ref.job_id),
            "step": claim.ref.index,
            "attempt": claim.attempt,
            "tool": claim.tool_name,
            **fields,
        },
    )
