"""Recovery is a loop, not an event: find what was lost or is due, put it right, publish the wake-ups.

Every worker process sweeps; the database lets one act where it matters, and every action is guarded, so that two
sweepers at once do no harm. Each pass is bounded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from shared.domain.errors import DatabaseUnavailable, ErrorRecord, OutcomeUnknown, TimedOut, WorkerLost
from shared.domain.retry import retry_delay, runs_again_after_loss
from shared.ports import LostStage, LostStep, Publisher, RespondWake, SweepStore, Wake
from worker.engine.follow import after_step

_log = logging.getLogger("planq.sweep")


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """`batch` bounds one pass; `deadline_grace` is what a living worker gets to enforce a step's deadline itself."""

    max_worker_losses: int = 3
    batch: int = 500
    deadline_grace: timedelta = timedelta(seconds=10)
    tidy_every: int = 300


class Sweeper:
    """One pass after the other; `job_ended` is told of jobs that a pass ends."""

    def __init__(
        self,
        settings: SweepSettings,
        store: SweepStore,
        publisher: Publisher,
        job_ended: Callable[[UUID], None],
        draw: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._store = store
        self._publisher = publisher
        self._job_ended = job_ended
        self._draw = draw
        self._passes = 0
        self._is_broker_there = True

    async def sweep(self) -> int:
        """Make one pass; returns how many things were put right or woken. Raises `DatabaseUnavailable`."""
        wakes: list[Wake] = []
        acted = 0
        for find in (self._fire_timers, self._take_back_steps, self._take_back_stages, self._expire_plans):
            try:
                count, more = await find()
            except DatabaseUnavailable:
                raise
            except Exception:
                # One row that cannot be put right must not keep everything else waiting.
                _log.exception("sweep_part_failed", extra={"part": find.__name__})
                continue
            acted += count
            wakes += more
        # While the broker is away one wake-up of a kind tries it; a batch would only be taken and returned.
        due = await self._store.take_due_wakes(self._settings.batch if self._is_broker_there else 1)
        wakes += due
        if wakes:
            self._is_broker_there = await self._publisher.publish(wakes)
            _log.info("wakes_published", extra={"count": len(wakes), "taken": self._is_broker_there})
            if not self._is_broker_there:
                await self._store.return_wakes(due)
        self._passes += 1
        if self._passes % self._settings.tidy_every == 1:
            await self._store.tidy()
        return acted + len(wakes)

    async def _fire_timers(self) -> tuple[int, list[Wake]]:
        wakes: list[Wake] = []
        count = 0
        for timer in await self._store.due_timers(self._settings.batch):
            moved = await self._store.fire_timer(timer)
            count += moved.landed
            wakes += after_step(timer.ref, moved)
        return count, wakes

    async def _take_back_steps(self) -> tuple[int, list[Wake]]:
        wakes: list[Wake] = []
        count = 0
        for step in await self._store.lost_steps(self._settings.batch, self._settings.deadline_grace):
            error, retry_in = self._judge(step)
            moved = await self._store.take_back_step(step, error, retry_in)
            if not moved.landed:
                continue
            count += 1
            _log.warning(
                "step_taken_back",
                extra={
                    "job": str(step.ref.job_id),
                    "step": step.ref.index,
                    "code": error.code,
                    "to": str(moved.status),
                },
            )
            wakes += after_step(step.ref, moved)
        return count, wakes

    def _judge(self, step: LostStep) -> tuple[ErrorRecord, timedelta | None]:
        """Decide what becomes of a lost attempt: its error, and when it runs again (None: never)."""
        if not step.is_worker_lost:
            late = ErrorRecord.of(
                TimedOut(f"tool {step.tool_name!r} did not answer within {step.timeout_seconds:g} s")
            )
            return late, retry_delay(
                late, effect=step.effect, attempt=step.tries, retries=step.retries, jitter=self._draw()
            )
        losses = step.worker_losses + 1
        if runs_again_after_loss(step.effect, losses, self._settings.max_worker_losses):
            return ErrorRecord.of(WorkerLost(f"the worker of attempt {step.attempt} was lost")), timedelta(0)
        if losses >= self._settings.max_worker_losses:
            given_up = f"the workers of {losses} attempts were lost while this step ran; it is given up"
            return ErrorRecord.of(WorkerLost(given_up, losses=losses)), None
        unknown = (
            f"the worker was lost while the unsafe tool {step.tool_name!r} ran; "
            "whether it took effect is unknown, so it is not repeated"
        )
        return ErrorRecord.of(OutcomeUnknown(unknown)), None

    async def _take_back_stages(self) -> tuple[int, list[Wake]]:
        count = 0
        for stage in await self._store.lost_stages(self._settings.batch):
            if stage.losses + 1 >= self._settings.max_worker_losses:
                count += await self._give_up(stage)
            elif await self._store.take_back_stage(stage):
                count += 1
                _log.warning("stage_taken_back", extra={"job": str(stage.job_id), "stage": str(stage.status)})
        return count, []  # it is due at once, so this very pass publishes it

    async def _give_up(self, stage: LostStage) -> int:
        error = ErrorRecord.of(
            WorkerLost(
                f"{stage.losses + 1} attempts at the {stage.status} stage were lost with their workers or hung"
            )
        )
        if not await self._store.fail_stage(stage, error):
            return 0
        _log.error("stage_given_up", extra={"job": str(stage.job_id)})
        self._job_ended(stage.job_id)
        return 1

    async def _expire_plans(self) -> tuple[int, list[Wake]]:
        wakes: list[Wake] = []
        for plan in await self._store.expired_plans(self._settings.batch):
            error = ErrorRecord.of(TimedOut(f"the plan did not end within {plan.plan_timeout_seconds:g} s"))
            if await self._store.expire_plan(plan, error):
                _log.warning("plan_expired", extra={"job": str(plan.job_id)})
                wakes.append(RespondWake(plan.job_id))
        return len(wakes), wakes
