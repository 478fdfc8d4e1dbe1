"""Compares at every heartbeat what this worker owns with what runs here.

An attempt that it no longer owns is cut off before it writes. One that it owns and does not run (the answer to a
claim was lost, for example) is handed back. While the database is away nothing can be taken back, so nothing is cut
off.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from uuid import UUID

from planq.shared.kernel.ids import Attempt
from planq.shared.kernel.states import Effect
from planq.shared.kernel.store.worker_registry import WorkerRegistry
from planq.shared.kernel.sweep import HeldAttempt, Standing
from planq.shared.kernel.wakes import Publisher
from planq.worker.container import WorkerRuntime
from planq.worker.engine.lease import Lease
from planq.worker.engine.running import InFlightWork
from planq.worker.runtime.prefork import PreforkProcesses

_log = logging.getLogger("planq.lifecycle")

_REPEATABLE = (Effect.PURE, Effect.READ, Effect.IDEMPOTENT)
_LATE = ("late",)
_MOST_RELEASES = 2
"""A step whose attempt ended here without an outcome is handed back this often; then it counts as a loss."""


class LoopInFlight:
    """The running work of an `io` worker: `InFlightWork` on another thread's loop, for the heartbeat thread."""

    def __init__(self, runtime: WorkerRuntime, work: InFlightWork) -> None:
        self._runtime = runtime
        self._work = work

    @property
    def late_outcomes(self) -> int:
        """Number of outcomes rejected since the worker started, because their attempt had ended otherwise."""
        return self._work.late_outcomes

    @property
    def acting(self) -> Collection[Attempt]:
        """Attempts whose calls of writes may act now."""
        return self._work.writes.acting

    def attempts(self) -> Collection[Attempt]:
        return self._work.attempts()

    def ages(self) -> Mapping[Attempt, float]:
        """Return the age in seconds of each attempt that runs."""
        return self._work.ages()

    def is_here(self, attempt: Attempt) -> bool:
        """Return whether an attempt runs here, or may be the answer to a claim that is awaited."""
        return self._work.is_here(attempt)

    def was_called(self, attempt: Attempt) -> bool:
        """Return whether an attempt began here and ended without an outcome."""
        return self._work.was_called(attempt)

    def keep_abandoned(self, held: Collection[Attempt]) -> None:
        """Forget what `was_called`, except the attempts in `held`."""
        self._call(lambda: self._work.keep_abandoned(held))

    def cut_off(self, attempts: Collection[Attempt], then: Callable[[], None]) -> None:
        """Cut off attempts that this worker no longer owns, unless they are concluding; then call `then`."""

        def act() -> None:
            self._work.cut_off(attempts)
            then()

        self._call(act)

    def cancel(self, job_id: UUID) -> None:
        self._call(lambda: self._work.cut_off_job(job_id))

    def fence(self) -> None:
        """Stop the calls of writes because the lease is over; from any thread."""
        self._call(self._work.fence)

    def _call(self, act: Callable[[], None]) -> None:
        loop = self._runtime.loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(act)
        else:
            act()  # nothing can run before there is a loop


InFlight = LoopInFlight | PreforkProcesses


class Reconciler:
    """Sends one worker's heartbeats and compares; use it from one thread."""

    def __init__(
        self,
        worker_registry: WorkerRegistry,
        worker_id: UUID,
        here: InFlight,
        lease: Lease,
        publisher: Publisher,
        counts: Callable[[], Mapping[tuple[str, ...], int]] = dict,
        missing: Callable[[], Sequence[str]] = list,
    ) -> None:
        """`counts` returns the worker's counters by name and labels, `missing` what it needs and lacks."""
        self._registry = worker_registry
        self._worker_id = worker_id
        self._here = here
        self._lease = lease
        self._publisher = publisher
        self._counts = counts
        self._lacks = missing
        self._missing: set[Attempt] = set()
        self._told: Mapping[tuple[str, ...], int] = {}
        self._kept: Mapping[tuple[str, ...], int] = {}

    async def beat(self, lag: timedelta) -> Standing | None:
        """Renew the lease, then compare; None without comparison if the worker's row is gone."""
        asked = self._lease.clock()
        standing = await self.tell(lag)
        if standing is not None:
            await self.compare(asked, may_hold=standing.holds)
        return standing

    async def tell(self, lag: timedelta) -> Standing | None:
        """Renew the lease and report what was counted since the row exists; None if the worker's row is gone."""
        in_flight = len(self._here.attempts())  # first: this also reads the counters of processes
        counts = {**self._counts(), _LATE: self._here.late_outcomes}
        told, self._told = self._told, counts
        since = {labels: number - self._kept.get(labels, 0) for labels, number in counts.items()}
        standing = await self._registry.heartbeat(
            self._worker_id,
            lag,
            in_flight=in_flight,
            late_outcomes=since.pop(_LATE),
            counts=[[*labels, number] for labels, number in sorted(since.items()) if number] or None,
            missing=self._lacks(),
        )
        if standing is None:
            self._kept = self._told = told
        return standing

    async def compare(self, asked: float | None = None, *, may_hold: bool = True) -> None:
        """Cut off what this worker no longer owns, hand back what it owns and does not run.

        `asked` is when the lease was renewed. If nothing runs here and the heartbeat said that nothing is owned (not
        `may_hold`), there is no query.

        An attempt counts as lost only if it ran here before the query, and as unclaimed only if it is missing here at
        two comparisons in a row: a claim or an outcome may be under way during one of them.
        """
        running = self._here.attempts()
        rows = await self._registry.held(self._worker_id) if running or may_hold else ()
        held = {item.attempt: item for item in rows}
        gone = {attempt for attempt in running if attempt not in held}
        renewed = self._lease.renewed
        self._here.cut_off(gone, (lambda: renewed(asked)) if asked is not None else (lambda: None))
        missing = {attempt for attempt in held if not self._here.is_here(attempt)}
        for attempt in missing & self._missing:
            item = held[attempt]
            if item.effect in _REPEATABLE and item.releases >= _MOST_RELEASES:
                # It never ends: its outcome cannot be stored, for example.
                await self._registry.abandon(self._worker_id, attempt)
            else:
                await self._hand_back(item)
        self._missing = missing
        self._here.keep_abandoned(set(held))

    async def hand_back_all(self) -> bool:
        """Hand back all work, because nothing runs here; False if a thread still runs an unsafe call, which stays."""
        is_all = True
        for item in await self._registry.held(self._worker_id):
            if item.effect is Effect.UNSAFE and item.attempt in self._here.acting:
                is_all = False
            else:
                await self._hand_back(item)
        return is_all

    async def _hand_back(self, held: HeldAttempt) -> None:
        attempt = held.attempt
        if held.effect is Effect.UNSAFE and self._here.was_called(attempt):
            # Whether it took effect is unknown: the sweeper decides, as for a lost worker.
            await self._registry.abandon(self._worker_id, attempt)
        elif wakes := await self._registry.hand_back(self._worker_id, held):
            await self._publisher.publish(wakes)
        _log.warning("attempt_handed_back", extra={"job": str(attempt.job_id), "attempt": attempt.number})
