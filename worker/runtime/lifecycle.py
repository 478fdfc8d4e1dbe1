"""What every worker process does in addition to its work: renew its lease, compare what it owns with what runs,
sweep, and receive cancellations.

This runs in a thread with its own loop and connections, so that a step which blocks the worker's loop cannot stop the
heartbeat.
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
"""Share of the lease that a worker waits for the answer to a heartbeat or sweep before its connections count as dead.
The rest of the lease has room for the time since the last heartbeat, a pause and a repetition."""

_SILENT_SECONDS = 2.0
"""Minimum of that wait; a busy server may need this long."""

_TALLY_SECONDS = 5.0
"""Pause of the installation between two counts for `/metrics`."""

_RETENTION_SECONDS = 300.0
"""Pause between two looks for jobs past their retention; the first is at the start."""

_INSIGHTS_SECONDS = 5.0
"""Pause of the installation between two looks for ended jobs to learn from."""

_TICK_SECONDS = 0.05

_CONCLUDE_SECONDS = 3.0
"""Time of a process to store a finished outcome when the drain time ends."""

STUCK_EXIT = 70
"""Exit code of a process that does not end by itself (EX_SOFTWARE of sysexits.h)."""


@dataclass(frozen=True, slots=True)
class HeartbeatParts:
    """The parts of the thread. `processes` are those of a `cpu` worker, None if a loop runs the steps.

    `loop_of` returns that loop; `received` counts the messages that the worker has taken; `restart` ends the worker
    with an exit code that makes a supervisor restart it. `counted` gets the number of live workers that share work;
    `counts` returns the consumer's counters by name and labels, `missing` what the worker lacks. `beat` is that of
    this thread, None if another loop beats. `run_suspects` carries out quarantined work, None if each step has its
    own process. `duties` are those of the pool's loop.
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
        """Look for ended workers on `host`; without one only leases decide."""
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
        # A heartbeat that waits on a dead connection would cost the lease.
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
            # A copy, because the counter belongs to another thread.
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
        """Register the worker, publish its tools, start heartbeats and sweeps; return with a lease, or raise."""
        self._thread.start()
        self._opened.result()

    def stop(self) -> None:
        """End the thread and give up the lease, so that what this worker still owns is taken back at once."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(2 * _STOP_SECONDS)
        self._publisher.close()
        self._queues.close()

    def wind_down(self) -> None:
        """Bound the time of the processes because the worker is stopping. From any thread or signal handler."""
        self._loop.call_soon_threadsafe(self._winding_down.set)

    def sweep_in(self, seconds: float) -> None:
        """Let the sweeper look in this many seconds if its turn comes later. From any thread."""
        if seconds < self._turns.cycle(self._settings.sweep_seconds):
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._sweep_timer.due_in, seconds)

    def fence(self) -> None:
        """Kill the processes that call a write because the lease is over; returns at once, from any thread."""
        processes = self._parts.processes
        if processes is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and the processes with it
                self._loop.call_soon_threadsafe(processes.fence)

    def _look_after_suspects(self) -> None:
        """Start a quarantine for waiting suspects unless one is running; returns at once."""
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
            await asyncio.sleep(monotonic() - began)  # other work gets this worker for at least half of the time

    def process_died(self, pid: int) -> None:
        """Let the next sweep take back what a process carried out; returns at once, from any thread."""
        asyncio.run_coroutine_threadsafe(self._abandon(pid), self._loop)

    async def _abandon(self, pid: int) -> None:
        processes = self._parts.processes
        attempt = processes.died(pid) if processes is not None else None
        if attempt is not None:
            with contextlib.suppress(DatabaseUnavailable):  # later comparisons hand it back
                await self._let_go_of(attempt)

    async def _let_go_of(self, attempt: Attempt) -> None:
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
        settings = SweepSettings(max_worker_losses=self._settings.max_worker_losses, lease=self._settings.lease)
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
        """Sweep out of turn if a worker of this machine has ended; does not query the database."""
        if sweeper.gone_peers():
            self._sweep_timer.due_in(0)

    async def _retain(self) -> None:
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
            # Nothing runs here any more: a claim in a commit whose answer was not awaited has not begun.
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
            # The row was removed: a sweep counted this worker as lost. What it owned is fenced; it registers again.
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
        if not self._winding_down.is_set() and await self._watchdog.is_lost(len(self._parts.here.attempts())):
            self._winding_down.set()
            self._parts.restart()
            self._start(self._end_by_force())

    async def _end_by_force(self) -> None:
        """End the process if it does not end by itself: a stuck process would keep its lease for ever."""
        await asyncio.sleep(2 * _STOP_SECONDS)
        _log.critical("worker_stuck")
        if not self._parts.here.acting:  # otherwise only the end of this process proves that they have stopped
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
        """When the worker stops, kill what outlasts the drain time, and hand back its work."""
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
    """Count the live workers of a pool that share work with a worker which serves `only` (None: both priorities)."""
    served = {None, *Priority} if only is None else {None, only}
    return sum(pool in row["pools"] and row["only_priority"] in served for row in alive)


_SAMPLE_SECONDS = 0.5


class LoopLag:
    """Asks a loop repeatedly to run a callback, and keeps the longest wait."""

    def __init__(self, loop_of: Callable[[], asyncio.AbstractEventLoop | None]) -> None:
        self._loop_of = loop_of
        self._asked_at: float | None = None
        self._worst_seconds = 0.0

    async def sample(self) -> None:
        """Ask for ever, one question at a time; cancel it to end."""
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
        """Return the longest wait since the last call, including that of a question without an answer yet."""
        asked_at = self._asked_at
        waiting = monotonic() - asked_at if asked_at is not None else 0.0
        worst, self._worst_seconds = max(self._worst_seconds, waiting), 0.0
        return timedelta(seconds=worst)


_LEAST_SECONDS = 0.05
"""Minimum pause: however many jobs run out of time, a process looks at most twenty times a second."""

_ROUNDING_SECONDS = 0.002
"""Added so that the database's clock has passed the moment, too."""


class SweepTimer:
    """The pause between sweeps, ended early by a claim of a job that runs out of time before; for one loop."""

    def __init__(self) -> None:
        self._is_due = asyncio.Event()

    def due_in(self, seconds: float) -> None:
        """End this pause, or a later one, in this many seconds if it has not ended by then."""
        asyncio.get_running_loop().call_later(seconds + _ROUNDING_SECONDS, self._is_due.set)

    async def pause(self, seconds: float) -> None:
        """Return after this many seconds, or earlier if something is due."""
        loop = asyncio.get_running_loop()
        earliest = loop.time() + min(seconds, _LEAST_SECONDS)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_due.wait()
        await asyncio.sleep(earliest - loop.time())
        self._is_due.clear()


_SETTLED = timedelta(seconds=3)
"""A wake-up reaches an idle worker in milliseconds; one published this long ago is not under way any more."""

_WATCHES = 6
"""Number of looks in each patience: each half of it has several."""

_RECONNECTING_SHARE = 1 / 2
"""Share of the patience: a broker accepts wake-ups as soon as it is back, the consumer returns up to 30 s later."""


class ConsumerWatchdog:
    """Detects that this worker beats but receives no wake-ups: its consumer was cancelled, or lost in a reconnect.

    Such a worker looks alive and does nothing (celery/celery #8030, #8091, #8384; hatchet #1796). The sign: work of
    its own pool was published repeatedly while it was idle, and no worker has claimed it. Called `_WATCHES` times in
    its patience; `received` counts the messages that this worker has taken.
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
        """Return whether this worker was idle for its patience while the broker took wake-ups for it in vain."""
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
        if not unheard:
            return False
        if now - self._unheard_last > self._patience.total_seconds():
            self._unheard_since = now
        self._unheard_last = now
        if idle < self._patience or now - self._unheard_since < reconnecting.total_seconds():
            return False
        _log.critical("consumer_stalled", extra={"pool": str(self._pool), "unheard": unheard, "idle": str(idle)})
        return True


_LEARNED_STRETCHES = 20
"""Maximum number of stretches that one look reads: a backlog continues with the next look."""


async def learn_all(learning: Learning) -> int:
    """Learn from new events; return how many were read. Raises `DatabaseUnavailable`."""
    read = 0
    for _ in range(_LEARNED_STRETCHES):
        if not (count := await learning.learn()):
            break
        read += count
    return read
