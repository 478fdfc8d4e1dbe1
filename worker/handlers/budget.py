"""The budget of a tree of jobs, and the record of the model calls that use it.

What is about to be used is reserved before, in a commit of its own, so that calls at the same time cannot pass a
limit together; the reservation holds until what was really used is recorded, and no longer than the stage is carried
out, however it ends. Jobs without a budget are not looked at.

Model calls are paid for whatever becomes of their stage, so a cancellation must not lose their record. A stage is
cancelled when its job has ended, when its worker stops, or when it lost its lease. Its model call is cut off then and
recorded beside the stage; a write that already carries a call is carried through.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from random import SystemRandom
from typing import Any, TypeVar
from uuid import UUID, uuid4

from planq.shared.agentic.models.circuit import CircuitOpen
from planq.shared.agentic.models.contract import CutOff, Prices
from planq.shared.agentic.models.ending import Incomplete
from planq.shared.agentic.models.estimate import cut_to, wanted_for
from planq.shared.agentic.models.exchange import Ask, ChatMessage, Findings, ModelFailed, ModelReply
from planq.shared.agentic.plan.errors import plan_refused
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.budget import Holder, ReservationRequest, check_reserved
from planq.shared.kernel.claims import StageClaim
from planq.shared.kernel.deferral import DeferredCall
from planq.shared.kernel.job_store import JobEnd, JobStore, Message, TransitionResult
from planq.shared.kernel.retry import GiveUp, StageTries, after_model_error
from planq.shared.kernel.states import JobStatus, StopReason
from planq.shared.kernel.usage import ModelCall
from planq.shared.platform.errors import Cancelled, DatabaseUnavailable, ErrorRecord, RateLimited
from planq.shared.platform.values.backoff import pause_after
from planq.worker.engine.chain import WakeOutcome
from planq.worker.engine.persist import persist
from planq.worker.engine.running import InFlightWork
from planq.worker.handlers.alarms import Alarms

_log = logging.getLogger("planq.engine")

_NOTHING_FOUND = Findings(is_direct=True)
_NO_LIMITS: Mapping[str, int] = {}


class PausedByBudget(Exception):
    """The stage goes no further here: its tree has just been paused at its soft limit, or its claim is lost."""


class Budget:
    """What one engine asks of budgets."""

    def __init__(self, store: JobStore, recorder: ModelCallRecorder, prices: Prices | None = None) -> None:
        """Without `prices` a call is taken to cost what the tree's tokens have cost so far."""
        self._store = store
        self._recorder = recorder
        self._prices = prices

    async def reserved(
        self,
        claim: StageClaim,
        ask: Ask,
        findings: Findings = _NOTHING_FOUND,
        made: Sequence[ModelCall] = (),
        *,
        tools: Sequence[ToolDefinition] = (),
        own: Mapping[str, int] = _NO_LIMITS,
        transcript: Sequence[ChatMessage] = (),
    ) -> Ask:
        """Reserve what the call needs, and return the question within what is left: its reply may be cut shorter.

        `made` are calls of the same stage that are not recorded yet, `own` the agent's own limits. Raises
        `BudgetExceeded` and `PausedByBudget`; no tree is paused once calls have been made.
        """
        if not claim.budgeted and not own:
            return ask
        wanted = wanted_for(ask, findings, tools, transcript)
        price = await self._prices(ask.model, wanted.asked_tokens) if self._prices and claim.budgeted else None
        wanted = replace(wanted, made=made, own=own, may_ask=not made, price=price, call_id=uuid4())
        ask = cut_to(ask, wanted, await self._granted(claim, wanted))
        if ask.on_incomplete != "continue":
            return ask
        return replace(ask, more=partial(self._more, claim, ask.model, wanted))

    async def _more(self, claim: StageClaim, model: str, wanted: ReservationRequest, begun: ModelCall) -> int | None:
        """Reserve the call that goes on from the text of `begun`; return the longest reply, None for any.

        Raises `BudgetExceeded`, and `Cancelled` where the claim is lost.
        """
        asked = wanted.asked_tokens + begun.output_tokens
        price = await self._prices(model, asked) if self._prices and wanted.price is not None else None
        made = (*wanted.made, begun)
        more = replace(wanted, asked_tokens=asked, made=made, price=price, may_ask=False)
        try:
            return await self._granted(claim, more)
        except PausedByBudget:
            raise Cancelled("another worker has the job's stage") from None

    async def steps(self, claim: StageClaim, count: int, made: Sequence[ModelCall]) -> None:
        """Reserve the steps of a plan that is about to be accepted; raises as `reserved`."""
        if claim.budgeted:
            last = made[-1].id if made else None
            await self._granted(claim, ReservationRequest(steps=count, made=made, may_ask=False, call_id=last))

    async def put_back(self, claim: StageClaim, made: list[ModelCall]) -> WakeOutcome:
        """Give a stage back that goes no further here, and keep its calls: those that are recorded leave `made`.

        Where its tree was paused it is claimed again when somebody resumes the tree.
        """
        if made:
            async with self._recorder.kept(claim.job_id, made):
                await persist(self._store.record_calls, claim.job_id, made)
            made.clear()
        result = await persist(self._store.release, claim)
        return WakeOutcome(claim.attempt, is_late=not result.applied)

    async def defer(self, claim: StageClaim, call: DeferredCall | None) -> WakeOutcome:
        """Let a stage wait for a provider's batch, which is sent `call` unless that is None."""
        applied = await self._recorder.conclude(self._store.defer_stage, claim, call)
        _log.info("stage_deferred", extra={"job": str(claim.job_id), "applied": applied})
        return WakeOutcome(claim.attempt, is_late=not applied)

    async def _granted(self, claim: StageClaim, wanted: ReservationRequest) -> int | None:
        holder = Holder(claim.job_id, claim.attempt, claim.round)
        reserved = await persist(self._store.reserve, holder, wanted)
        if reserved.is_paused or reserved.is_late:
            _log.info("budget_paused" if reserved.is_paused else "stage_lost", extra={"job": str(claim.job_id)})
            raise PausedByBudget
        check_reserved(wanted, reserved)
        return reserved.reply_tokens


_GRACE_SECONDS = 1.0
"""What a cancelled stage waits for its record; a database that takes longer gets it in the background."""

_MOST_ENDS = 20
"""How often an end is tried that the database refuses, over about nine minutes; then its job fails instead."""

_LONGEST_PAUSE_SECONDS = 30.0

_RANDOM = SystemRandom()

T = TypeVar("T")


class ModelCallRecorder:
    """Stores what model calls cost; one per engine."""

    def __init__(
        self,
        store: JobStore,
        patience: timedelta = timedelta(0),
        draw: Callable[[], float] = _RANDOM.random,
        alarms: Alarms | None = None,
        in_flight: InFlightWork | None = None,
    ) -> None:
        """`patience` is how long a stage is tried again whose model fails; `draw` returns numbers from [0, 1)."""
        self._alarms = alarms
        self._store = store
        self._in_flight = in_flight or InFlightWork()
        self._patience = patience
        self._draw = draw
        self._writes: set[asyncio.Task[Any]] = set()

    @asynccontextmanager
    async def kept(self, job_id: UUID, made: Sequence[ModelCall] = ()) -> AsyncIterator[CutOff]:
        """Give a place for calls of the job that are cut off; a cancelled block goes on once they are stored.

        With them are stored those that were `made` before it and are not recorded yet.

        They are stored although the job has ended or belongs to another worker by then: nothing but the job's sums
        changes.
        """
        calls = list(made)
        try:
            yield calls.append
        except asyncio.CancelledError:
            if calls:
                write = self._begin(persist(self._store.record_calls, job_id, calls))
                await asyncio.wait({write}, timeout=_GRACE_SECONDS)
            raise

    async def asked(
        self, claim: StageClaim, made: list[ModelCall], ask: Callable[[CutOff], Awaitable[ModelReply]]
    ) -> ModelReply:
        """Return what a model replies to `ask`; raises `ModelFailed`. A call that was sent is added to `made`.

        `made` are the calls of the stage that are not recorded yet; a cancellation stores them, as `kept` does. A
        reply wakes the other stages that wait for their turn at the same models.
        """
        async with self.kept(claim.job_id, made) as cut_off:
            try:
                reply = await ask(cut_off)
            except ModelFailed as failure:
                if not isinstance(failure.error, CircuitOpen):
                    made.append(failure.call)
                raise
            made.append(reply.call)
        if claim.tried.awaits:
            self._begin(persist(self._store.wake_awaiting, claim.tenant_id, claim.tried.awaits))
        return reply

    async def conclude(self, write: Callable[..., Awaitable[T]], claim: StageClaim, *args: Any, **kwargs: Any) -> T:
        """Store by `write` what a stage came to; return what it returns (`InFlightWork.conclude`).

        A cancellation waits for it up to a second, and never breaks it off: no call may be lost.
        """
        task = self._begin(persist(self._in_flight.conclude, write, claim, *args, **kwargs))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait({task}, timeout=_GRACE_SECONDS)
            raise

    async def end(
        self,
        claim: StageClaim,
        answer: str | None,
        error: ErrorRecord | None,
        calls: Sequence[ModelCall],
        *,
        output: Any = None,
        chained: Any = None,
        messages: Sequence[Message] = (),
        stop_reason: StopReason | None = None,
        incomplete: Incomplete | None = None,
    ) -> WakeOutcome:
        """End the claimed job, completed unless there is an `error`; like `conclude`, so that no call is lost.

        What answers from the defects of a plan keeps them as its error. An `incomplete` answer has an error that says
        why, and stays also where the job fails for it.
        """
        has_failed = error is not None or (incomplete is not None and incomplete.is_failure)
        status = JobStatus.FAILED if has_failed else JobStatus.COMPLETED
        kept = error
        if error is None and incomplete is not None:
            kept = incomplete.error()
        elif error is None and claim.plan_errors:
            kept = ErrorRecord.of(plan_refused(claim.plan_errors))
        end = JobEnd(status, answer, kept, output, chained, messages, stop_reason)
        more = {"output": output, "chained": chained, "messages": messages, "stop_reason": stop_reason}
        try:
            applied = await self.conclude(self._store.end_job, claim, status, answer, kept, calls, **more)
        except DatabaseUnavailable:
            raise
        except Exception as refused:
            return await self._keep(claim, end if claim.kept is None else None, refused, calls)
        _log.info("job_ended", extra={"job": str(claim.job_id), "status": str(status), "applied": applied})
        return WakeOutcome(claim.attempt, error=error, is_late=not applied, has_ended=applied)

    async def end_kept(self, claim: StageClaim) -> WakeOutcome:
        """End the job as it was to end before, when the database refused that; no model is asked."""
        try:
            applied = await self.conclude(self._store.end_kept, claim)
        except DatabaseUnavailable:
            raise
        except Exception as refused:
            if claim.tried.tries >= _MOST_ENDS:
                raise
            return await self._keep(claim, None, refused, [])
        _log.info("job_ended", extra={"job": str(claim.job_id), "status": "kept", "applied": applied})
        return WakeOutcome(claim.attempt, is_late=not applied, has_ended=applied)

    async def _keep(
        self, claim: StageClaim, end: JobEnd | None, refused: Exception, calls: Sequence[ModelCall]
    ) -> WakeOutcome:
        """Keep what a stage came to whose end the database refuses, so that nothing but the end is tried again."""
        error = ErrorRecord.of(refused)
        tried = replace(claim.tried, tries=claim.tried.tries + 1)
        delay = timedelta(seconds=pause_after(tried.tries, 2.0, _LONGEST_PAUSE_SECONDS))
        applied = await self.conclude(self._store.retry_stage, claim, error, delay, tried, calls, end=end)
        _log.error(
            "job_end_refused",
            extra={"job": str(claim.job_id), "tries": tried.tries, "applied": applied},
            exc_info=refused,
        )
        return WakeOutcome.by(claim, TransitionResult(applied), error=error)

    async def end_or_retry(
        self,
        claim: StageClaim,
        failure: ModelFailed,
        calls: Sequence[ModelCall],
        job_error: Callable[[ErrorRecord], ErrorRecord] = lambda error: error,
    ) -> WakeOutcome:
        """Let a stage whose model has failed be tried again later, or end its job.

        `calls` are those of this try, `job_error` makes the job's error from the model's. Like `conclude`. A stage of
        a conversation is tried again no longer than a plan of it may take.
        """
        error = ErrorRecord.of(failure.error)
        is_sent = not isinstance(failure.error, CircuitOpen)
        tried = StageTries(
            claim.tried.tries + is_sent,
            claim.tried.requests + sum(call.attempts for call in calls),
            claim.tried.seconds + sum(call.latency_ms for call in calls) / 1000,
            () if failure.turn is None else failure.turn.models,
        )
        spent = timedelta(seconds=tried.seconds - claim.tried.seconds)
        patience = self._patience
        if claim.conversation_id is not None:  # the next messages wait for this one's end
            patience = min(patience, timedelta(seconds=claim.limits.plan_timeout_seconds))
        decided = after_model_error(
            tried,
            error,
            jitter=self._draw(),
            patience=patience,
            retry_after=failure.error.retry_after if isinstance(failure.error, RateLimited) else None,
            time_left=None if claim.time_left is None else claim.time_left - spent,
            turn=None if failure.turn is None else failure.turn.wait,
        )
        if isinstance(decided, GiveUp):
            return await self.end(claim, None, job_error(decided.error), calls)
        delay = decided.delay
        waited = replace(tried, seconds=tried.seconds + delay.total_seconds())
        retry = self._store.retry_stage
        applied = await self.conclude(retry, claim, error, delay, waited, calls, is_sent=is_sent)
        shown = {"job": str(claim.job_id), "stage": str(claim.status), "code": error.code, "tries": tried.tries}
        if is_sent:
            _log.warning(
                "stage_retrying", extra={**shown, "seconds": round(delay.total_seconds(), 1), "applied": applied}
            )
        if applied and self._alarms is not None:
            self._alarms.after_retry(claim, delay)
        return WakeOutcome.by(claim, TransitionResult(applied), error=error)

    def _begin(self, write: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(write)
        self._writes.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._writes.discard(task)
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:
            _log.warning("model_calls_not_recorded", extra={"cause": type(error).__name__ if error else "stopped"})
