"""What every worker process does beside its work: renew its lease and compare what it holds, sweep, and hear of
cancelled jobs.

It runs in a thread with a loop and connections of its own, so that a step which blocks the worker's loop cannot
stop the heartbeat.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from random import SystemRandom
from time import monotonic
from typing import Any
from uuid import UUID

from celery import Celery

from planq.shared.broker.depth import BrokerQueues
from planq.shared.broker.publisher import CeleryPublisher
from planq.shared.failpoints import Failpoints
from planq.shared.kernel.ids import Attempt
from planq.shared.kernel.states import Pool, Priority
from planq.shared.kernel.store.signals import CANCELLED, ENDED, Notifier, listen
from planq.shared.kernel.store.worker_registry import WorkerRegistry
from planq.shared.kernel.sweep import SweepDuty
from planq.shared.platform.beats import Beat
from planq.shared.platform.database import Database
from planq.shared.platform.errors import DatabaseUnavailable
from planq.shared.platform.timers import every
from planq.shared.settings.settings import Settings
from planq.shared.subjects.insights.learning import Learning
from planq.shared.subjects.metrics.store import TallyStore
from planq.shared.subjects.payloads.objects import open_objects
from planq.shared.subjects.payloads.store import PayloadStore
from planq.shared.subjects.retention.store import Retention
from planq.worker.container import Tools, WorkerIdentity, announce, sweep_duties
from planq.worker.engine import Retainer, Sweeper, SweepSettings
from planq.worker.engine.lease import Lease
from planq.worker.local_processes import Host
from planq.worker.runtime.prefork import PreforkProcesses
from planq.worker.runtime.reconcile import InFlight, Reconciler
from planq.worker.runtime.turns import Turns

_log = logging.getLogger("planq.lifecycle")

_STOP_SECONDS = 5.0

_SILENT_SHARE = 0.25
"""How much of its lease a worker waits for the answer to a beat or a sweep before it takes its connections for dead:
the time since the beat before, a pause and a repetition have room in the lease beside it."""

_SILENT_SECONDS = 2.0
"""The least of that; a busy server may need so long."""

_TALLY_SECONDS = 5.0
"""Between two looks of the installation for what `/metrics` counts."""

_RETENTION_SECONDS = 300.0
"""Pause between two looks for jobs that have been kept long enough; the first is at the start."""

_INSIGHTS_SECONDS = 5.0
"""Pause between two looks of the installation for ended jobs to learn from."""

_TICK_SECONDS = 0.05

_CONCLUDE_SECONDS = 3.0
"""What a process gets to store an outcome that it has when the drain time ends."""

STUCK_EXIT = 70
"""Exit code of a process that does not end by itself (EX_SOFTWARE of sysexits.h)."""


@dataclass(frozen=True, slots=True)
class HeartbeatParts:
    """What the thread looks after. `processes` are those of a `cpu` worker, None where a loop runs the steps.

    `loop_of` returns that loop; `received` counts the messages that the worker has taken; `restart` ends the worker
    with an exit code that makes a supervisor start it again. `counted` gets how many workers of the pool that serve
    the same priority live; `counts` returns what the worker's consumer has counted since its start, by name and
    labels, `missing` what the worker lacks. `beat` is that of this thread, None where another loop beats.
    `run_suspects` carries out suspects while nothing else is in flight, None where each step has a process anyway.
    `duties` are those of the pool's loop that begin when a sweep finds something for them.
    """

    here: InFlight
    lease: Lease
    processes: PreforkProcesses | None
    loop_of: Callable[[], asyncio.AbstractEventLoop | None]
    received: Callable[[], int]
    restart: Callable[[], None]
    counted: Callable[[int], None] = lambda _: None
    counts: Callable[[], Mapping[tuple[str, ...], int]] = dict
    missing: Callable[[], Sequence[str]] = list
    beat: Beat | None = None
    run_suspects: Callable[[], Awaitable[None]] | None = None
    duties: Sequence[SweepDuty] = ()


class Lifecycle:
    """The heartbeat thread of one worker process."""

    def __init__(
        self,
        settings: Settings,
        identity: WorkerIdentity,
        tools: Tools,
        app: Celery,
        parts: HeartbeatParts,
        *,
        host: Host | None = None,
        failpoints: Failpoints | None = None,
    ) -> None:
        """On a `host` those are looked for whose processes have gone; without one leases alone decide."""
        self._failpoints = failpoints or Failpoints()
        self._settings, self._identity, self._tools, self._parts = settings, identity, tools, parts
        self._host = host
        self._swept: Mapping[tuple[str, ...], int] = {}
        self._queues = BrokerQueues(app)
        self._publisher = CeleryPublisher(app)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="planq-lifecycle", daemon=True)
        self._opened: Future[None] = Future()
        self._stopping = asyncio.Event()
        self._winding_down = asyncio.Event()
        # A beat that waits on a connection which leads nowhere would cost the lease.
        silent = max(settings.lease_seconds * _SILENT_SHARE, _SILENT_SECONDS)
        url, has_pooler = settings.require_database(), settings.has_pooler
        functions = settings.functions_schema
        self._database = Database(
            url, has_pooler=has_pooler, functions=functions, max_connections=3, silent_seconds=silent
        )
        tool_wait = timedelta(seconds=settings.tool_wait_seconds)
        registry = WorkerRegistry(self._database, settings.lease, settings.lease_margin, tool_wait=tool_wait)
        self._registry = self._failpoints.around("worker_registry", registry)
        self._lag = LoopLag(parts.loop_of)
        patience = timedelta(seconds=settings.consumer_watchdog_seconds)
        self._watchdog = ConsumerWatchdog(self._registry, identity.pool, patience, parts.received, only=identity.only)
        self._reconciler = Reconciler(
            # A copy, for the counter belongs to another thread.
            self._registry,
            identity.id,
            parts.here,
            parts.lease,
            self._publisher,
            counts=lambda: {**tools.agent_services.counts, **self._swept, **parts.counts()},
            missing=parts.missing,
        )
        self._work: set[asyncio.Task[None]] = set()
        self._turns = Turns()
        self._sweep_timer = SweepTimer()
        self._io_workers = 1
        self._quarantine: asyncio.Task[None] | None = None
        self._objects = open_objects(settings.payloads)

    def start(self) -> None:
        """Open the database, register the worker, publish its tools, begin to beat and sweep.

        Returns once the worker is registered, so that no claim is ever made without a lease. Raises
        `DatabaseUnavailable`.
        """
        self._thread.start()
        self._opened.result()

    def stop(self) -> None:
        """End the thread and give the lease up, so that what this worker still holds is taken back at once."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(2 * _STOP_SECONDS)
        self._publisher.close()
        self._queues.close()

    def wind_down(self) -> None:
        """The worker is stopping: bound what its processes get to end. From any thread or signal handler."""
        self._loop.call_soon_threadsafe(self._winding_down.set)

    def sweep_in(self, seconds: float) -> None:
        """Let the sweeper look in so many seconds, where its turn comes only after that. From any thread."""
        if seconds < self._turns.cycle(self._settings.sweep_seconds):
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._sweep_timer.due_in, seconds)

    def fence(self) -> None:
        """The lease is over: kill the processes that carry out writes; returns at once, from any thread."""
        processes = self._parts.processes
        if processes is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and the processes with it
                self._loop.call_soon_threadsafe(processes.fence)

    def _look_after_suspects(self) -> None:
        """Suspects may wait: begin a quarantine, unless one goes on; returns at once."""
        if self._parts.run_suspects is not None and (self._quarantine is None or self._quarantine.done()):
            self._quarantine = self._start(self._carry_out_suspects(self._parts.run_suspects))

    async def _carry_out_suspects(self, run_suspects: Callable[[], Awaitable[None]]) -> None:
        with contextlib.suppress(DatabaseUnavailable):
            if not await self._registry.enter_quarantine(self._identity.id, self._identity.pool):
                return
            began = monotonic()
            try:
                await run_suspects()
            finally:
                await self._registry.leave_quarantine(self._identity.id)
            await asyncio.sleep(monotonic() - began)  # other work has this worker for at least half of the time

    def process_died(self, pid: int) -> None:
        """Let what a process carried out be taken back by the next sweep; returns at once, from any thread."""
        asyncio.run_coroutine_threadsafe(self._abandon(pid), self._loop)

    async def _abandon(self, pid: int) -> None:
        processes = self._parts.processes
        attempt = processes.died(pid) if processes is not None else None
        if attempt is not None:
            with contextlib.suppress(DatabaseUnavailable):  # the next comparisons find it held for nothing
                await self._let_go_of(attempt)

    async def _let_go_of(self, attempt: Attempt) -> None:
        """Let the next sweep take a step back whose process has ended; raises `DatabaseUnavailable`."""
        if await self._registry.abandon(self._identity.id, attempt):
            _log.warning("step_process_died", extra={"job": str(attempt.job_id), "attempt": attempt.number})

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._live())

    async def _live(self) -> None:
        try:
            await self._open()
        except Exception as error:
            await self._database.close()
            self._opened.set_exception(error)
            return
        self._opened.set_result(None)
        if self._parts.beat is not None:
            self._parts.beat.start(self._loop)
        await self._stopping.wait()
        if self._parts.beat is not None:
            self._parts.beat.stop()
        with contextlib.suppress(TimeoutError, DatabaseUnavailable):
            async with asyncio.timeout(_STOP_SECONDS):
                await self._close()

    async def _open(self) -> None:
        await self._database.open()
        await self._announce()
        notifier = Notifier(self._database, ENDED)
        settings = SweepSettings(
            max_worker_losses=self._settings.max_worker_losses,
            lease=self._settings.lease,
        )
        store = self._failpoints.around("sweep", self._registry)
        publisher = self._failpoints.around("sweep_publisher", self._publisher)
        interrupt = Notifier(self._database, CANCELLED).send
        pace, turn = self._settings.sweep_seconds, self._turns.pause
        sweeper = Sweeper(
            settings,
            store,
            publisher,
            self._queues,
            notifier.send,
            SystemRandom().random,
            interrupt=interrupt,
            duties=(*sweep_duties(self._database, self._failpoints), *self._parts.duties),
            due_in=self._sweep_timer.due_in,
            ahead=lambda: timedelta(seconds=self._turns.cycle(pace)),
            local_peers=self._host,
            suspected=self._look_after_suspects,
            workers=lambda: self._io_workers,
        )
        self._swept = sweeper.counts
        self._start(every(self._settings.heartbeat_seconds, self._beat, name="heartbeat"))
        patience = self._settings.consumer_watchdog_seconds
        self._start(every(patience / _WATCHES, self._watch, name="watchdog", waits_first=True))
        self._start(every(pace, sweeper.sweep, name="sweep", pause=self._pause_of_sweep))
        self._start(every(pace, partial(self._look_for_gone, sweeper), name="peers", waits_first=True))
        self._start(every(_RETENTION_SECONDS, self._retain, name="retention"))
        self._start(every(_TALLY_SECONDS, TallyStore(self._database).add_up, name="tallies", pause=turn))
        if self._identity.pool == Pool.IO:
            learning = Learning(self._database, self._settings.insights)
            learn = partial(learn_all, learning)
            self._start(every(_INSIGHTS_SECONDS, learn, name="insights", pause=turn))
        self._start(self._lag.sample())
        self._start(
            listen(self._settings.require_server(), CANCELLED, self._heard_cancel, self._settings.functions_schema)
        )
        processes = self._parts.processes
        if processes is not None:
            self._loop.add_reader(processes.fileno(), processes.read_and_end_cancelled)
            self._start(self._stop_processes(processes))

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        return task

    async def _pause_of_sweep(self, pace: float) -> None:
        await self._sweep_timer.pause(self._turns.until_next(pace))

    async def _look_for_gone(self, sweeper: Sweeper) -> None:
        """Sweep out of turn where a worker of this machine has gone; the database is not asked."""
        if sweeper.gone_peers():
            self._sweep_timer.due_in(0)

    async def _retain(self) -> None:
        """Remove what is due over a connection of its own: that takes as long as it takes."""
        url, has_pooler = self._settings.require_database(), self._settings.has_pooler
        functions = self._settings.functions_schema
        async with Database(url, has_pooler=has_pooler, functions=functions, max_connections=1) as database:
            payloads = PayloadStore(database, self._objects)
            await Retainer(Retention(database, self._settings.retention, payloads)).retain()

    async def _announce(self) -> None:
        asked = self._parts.lease.clock()
        await announce(self._registry, self._identity, self._tools)
        self._parts.lease.renewed(asked)

    async def _close(self) -> None:
        work = list(self._work)
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        try:
            # Nothing runs here any more: what a commit claimed whose answer was not waited for has not begun.
            if await self._reconciler.hand_back_all():
                await self._reconciler.tell(timedelta(0))
                await self._registry.forget(self._identity.id)
        finally:
            await self._database.close()

    async def _beat(self) -> None:
        processes = self._parts.processes
        for pid in processes.dead() if processes is not None else []:
            await self._abandon(pid)
        standing = await self._reconciler.beat(self._lag.take_worst())
        if standing is None:
            # The row was removed: a sweep took this worker for dead. What it held is fenced off; it goes on afresh.
            await announce(self._registry, self._identity, self._tools)
            standing = await self._reconciler.beat(timedelta(0))
        for attempt in processes.fenced() if processes is not None else ():
            await self._let_go_of(attempt)
        if self._identity.has_processes and (ages := self._parts.here.ages()):
            await self._registry.watch_steps(self._identity.id, ages)
        if standing is not None:
            self._turns.learn(self._identity.id, standing.alive)
            self._parts.counted(alike(standing.alive, self._identity.pool, self._identity.only))
            self._io_workers = sum(Pool.IO in worker["pools"] for worker in standing.alive)

    async def _watch(self) -> None:
        """End the worker where it hears no wake-ups any more."""
        if not self._winding_down.is_set() and await self._watchdog.is_lost(len(self._parts.here.attempts())):
            self._winding_down.set()
            self._parts.restart()
            self._start(self._end_by_force())

    async def _end_by_force(self) -> None:
        """End the process if it does not end by itself: one that is stuck would hold its lease for ever."""
        await asyncio.sleep(2 * _STOP_SECONDS)
        _log.critical("worker_stuck")
        if not self._parts.here.acting:  # else only the end of this process says that they have stopped
            with contextlib.suppress(TimeoutError, DatabaseUnavailable):
                async with asyncio.timeout(_STOP_SECONDS):
                    await self._registry.forget(self._identity.id)
        os._exit(STUCK_EXIT)

    def _heard_cancel(self, job_id: UUID | None) -> None:
        if job_id is None:
            self._start(self._compare())  # anything may have been missed
        else:
            self._parts.here.cancel(job_id)

    async def _compare(self) -> None:
        with contextlib.suppress(DatabaseUnavailable):
            await self._reconciler.compare()

    async def _stop_processes(self, processes: PreforkProcesses) -> None:
        """Once the worker is stopping: after the drain time kill what is left, and give back what it held.

        Celery itself would wait for its processes without an end.
        """
        await self._winding_down.wait()
        await asyncio.sleep(self._settings.drain_seconds)
        for _ in range(round(_CONCLUDE_SECONDS / _TICK_SECONDS)):
            if processes.stop():
                break
            await asyncio.sleep(_TICK_SECONDS)
        processes.stop_at_once()
        with contextlib.suppress(DatabaseUnavailable):
            await self._reconciler.hand_back_all()
        await self._end_by_force()


def alike(alive: Sequence[Mapping[str, Any]], pool: Pool, only: Priority | None) -> int:
    """Count the live workers of a pool that a worker which serves `only` (None: both priorities) shares work with."""
    served = {None, *Priority} if only is None else {None, only}
    return sum(pool in row["pools"] and row["only_priority"] in served for row in alive)


_SAMPLE_SECONDS = 0.5


class LoopLag:
    """Asks a loop again and again to run a callback, and keeps the longest wait."""

    def __init__(self, loop_of: Callable[[], asyncio.AbstractEventLoop | None]) -> None:
        self._loop_of = loop_of
        self._asked_at: float | None = None
        self._worst_seconds = 0.0

    async def sample(self) -> None:
        """Ask for ever, one question at a time; cancel to end."""
        while True:
            loop = self._loop_of()
            if self._asked_at is None and loop is not None and loop.is_running():
                self._asked_at = monotonic()
                loop.call_soon_threadsafe(self._answer)
            await asyncio.sleep(_SAMPLE_SECONDS)

    def _answer(self) -> None:
        if self._asked_at is not None:
            self._worst_seconds = max(self._worst_seconds, monotonic() - self._asked_at)
            self._asked_at = None

    def take_worst(self) -> timedelta:
        """Return the longest wait since the last call, an unanswered question's so far included."""
        asked_at = self._asked_at
        waiting = monotonic() - asked_at if asked_at is not None else 0.0
        worst, self._worst_seconds = max(self._worst_seconds, waiting), 0.0
        return timedelta(seconds=worst)


_LEAST_SECONDS = 0.05
"""The shortest pause: however many jobs run out of time, a process looks at most twenty times a second."""

_ROUNDING_SECONDS = 0.002
"""So that the database's clock has passed the moment, too, when it is asked."""


class SweepTimer:
    """When the sweeper looks again: after its pause, or earlier, where a job is known to run out of time before that.

    A job whose time is shorter than the pause may be made, begin and run out of it between two looks; the claim of
    its stage says so here. The sweeper itself has seen all others before. Belongs to one event loop, in which
    everything here is called.
    """

    def __init__(self) -> None:
        self._is_due = asyncio.Event()

    def due_in(self, seconds: float) -> None:
        """End the pause, this or a later one, in so many seconds, if it has not ended by then."""
        asyncio.get_running_loop().call_later(seconds + _ROUNDING_SECONDS, self._is_due.set)

    async def pause(self, seconds: float) -> None:
        """Return after so many seconds, or earlier, when something is due."""
        loop = asyncio.get_running_loop()
        earliest = loop.time() + min(seconds, _LEAST_SECONDS)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_due.wait()
        await asyncio.sleep(earliest - loop.time())
        # What has become due is looked at now.
        self._is_due.clear()


_SETTLED = timedelta(seconds=3)
"""A wake-up reaches an idle worker in milliseconds; one that was published so long ago is not under way any more."""

_WATCHES = 6
"""Often enough that each stretch of half the patience has several."""

_RECONNECTING_SHARE = 1 / 2
"""Of the patience: a broker takes wake-ups as soon as it is back; the consumer is back up to 30 s later."""


class ConsumerWatchdog:
    """Notices that this worker beats but hears no wake-ups: its consumer was cancelled, or lost in a reconnect.

    Such a worker looks alive to everybody and does nothing (celery/celery #8030, #8091, #8384; hatchet #1796). The
    sign: work of its own pool was published again and again while it stood idle, and nobody has claimed it.
    Asked `_WATCHES` times in its patience; `received` counts the messages that this worker has taken so far.
    """

    def __init__(
        self,
        worker_registry: WorkerRegistry,
        pool: Pool,
        patience: timedelta,
        received: Callable[[], int],
        *,
        only: Priority | None = None,
    ) -> None:
        self._registry = worker_registry
        self._pool, self._only = pool, only
        self._patience = patience
        self._received = received
        self._count = -1
        self._idle_since = 0.0
        self._unheard_since = self._unheard_last = -math.inf

    async def is_lost(self, in_flight: int) -> bool:
        """Return whether this worker has been idle for its patience while wake-ups for it were published in vain.

        What the broker did not take counts as not published, so a broker that is away is no sign; when it is back,
        the consumer has half the patience to come back too. Raises `DatabaseUnavailable`.
        """
        count, now = self._received(), monotonic()
        if in_flight or count != self._count:
            self._count, self._idle_since = count, now
            self._unheard_since = self._unheard_last = -math.inf
            return False
        idle = timedelta(seconds=now - self._idle_since)
        reconnecting = self._patience * _RECONNECTING_SHARE
        if idle < self._patience - reconnecting:
            return False
        unheard = await self._registry.unanswered_wakes(self._pool, idle, _SETTLED, self._only)
        if not unheard:  # what has just been published again counts in a moment
            return False
        if now - self._unheard_last > self._patience.total_seconds():
            self._unheard_since = now
        self._unheard_last = now
        if idle < self._patience or now - self._unheard_since < reconnecting.total_seconds():
            return False
        _log.critical("consumer_stalled", extra={"pool": str(self._pool), "unheard": unheard, "idle": str(idle)})
        return True


_LEARNED_STRETCHES = 20
"""Maximum number of stretches that one look reads: a backlog goes on with the next look."""


async def learn_all(learning: Learning) -> int:
    """Learn from what is new; return how many events were read. Raises `DatabaseUnavailable`."""
    read = 0
    for _ in range(_LEARNED_STRETCHES):
        if not (count := await learning.learn()):
            break
        read += count
    return read
