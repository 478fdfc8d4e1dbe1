"""Recovery is a loop, not an event: find what was lost or is due, put it right, publish the wake-ups.

Every worker process sweeps; the database lets one act where it matters, and every action is guarded, so that two
sweepers at once do no harm. Each pass is bounded.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from operator import attrgetter
from typing import Any
from uuid import UUID

from planq.shared.kernel.follow_ups import after_end, after_step
from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.job_store import TransitionResult
from planq.shared.kernel.retry import (
    AskPerson,
    GiveUp,
    Next,
    Phase,
    RunAgain,
    after_error,
    after_loss,
)
from planq.shared.kernel.states import STAGES, TERMINAL_JOB, JobStatus, StepStatus, WakeQueue
from planq.shared.kernel.sweep import (
    Due,
    ExpiredJob,
    LocalPeers,
    LostStage,
    LostStep,
    RetentionStore,
    SweepDuty,
    SweepPart,
    SweepStore,
)
from planq.shared.kernel.wakes import Publisher, Queues, Wake
from planq.shared.platform.errors import (
    DatabaseUnavailable,
    ErrorRecord,
    JobTimedOut,
    PlanTimedOut,
    QueueTimedOut,
    TimedOut,
    Unavailable,
    UnknownTool,
    WorkerLost,
)
from planq.shared.platform.values.backoff import pause_after
from planq.worker.engine.chain import in_messages

_log = logging.getLogger("planq.sweep")
_retention_log = logging.getLogger("planq.retention")


_WINDOWS_AT_ONCE = 20
"""Jobs in one commit, each with up to a window of steps."""

_NAMED = 10
"""Jobs that a line of the log names."""

_FIRST_REST_SECONDS, _LONGEST_REST_SECONDS = 1.0, 300.0
_MOST_RESTING = 10_000
"""An end that could not be served three times rests, longer each time: a batch of such would hide all later ones."""

_PAUSE_SECONDS = 0.1
"""Between two passes of a duty that has more to do."""


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """`batch` bounds one pass; `deadline_grace` is what a living worker gets to enforce a step's deadline itself.

    Within a `lease` a living worker compares, and cuts off what it does not hold any more, or its lease is over.
    """

    lease: timedelta
    max_worker_losses: int = 3
    batch: int = 500
    deadline_grace: timedelta = timedelta(seconds=10)
    tidy_every: int = 300


class Sweeper:
    """One pass after the other.

    `job_ended` is called with jobs that a pass ends, and `interrupt` with those that it ends in the middle, so that
    what runs of them is cut off. `duties` are what it does for the subjects that stand on jobs. `due_in` is called
    with the seconds until a pass is due that should not wait for its turn, which comes within `ahead`. Workers of the
    `local_peers` that have gone are not waited for until their leases end. `suspected` is called where suspects may
    wait for a worker in quarantine. `workers` says how many workers there are, as far as is known. `counts` are
    totals since the start, by name and labels.
    """

    def __init__(
        self,
        settings: SweepSettings,
        store: SweepStore,
        publisher: Publisher,
        queues: Queues,
        job_ended: Callable[[UUID], None],
        draw: Callable[[], float],
        *,
        interrupt: Callable[[UUID], None],
        duties: Sequence[SweepDuty] = (),
        due_in: Callable[[float], None] = lambda _: None,
        ahead: Callable[[], timedelta] = timedelta,
        local_peers: LocalPeers | None = None,
        suspected: Callable[[], None] = lambda: None,
        workers: Callable[[], int] = lambda: 1,
    ) -> None:
        self._settings = settings
        self._store = store
        self._publisher = publisher
        self._queues = queues
        self._job_ended = job_ended
        self._draw = draw
        self._interrupt = interrupt
        self._due_in = due_in
        self._ahead = ahead
        self._local_peers = local_peers
        self._suspected = suspected
        self._workers = workers
        self.counts = Counter[tuple[str, ...]]()
        self._parts: Mapping[str, Callable[[], Awaitable[tuple[int, list[Wake]]]]] = {
            SweepPart.TIMERS: self._fire_timers,
            SweepPart.STEPS: self._take_back_steps,
            SweepPart.STAGES: self._take_back_stages,
            SweepPart.PLANS: self._expire_plans,
            SweepPart.JOBS: self._expire_jobs,
            SweepPart.ENDS: self._serve_unserved,
            SweepPart.WINDOWS: self._open_windows,
            SweepPart.TOOLS: self._await_tools,
            **{duty.part: partial(self._serve, duty) for duty in duties},
        }
        self._peers: Collection[str] = ()
        self._passes = 0
        self._is_broker_there = True
        self._has_lost_worker = False
        self._unserved = dict[UUID, tuple[int, float]]()  # ends: how often in vain, and until when they rest

    async def sweep(self) -> int:
        """Make one pass; returns how many things were put right or woken. Raises `DatabaseUnavailable`."""
        wakes: list[Wake] = []
        acted = 0
        self._has_lost_worker = False
        found = await self._look()
        if await self._end_leases():
            found = await self._look()
        if found.next_in is not None:
            self._due_in(found.next_in.total_seconds())
        for part, find in self._parts.items():
            if part not in found.parts:
                continue
            try:
                count, more = await find()
            except DatabaseUnavailable:
                raise
            except Exception:
                # One row that cannot be put right must not keep everything else waiting.
                _log.exception("sweep_part_failed", extra={"part": str(part)})
                continue
            acted += count
            wakes += more
        if SweepPart.SUSPECTS in found.parts or self._has_lost_worker:
            self._suspected()
        wakes = list(await self._store.with_jobs(wakes))
        due = await self._take_due_wakes(found, acted)
        # A worker that froze instead of dying still swallows the next message of its pool; the copy reaches another.
        copies = 2 if self._has_lost_worker else 1
        if wakes or due:
            self._is_broker_there = await self._publish(wakes, *[due] * copies)
            _log.info("wakes_published", extra={"count": len(wakes) + len(due), "taken": self._is_broker_there})
            if not self._is_broker_there:
                await self._store.return_wakes(due)
        self._passes += 1
        if self._passes % self._settings.tidy_every == 1:
            await self._store.tidy()
        return acted + len(wakes) + len(due)

    async def _publish(self, *several: Sequence[Wake]) -> bool:
        """Publish wake-ups, together what may be: steps one by one would fill the windows of all workers.

        No message has the same step twice: each of `several` is put into messages of its own.
        """
        workers = self._workers() + 1  # this process takes none of them for itself, as a dispatcher does
        messages: list[Wake] = []
        for wakes in several:
            # A queue is served in its own order: of what was lost together, older jobs go first.
            messages += sorted(in_messages(wakes, workers), key=attrgetter("job_id"))
        return await self._publisher.publish(messages)

    async def _take_due_wakes(self, found: Due, acted: int) -> Sequence[Wake]:
        lost = await self._queues_that_lost_wakes(found.unclaimed)
        if not (lost or acted or SweepPart.WAKES in found.parts):
            return ()
        # While the broker is away one wake-up of a kind tries it; a batch would only be taken and returned.
        return await self._store.take_due_wakes(self._settings.batch if self._is_broker_there else 1, lost)

    async def _look(self) -> Due:
        place = None if self._local_peers is None else self._local_peers.place
        found = await self._store.look(self._settings.deadline_grace, self._ahead(), place)
        self._peers = found.peers
        return found

    def gone_peers(self) -> Sequence[str]:
        """Return the processes that have gone of workers on this machine, which the last look has found there."""
        return [] if self._local_peers is None else [one for one in self._peers if self._local_peers.has_gone(one)]

    async def _end_leases(self) -> bool:
        """End the leases of workers on this machine whose processes have gone; return whether there were any.

        What has gone never comes back, so what was seen is still true when it is written.
        """
        gone = self.gone_peers()
        for process in gone:
            if (name := await self._store.end_lease(process)) is not None:
                _log.warning("worker_gone", extra={"worker": name})
        return bool(gone)

    async def _queues_that_lost_wakes(self, unclaimed: Collection[WakeQueue]) -> Collection[WakeQueue]:
        """Return the queues with unclaimed work that are empty: their wake-ups are lost."""
        return await self._queues.empty(unclaimed) if unclaimed and self._is_broker_there else ()

    async def _fire_timers(self) -> tuple[int, list[Wake]]:
        wakes: list[Wake] = []
        count = 0
        for timer in await self._store.due_timers(self._settings.batch):
            result = await self._store.fire_timer(timer)
            count += result.applied
            wakes += await self._after(timer.ref, result)
        return count, wakes

    async def _after(self, ref: StepRef, result: TransitionResult) -> list[Wake]:
        return [*after_step(ref, result), *await self._after_job(ref.job_id, result.job_status)]

    async def _after_job(self, job_id: UUID, status: JobStatus | None) -> Sequence[Wake]:
        """Serve whoever waits for a job if it has ended; what fails here `_serve_unserved` does later."""
        if status not in TERMINAL_JOB:
            return ()
        try:
            return after_end(await self._store.serve_ends([job_id]))
        except DatabaseUnavailable:
            raise
        except Exception:
            _log.exception("end_not_served", extra={"jobs": [str(job_id)]})
            return ()

    async def _take_back_steps(self) -> tuple[int, list[Wake]]:
        wakes: list[Wake] = []
        count = 0
        for step in await self._store.lost_steps(self._settings.batch, self._settings.deadline_grace):
            decided = self._judge(step)
            result = await self._store_next(step, decided)
            if not result.applied:
                continue
            count += 1
            self._has_lost_worker |= step.is_worker_lost
            notified = {"code": decided.error.code, "attempt": step.attempt, "to": str(result.status)}
            _log_step("step_taken_back", step.ref, **notified, **self._count(step))
            wakes += await self._after(step.ref, result)
        return count, wakes

    def _judge(self, step: LostStep) -> Next:
        """Decide what becomes of an attempt whose worker was lost, or does not enforce its deadline."""
        if step.is_worker_lost:
            return after_loss(step, self._settings.max_worker_losses)
        late = TimedOut(f"tool {step.tool_name!r} did not answer within {step.timeout_seconds:g} s")
        decided = after_error(step, ErrorRecord.of(late), phase=Phase.CALLING, jitter=self._draw())
        if isinstance(decided, RunAgain) and decided.in_doubt:
            return replace(decided, delay=max(decided.delay, self._settings.lease))
        return decided

    async def _store_next(self, step: LostStep, decided: Next) -> TransitionResult:
        match decided:
            case RunAgain(error, delay, in_doubt):  # nobody has joined here, so nothing begins anew
                return await self._store.take_back_step(step, error, delay, in_doubt=in_doubt)
            case AskPerson(error, question):
                applied = await self._store.ask_lost_step(step, question, error)
                return TransitionResult(applied, status=StepStatus.WAITING)
            case GiveUp(error):
                return await self._store.take_back_step(step, error, None)

    async def _take_back_stages(self) -> tuple[int, list[Wake]]:
        wakes: list[Wake] = []
        count = 0
        for stage in await self._store.lost_stages(self._settings.batch):
            notified = {"job": str(stage.job_id), "stage": str(stage.status)}
            if stage.company == 1 and stage.losses + 1 >= self._settings.max_worker_losses:
                if await self._give_up(stage):
                    count += 1
                    wakes += await self._after_job(stage.job_id, JobStatus.FAILED)
            elif await self._store.take_back_stage(stage):
                count += 1
                self._has_lost_worker = True
                _log.warning("stage_taken_back", extra={**notified, **self._count(stage)})
        return count, wakes  # what is due at once is published by this very pass

    async def _give_up(self, stage: LostStage) -> bool:
        history = {"losses": stage.losses + 1, "attempts": stage.attempt}
        lost = WorkerLost(
            f"{stage.losses + 1} attempts at the {stage.status} stage were lost with their workers or hung", **history
        )
        error = ErrorRecord.of(lost)
        if not await self._store.fail_stage(stage, error):
            return False
        _log.error("stage_given_up", extra={"job": str(stage.job_id), **self._count(stage)})
        self._job_ended(stage.job_id)
        return True

    def _count(self, lost: LostStep | LostStage) -> dict[str, str]:
        """Count an attempt that was lost with its worker; returns how that was seen, for the log."""
        if not lost.is_worker_lost:
            return {}
        self.counts["lost", lost.seen.value] += 1
        return {"seen": lost.seen.value}

    async def _expire_plans(self) -> tuple[int, list[Wake]]:
        wakes: list[Wake] = []
        count = 0
        for plan in await self._store.expired_plans(self._settings.batch):
            awaited = ", ".join(map(repr, plan.awaited_tools))
            why = f"; steps of it wait for tools that no live worker has: {awaited}" if awaited else ""
            error = ErrorRecord.of(PlanTimedOut(f"the plan did not end within {plan.plan_timeout_seconds:g} s{why}"))
            status = await self._store.expire_plan(plan, error)
            if status is not None:
                _log.warning("plan_expired", extra={"job": str(plan.job_id)})
                wakes += await self._after_job(plan.job_id, status)
                if status in STAGES:
                    wakes.append(Wake.stage(plan.job_id, status))
                count += 1
        return count, wakes

    async def _expire_jobs(self) -> tuple[int, list[Wake]]:
        wakes: list[Wake] = []
        count = 0
        for job in await self._store.expired_jobs(self._settings.batch):
            error = _overdue(job)
            for ended in await self._store.expire_job(job, ErrorRecord.of(error)):
                count += 1
                _log.warning(
                    "job_expired", extra={"job": str(ended), "code": error.code, "because_of": str(job.job_id)}
                )
                self._job_ended(ended)
                self._interrupt(ended)
            if job.is_awaited:
                wakes += after_end(await self._store.serve_ends([job.job_id]))
        return count, wakes

    async def _serve_unserved(self) -> tuple[int, list[Wake]]:
        """Serve whoever waits for jobs that have ended, where nobody has: lines of batches, and what was missed."""
        wakes: list[Wake] = []
        count = 0
        resting = [job for job, (_, until) in self._unserved.items() if until > time.monotonic()]
        sets = list(await self._store.unserved_ends(self._settings.batch, resting))
        while sets:
            jobs = sets.pop(0)
            try:
                followed = await self._store.serve_ends(jobs)
            except DatabaseUnavailable:
                raise
            except Exception:
                # One end that cannot be served must not keep the others waiting, nor a line the other lines.
                _log.exception("end_not_served", extra={"jobs": [str(job) for job in jobs[:_NAMED]]})
                if len(jobs) > 1:
                    sets += [[job] for job in jobs]
                else:
                    self._let_rest(jobs[0])
                continue
            for job in jobs:
                self._unserved.pop(job, None)
            count += len(jobs) * followed.applied
            wakes += after_end(followed)
        if count:
            self._due_in(_PAUSE_SECONDS)
        return count, wakes

    def _let_rest(self, job: UUID) -> None:
        failures, _ = self._unserved.pop(job, (0, 0.0))
        pause = pause_after(failures - 1, _FIRST_REST_SECONDS, _LONGEST_REST_SECONDS)
        self._unserved[job] = failures + 1, time.monotonic() + pause
        if len(self._unserved) > _MOST_RESTING:
            del self._unserved[next(iter(self._unserved))]

    async def _serve(self, duty: SweepDuty) -> tuple[int, list[Wake]]:
        swept = await duty.carry_out(self._settings.batch)
        for ended in swept.ended:
            self._job_ended(ended)
            self._interrupt(ended)
        if swept.goes_on:
            self._due_in(_PAUSE_SECONDS)
        return swept.count, list(swept.wakes)

    async def _open_windows(self) -> tuple[int, list[Wake]]:
        """Let held steps follow where something else than the end of a step made room; they are published as due."""
        return await self._store.open_windows(_WINDOWS_AT_ONCE), []

    async def _await_tools(self) -> tuple[int, list[Wake]]:
        """Go on with steps whose tools are there again, and fail those that have waited for as long as they may."""
        wakes: list[Wake] = []
        count = await self._store.wake_offered(self._settings.batch)
        for step in await self._store.missed_tools(self._settings.batch):
            missed = UnknownTool(
                f"no live worker of the pool {step.pool} has had the tool {step.tool_name!r} for {step.seconds:g} s; "
                "start one that loads it, then resume the job"
            )
            result = await self._store.miss_tool(step, ErrorRecord.of(missed))
            if result.applied:
                count += 1
                _log_step("tool_missed", step.ref, tool=step.tool_name, pool=str(step.pool))
                wakes += await self._after(step.ref, result)
        return count, wakes


def _overdue(job: ExpiredJob) -> TimedOut:
    if job.is_queued:
        return QueueTimedOut(
            f"no worker began the job within {job.limit_seconds:g} s; see that `io` workers run and have free slots"
        )
    return JobTimedOut(f"the job did not end within {job.limit_seconds:g} s")


def _log_step(event: str, ref: StepRef, **fields: Any) -> None:
    _log.warning(event, extra={"job": str(ref.job_id), "step": ref.index, **fields})


class Retainer:
    """Removes what has been kept for long enough: a sweep of its own, at a slow pace."""

    def __init__(
        self,
        store: RetentionStore,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`clock` in seconds, monotonic; `sleep` lets so many pass."""
        self._store = store
        self._clock = clock
        self._sleep = sleep

    async def retain(self) -> Mapping[str, int]:
        """Remove all that is due; return how much of each kind (`RemovalBatch.kind`) was removed.

        It rests after every batch for as long as the batch took, so that half of one connection's time is the most
        it costs. Raises `DatabaseUnavailable`; the next pass then goes on, as it does after an object store that did
        not answer.
        """
        removed: Counter[str] = Counter()
        began = self._clock()
        try:
            async for batch in self._store.remove():
                removed[batch.kind] += batch.count
                await self._sleep(self._clock() - began)
                began = self._clock()
        except DatabaseUnavailable:
            raise
        except Unavailable as error:
            _retention_log.warning("retention_interrupted", extra={"cause": error.message})
        finally:
            if removed:
                _retention_log.info("retention_removed", extra={"removed": dict(removed)})
        return removed
