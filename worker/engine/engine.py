"""From one wake-up to the next: claim, carry out, publish what others should do, go on with the rest.

One follow-up that this process can take goes on in the same Celery task without a broker hop (a fused chain); the
others are published in one batch. A budget bounds how long a chain may hold its Celery task.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from shared.domain.errors import DatabaseUnavailable, ErrorRecord, InternalFault, OutcomeUnknown
from shared.domain.states import Effect, JobStatus, Lane
from shared.ports import (
    Announcer,
    JobStore,
    Payloads,
    Planner,
    PlanWake,
    Publisher,
    Responder,
    RespondWake,
    StageClaim,
    StepClaim,
    StepWake,
    Toolbox,
    Tracker,
    Wake,
)
from worker.engine.carried import Carried
from worker.engine.claims import Claim, Claims, place_of
from worker.engine.follow import after_release, stage_again
from worker.engine.persist import persist
from worker.engine.plan_stage import PlanStage
from worker.engine.respond_stage import RespondStage
from worker.engine.step import StepRunner
from worker.engine.values import OutputLimits, Values

_log = logging.getLogger("planq.engine")

_HAND_ON_SECONDS = 2.0
"""The pause before a wake-up that could not be claimed is published again. Where nobody reaches the database the
wake-ups go round; the pause keeps that cheap."""

_HAND_ON_AT_ONCE_SECONDS = 0.25
"""The same where only this process seems to have lost the database."""

_CLAIM_SECONDS = 3.0
"""What the answer to a claim is waited for when the process stops."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """`fuse_seconds`: how long one Celery task may go on with follow-ups, far below any broker's patience."""

    lane: Lane
    max_output_bytes: int = 64 * 1024 * 1024
    inline_output_bytes: int = 65_536
    fuse_seconds: float = 60.0


class Engine:
    """Carries out wake-ups for one process; safe to run many at once on one event loop."""

    def __init__(
        self,
        settings: EngineSettings,
        *,
        store: JobStore,
        publisher: Publisher,
        planner: Planner,
        responder: Responder,
        toolbox: Toolbox,
        payloads: Payloads,
        announcer: Announcer,
        tracker: Tracker,
        draw: Callable[[], float],
        claims: Claims | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._store = store
        self._publisher = publisher
        self._announcer = announcer
        self._tracker = tracker
        self._clock = clock
        self.claims = claims if claims is not None else Claims()
        watched = self.claims.watch(store)
        self._plan = PlanStage(watched, planner, announcer)
        self._respond = RespondStage(watched, responder, announcer)
        limits = OutputLimits(settings.max_output_bytes, settings.inline_output_bytes)
        self._steps = StepRunner(
            watched, toolbox, values=Values(payloads, limits), draw=draw, until_held=self.claims.until_held
        )
        self._is_winding_down = False

    async def run(self, wake: Wake) -> Carried:
        """Carry out a wake-up and its follow-ups; returns the outcome of the wake-up itself.

        A wake-up that has nothing to claim is harmless; one that cannot be claimed because the database does not
        answer is published again. Raises `DatabaseUnavailable` when the database stays away from work that has begun:
        the lease then decides. When the surrounding asyncio task is cancelled, the work at hand is given back first.
        """
        until = self._clock() + self._settings.fuse_seconds
        outcome = carried = await self._carry_out(wake)
        while carried.wakes:
            following, others = self._split(
                carried.wakes, may_fuse=self._clock() < until and not self._is_winding_down
            )
            await self._publisher.publish(others)
            if following is None:
                break
            carried = await self._carry_out(following, tracked=True)
        return outcome

    def interrupt(self, job_id: UUID) -> None:
        """Stop whatever runs here for a job that was cancelled; call it on the engine's event loop."""
        self.claims.cut_off_job(job_id)

    def wind_down(self) -> None:
        """Begin nothing new here: follow-ups are published from now on, for workers that stay."""
        self._is_winding_down = True

    def _split(self, wakes: Sequence[Wake], *, may_fuse: bool) -> tuple[Wake | None, list[Wake]]:
        """Return the follow-up to go on with here, None if there is none, and those to publish."""
        if may_fuse:
            for position, wake in enumerate(wakes):
                lane = wake.lane if isinstance(wake, StepWake) else Lane.IO
                if lane is self._settings.lane:
                    return wake, [*wakes[:position], *wakes[position + 1 :]]
        return None, list(wakes)

    async def _carry_out(self, wake: Wake, *, tracked: bool = False) -> Carried:
        """Claim a wake-up's work and do it; a fused one is `tracked`, for it has no Celery task of its own."""
        with self.claims.claiming(place_of(wake)) as claiming:
            claim = await self._claim_or_hand_on(wake)
            if claim is None or claiming.is_void:
                return Carried()
            flight = self.claims.begin(claim, claiming)
        started = self._clock()
        carried = Carried(attempt=claim.attempt)
        is_settled = True
        try:
            if tracked:
                self._tracker.started(wake, claim.attempt)
            carried = await self._work(claim)
        except asyncio.CancelledError:
            if not flight.is_cut_off:
                is_settled = False  # while it is not known to be given back: a second cancellation ends this wait
                is_settled = await asyncio.shield(self._give_back(claim))
                raise
            # The database already says that this attempt is over; this Celery task ends normally.
            flight.task.uncancel()
        except BaseException:
            is_settled = False
            raise
        finally:
            self.claims.end(flight, is_settled=is_settled)
            if tracked:
                self._tracker.ended(wake, claim.attempt, carried.error, self._clock() - started)
        if carried.is_late:
            self.claims.count_late(flight.attempt)
        return carried

    async def _claim_or_hand_on(self, wake: Wake) -> Claim | None:
        """Claim, or publish the wake-up again: perhaps it is only this process that does not reach the database.

        Kept here, it would wait for this process while others stand idle, for the broker goes on sending them. Given
        up, it would be published again by and by, each time later than the time before, and everything that was
        woken during an outage would wait for long after it.
        """
        while True:
            try:
                return await self._claim(wake)
            except DatabaseUnavailable as error:
                await asyncio.sleep(_HAND_ON_AT_ONCE_SECONDS if self.claims.is_stalled else _HAND_ON_SECONDS)
                if await self._publisher.publish([wake]):
                    _log.warning("wake_handed_on", extra={"cause": error.message})
                    return None

    async def _claim(self, wake: Wake) -> Claim | None:
        """Claim; when this process stops meanwhile, what was claimed is given back, for nothing of it has begun."""
        asking = asyncio.ensure_future(self._ask_for(wake))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            with contextlib.suppress(TimeoutError, DatabaseUnavailable):
                claim = await asyncio.wait_for(asking, _CLAIM_SECONDS)
                if claim is not None:
                    await self._release(claim)
            raise

    async def _ask_for(self, wake: Wake) -> Claim | None:
        match wake:
            case PlanWake():
                return await self._plan.claim(wake)
            case RespondWake():
                return await self._respond.claim(wake)
            case StepWake():
                return await self._steps.claim(wake)

    async def _work(self, claim: Claim) -> Carried:
        """Carry out what was claimed. A defect of ours ends it with a reason: left alone it would only recur."""
        try:
            if isinstance(claim, StepClaim):
                return await self._steps.carry_out(claim)
            stage = self._respond if claim.status is JobStatus.RESPONDING else self._plan
            return await stage.carry_out(claim)
        except DatabaseUnavailable:
            raise
        except Exception as error:
            _log.exception("defect", extra={"attempt": claim.attempt})
            # The text of a foreign exception may hold anything, so it stays in the log.
            fault = InternalFault(f"planq failed here ({type(error).__name__}); the cause is in the worker's log")
            if isinstance(claim, StepClaim):
                return await self._steps.break_off(claim, fault)
            return await self._fail_job(claim, ErrorRecord.of(fault))

    async def _fail_job(self, claim: StageClaim, record: ErrorRecord) -> Carried:
        if await persist(lambda: self._store.end_job(claim, JobStatus.FAILED, None, record, [])):
            self._announcer.job_ended(claim.job_id)
        return Carried(attempt=claim.attempt, error=record)

    async def _give_back(self, claim: Claim) -> bool:
        """This process stops in the middle: let another one continue at once, unless a repeat could do harm.

        Returns False where that is left to the sweeper, because the database does not answer.
        """
        try:
            if isinstance(claim, StageClaim) or claim.effect is not Effect.UNSAFE:
                await self._release(claim)
                return True
            unknown = OutcomeUnknown(
                f"the worker stopped while the unsafe tool {claim.tool_name!r} ran; whether it took effect is unknown"
            )
            carried = await self._steps.break_off(claim, unknown)
            await self._publisher.publish(carried.wakes)
        except DatabaseUnavailable:
            _log.warning("work_not_given_back", extra={"attempt": claim.attempt})
            return False
        return True

    async def _release(self, claim: Claim) -> None:
        """Let another worker take the claimed work at once."""
        if not isinstance(claim, StageClaim):
            moved = await self._store.release_step(claim)
            await self._publisher.publish(after_release(claim.ref, claim.attempt, moved))
        elif await self._store.release_stage(claim):
            await self._publisher.publish([stage_again(claim.job_id, claim.status, claim.attempt)])
