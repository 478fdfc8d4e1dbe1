"""From one wake-up to the next: claim, carry out, publish what others should do, go on with the rest.

One follow-up that this process can take goes on in the same Celery task without a broker hop (a fused chain); the
others are published in one batch. A budget bounds how long a chain may hold its Celery task.
"""

from __future__ import annotations

import asyncio
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
from worker.engine.follow import stage_again
from worker.engine.persist import persist
from worker.engine.plan_stage import PlanStage
from worker.engine.respond_stage import RespondStage
from worker.engine.step import StepRunner

_log = logging.getLogger("planq.engine")

Claim = StageClaim | StepClaim


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """`fuse_seconds`: how long one Celery task may go on with follow-ups, far below any broker's patience."""

    lane: Lane
    max_output_bytes: int = 10 * 1024 * 1024
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
        announcer: Announcer,
        tracker: Tracker,
        draw: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._store = store
        self._publisher = publisher
        self._announcer = announcer
        self._tracker = tracker
        self._clock = clock
        self._plan = PlanStage(store, planner, announcer)
        self._respond = RespondStage(store, responder, announcer)
        self._steps = StepRunner(store, toolbox, max_output_bytes=settings.max_output_bytes, draw=draw)
        self._running: dict[UUID, set[asyncio.Task[object]]] = {}
        self._cancelled: set[UUID] = set()
        self._is_winding_down = False

    async def run(self, wake: Wake) -> Carried:
        """Carry out a wake-up and its follow-ups; returns the outcome of the wake-up itself.

        A wake-up that has nothing to claim is harmless. Raises `DatabaseUnavailable` when the database stays away:
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
        tasks = self._running.get(job_id)
        if tasks:
            self._cancelled.add(job_id)
            for task in tuple(tasks):
                task.cancel()

    def wind_down(self) -> None:
        """Begin nothing new here: follow-ups are published from now on, for workers that stay."""
        self._is_winding_down = True

    @property
    def in_flight(self) -> int:
        """How many wake-ups are being carried out."""
        return sum(len(tasks) for tasks in self._running.values())

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
        claim = await self._claim(wake)
        if claim is None:
            return Carried()
        job_id = _job_of(wake)
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("the engine runs inside an asyncio task")
        tasks = self._running.setdefault(job_id, set())
        tasks.add(task)
        started = self._clock()
        carried = Carried(attempt=claim.attempt)
        try:
            if tracked:
                self._tracker.started(wake, claim.attempt)
            carried = await self._work(claim)
        except asyncio.CancelledError:
            if job_id not in self._cancelled:
                await asyncio.shield(self._give_back(claim))
                raise
            # The job was cancelled, its rows already say so; this Celery task ends normally.
            task.uncancel()
        finally:
            tasks.discard(task)
            if not tasks:
                self._running.pop(job_id, None)
                self._cancelled.discard(job_id)
            if tracked:
                self._tracker.ended(wake, claim.attempt, carried.error, self._clock() - started)
        return carried

    async def _claim(self, wake: Wake) -> Claim | None:
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
                return await self._steps.fail_for_good(claim, fault)
            return await self._fail_job(claim, ErrorRecord.of(fault))

    async def _fail_job(self, claim: StageClaim, record: ErrorRecord) -> Carried:
        if await persist(lambda: self._store.end_job(claim, JobStatus.FAILED, None, record, [])):
            self._announcer.job_ended(claim.job_id)
        return Carried(attempt=claim.attempt, error=record)

    async def _give_back(self, claim: Claim) -> None:
        """This process stops in the middle: let another one continue at once, unless a repeat could do harm."""
        try:
            if isinstance(claim, StageClaim):
                await self._store.release_stage(claim)
                await self._publisher.publish([stage_again(claim.job_id, claim.status, claim.attempt)])
            elif claim.effect is Effect.UNSAFE:
                unknown = OutcomeUnknown(
                    f"the worker stopped while the unsafe tool {claim.tool_name!r} ran; whether it took effect is "
                    "unknown, so it is not repeated"
                )
                carried = await self._steps.fail_for_good(claim, unknown)
                await self._publisher.publish(carried.wakes)
            elif await self._store.release_step(claim):
                await self._publisher.publish([StepWake(claim.ref, claim.lane, claim.tool_name, claim.attempt + 1)])
        except DatabaseUnavailable:
            _log.warning("work_not_given_back", extra={"attempt": claim.attempt})


def _job_of(wake: Wake) -> UUID:
    return wake.ref.job_id if isinstance(wake, StepWake) else wake.job_id
