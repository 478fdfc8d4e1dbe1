"""One attempt at a step: resolve, validate, call under the timeout, validate, finish (design, "How a step moves")."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from datetime import timedelta
from time import monotonic
from typing import Any

from shared.domain.errors import (
    ErrorRecord,
    ExecutionFailed,
    InternalFault,
    OutcomeUnknown,
    RateLimited,
    StorageUnavailable,
    TimedOut,
    Transient,
    UnknownTool,
)
from shared.domain.retry import Ask, GiveUp, Next, Phase, RunAgain, after_error
from shared.domain.states import Lane, StepStatus
from shared.ports import (
    Delegated,
    FindsOut,
    Gathers,
    JobStore,
    Moved,
    NotHappened,
    StepClaim,
    StepWake,
    Suspended,
    Tool,
    Toolbox,
    ToolContext,
)
from worker.engine.carried import Carried
from worker.engine.chain import Chain
from worker.engine.persist import persist
from worker.engine.values import ReadyOutput, Values, output_to_store

_log = logging.getLogger("planq.engine")

_ABANDON_SECONDS = 2.0
"""How long a cancelled tool may take to clean up before its step goes on without it."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What an attempt came to; with a `failure` also in which `phase`."""

    value: Any = None
    output: ReadyOutput | None = None
    suspended: Suspended | None = None
    delegated: Delegated | None = None
    failure: ExecutionFailed | None = None
    poisoned: bool = False
    phase: Phase = Phase.CALLING


class StepRunner:
    """Runs single steps. `draw` returns uniform numbers from [0, 1) for jitter.

    `until_held` waits until this worker knows what it still holds; no tool is called before.
    """

    def __init__(
        self,
        store: JobStore,
        toolbox: Toolbox,
        *,
        values: Values,
        draw: Callable[[], float],
        until_held: Callable[[], Awaitable[None]],
    ) -> None:
        self._store = store
        self._toolbox = toolbox
        self._values = values
        self._draw = draw
        self._until_held = until_held

    async def claim(self, wake: StepWake) -> StepClaim | None:
        """Take the step; None when somebody else has it, it is over, or its time has not come."""
        return await self._store.claim_step(wake.ref)

    async def carry_out(self, claim: StepClaim, chain: Chain) -> Carried:
        """Run the attempt and store its outcome, taking over what `chain` may; returns what it led to."""
        since = monotonic()
        outcome = await self._attempt(claim)
        if outcome.suspended is not None:
            waiting = outcome.suspended
            landed = await persist(lambda: self._store.suspend_step(claim, waiting.delay, waiting.output))
            return Carried.by(claim, Moved(landed))
        if outcome.delegated is not None:
            delegated = outcome.delegated
            moved = await persist(lambda: self._store.delegate_step(claim, delegated))
            _tell("step_delegated", claim, moved.landed)
            return Carried.by(claim, moved)
        if outcome.output is None:
            failure = outcome.failure or InternalFault("the attempt ended without an outcome")
            return await self.break_off(
                claim, failure, chain, phase=outcome.phase, poisoned=outcome.poisoned, since=since
            )
        output = outcome.output
        moved = await persist(lambda: self._succeed(claim, output, chain))
        _tell("step_succeeded", claim, moved.landed)
        return Carried.by(claim, moved)

    async def break_off(
        self,
        claim: StepClaim,
        failure: ExecutionFailed,
        chain: Chain,
        *,
        phase: Phase = Phase.CALLING,
        poisoned: bool = False,
        since: float | None = None,
    ) -> Carried:
        """End an attempt that came to nothing: decide what becomes of the step, and store that.

        `since` is when the attempt began (`time.monotonic`), None when that was long ago.
        """
        next_ = after_error(
            claim,
            ErrorRecord.of(failure),
            phase=phase,
            jitter=self._draw(),
            retry_after=failure.retry_after if isinstance(failure, RateLimited) else None,
            time_left=_time_left(claim, since),
        )
        moved = await persist(lambda: self._store_next(claim, next_, chain))
        _tell(f"step_{moved.status}", claim, moved.landed, code=next_.error.code)
        return Carried.by(claim, moved, error=next_.error, poisoned=poisoned)

    async def _store_next(self, claim: StepClaim, next_: Next, chain: Chain) -> Moved:
        match next_:
            case RunAgain(error, delay, unsure):
                return await self._store.fail_step(claim, error, delay, unsure=unsure, take=chain.take())
            case Ask(error, question):
                landed = await self._store.ask_step(claim, error, question)
                return Moved(landed, status=StepStatus.WAITING)
            case GiveUp(error):
                return await self._store.fail_step(claim, error, None, take=chain.take())

    async def _succeed(self, claim: StepClaim, output: ReadyOutput, chain: Chain) -> Moved:
        """Store the output; a repeat puts its payload again, so that none is referred to that has been collected."""
        payload = await self._values.put(claim, output)
        stored = output_to_store(output)
        return await self._store.succeed_step(claim, stored, output.artifact, payload, take=chain.take())

    async def _attempt(self, claim: StepClaim) -> _Outcome:
        phase = Phase.PREPARING
        try:
            tool = self._toolbox.find(claim.tool_name)
            if tool is None:
                raise UnknownTool(
                    f"tool {claim.tool_name!r} is not offered by this worker; start its workers with the same tools"
                )
            arguments = await self._arguments(claim, tool)
            if claim.unsure:
                phase = Phase.FINDING_OUT
                found = await _call(_finding_out(tool, arguments, claim), claim)
                if not isinstance(found.value, NotHappened):
                    return await self._checked(claim, tool, replace(found, phase=phase))
                _tell("step_had_not_happened", claim, True)
            await self._until_held()
            phase = Phase.CALLING
            asking = (
                await self._gathering(claim, tool, arguments) if claim.gathered else _calling(claim, tool, arguments)
            )
            return await self._checked(claim, tool, await _call(asking, claim))
        except ExecutionFailed as failure:
            return _Outcome(failure=failure, phase=phase)

    async def _gathering(self, claim: StepClaim, tool: Tool, arguments: dict[str, Any]) -> Coroutine[Any, Any, Any]:
        """Return the call that makes the output from what became of the child jobs."""
        if not isinstance(tool, Gathers):
            raise InternalFault(f"tool {claim.tool_name!r} delegated and knows no way to gather")
        children = await persist(lambda: self._store.children(claim))
        return tool.gather(arguments, children, claim.note, _context(claim))

    async def _arguments(self, claim: StepClaim, tool: Tool) -> dict[str, Any]:
        try:
            return await self._values.arguments(claim, tool)
        except StorageUnavailable as away:
            raise Transient(away.message) from away

    async def _checked(self, claim: StepClaim, tool: Tool, called: _Outcome) -> _Outcome:
        if called.failure is not None or called.suspended is not None:
            return called
        if called.delegated is not None:
            return _delegating(claim, tool, called)
        return replace(called, output=await self._values.ready(claim, tool, called.value))


def _delegating(claim: StepClaim, tool: Tool, called: _Outcome) -> _Outcome:
    """Return an outcome that delegates; raises `InternalFault` where nobody could gather, or there is nothing to."""
    delegated = called.delegated
    if not isinstance(tool, Gathers) or claim.gathered or delegated is None or not delegated.children:
        raise InternalFault(
            f"tool {claim.tool_name!r} delegated without a way to gather, to no child job, or a second time"
        )
    return called


def _time_left(claim: StepClaim, since: float | None) -> timedelta | None:
    """Return how long the plan still has; its deadline stands in the claim."""
    if claim.time_left is None or since is None:
        return None
    return claim.time_left - timedelta(seconds=monotonic() - since)


def _calling(claim: StepClaim, tool: Tool, arguments: dict[str, Any]) -> Coroutine[Any, Any, Any]:
    return tool.call(arguments, _context(claim))


def _finding_out(tool: Tool, arguments: dict[str, Any], claim: StepClaim) -> Coroutine[Any, Any, Any]:
    if not isinstance(tool, FindsOut):
        raise OutcomeUnknown(
            f"an earlier call of the unsafe tool {claim.tool_name!r} may have taken effect, and this worker knows no "
            "way to find out; start its workers with the same tools"
        )
    return tool.find_out(arguments, _context(claim))


async def _call(asking: Coroutine[Any, Any, Any], claim: StepClaim) -> _Outcome:
    """Await the tool under its timeout. One that ignores its cancellation is abandoned, not waited for."""
    call = asyncio.ensure_future(asking)
    try:
        done, _ = await asyncio.wait([call], timeout=claim.timeout_seconds)
    except asyncio.CancelledError:
        await _abandon(call)
        raise
    if call.cancelled():
        # Not from here: passed on, it would look like this process stopping, and be repeated for ever.
        raise InternalFault(f"tool {claim.tool_name!r} cancelled itself")
    if done:
        value = call.result()
        if isinstance(value, Delegated):
            return _Outcome(delegated=value)
        return _Outcome(suspended=value) if isinstance(value, Suspended) else _Outcome(value=value)
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
        round=claim.ref.round,
        depth=claim.depth,
        root_job_id=str(claim.root_job_id or claim.ref.job_id),
        agent=claim.agent,
        limits=claim.limits,
        time_left_seconds=None if claim.time_left is None else claim.time_left.total_seconds(),
        planned=claim.arguments,
        skill_id=claim.skill_id,
    )


def _tell(event: str, claim: StepClaim, landed: bool, **fields: Any) -> None:
    level = logging.DEBUG if landed and not fields else logging.INFO  # a line per step costs more than its transition
    if not _log.isEnabledFor(level):
        return
    _log.log(
        level,
        event if landed else "late_outcome_rejected",
        extra={
            "job": str(claim.ref.job_id),
            "step": claim.ref.index,
            "attempt": claim.attempt,
            "tool": claim.tool_name,
            **fields,
        },
    )
