"""At every heartbeat: is what runs here still ours, and does what the database says we hold really run here?

What was taken back (the lease had lapsed), has expired or was cancelled is cut off before it writes anything. What
the database counts as ours although nothing here runs it (the answer to a claim was lost, say) is handed back. A loss
of the database changes nothing by itself: while it is away nothing can be taken over, so nothing is thrown away.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from typing import Protocol
from uuid import UUID

from planq.shared.kernel.ids import Attempt
from planq.shared.kernel.states import Effect
from planq.shared.kernel.store.worker_registry import WorkerRegistry
from planq.shared.kernel.sweep import HeldAttempt, Standing
from planq.shared.kernel.wakes import Publisher
from planq.worker.container import WorkerRuntime
from planq.worker.engine.lease import Lease
from planq.worker.engine.running import InFlightWork

_log = logging.getLogger("planq.lifecycle")

_REPEATABLE = (Effect.PURE, Effect.READ, Effect.IDEMPOTENT)
_LATE = ("late",)
_MOST_RELEASES = 2
"""How often a step whose attempt ended here without an outcome is handed back uncounted; then it counts as a loss."""


class InFlight(Protocol):
    """What runs in this worker, as its heartbeat thread may ask for it and cut it off."""

    @property
    def late_outcomes(self) -> int:
        """How many outcomes were rejected because their attempt had ended otherwise, since the worker started."""
        ...

    @property
    def acting(self) -> Collection[Attempt]:
        """The attempts whose calls of writes may act now."""
        ...

    def attempts(self) -> Collection[Attempt]:
        """Return the attempts that are being carried out."""
        ...

    def ages(self) -> Mapping[Attempt, float]:
        """Return for how many seconds they have been carried out."""
        ...

    def is_here(self, attempt: Attempt) -> bool:
        """Return whether an attempt runs here, or may be the answer to a claim that is awaited."""
        ...

    def was_called(self, attempt: Attempt) -> bool:
        """Return whether an attempt that is not here any more was begun here, and ended without an outcome."""
        ...

    def keep_abandoned(self, held: Collection[Attempt]) -> None:
        """Forget what `was_called`, all but those in `held`."""
        ...

    def cut_off(self, attempts: Collection[Attempt], then: Callable[[], None]) -> None:
        """Cut off attempts that are not held any more, unless they conclude already; `then` is called afterwards."""
        ...

    def cancel(self, job_id: UUID) -> None:
        """Cut off whatever runs for a job that was cancelled."""
        ...


class LoopInFlight:
    """`InFlight` of the `io` pool: `InFlightWork` on another thread's loop."""

    def __init__(self, runtime: WorkerRuntime, work: InFlightWork) -> None:
        self._runtime = runtime
        self._work = work

    @property
    def late_outcomes(self) -> int:
        return self._work.late_outcomes

    @property
    def acting(self) -> Collection[Attempt]:
        return self._work.writes.acting

    def attempts(self) -> Collection[Attempt]:
        return self._work.attempts()

    def ages(self) -> Mapping[Attempt, float]:
        return self._work.ages()

    def is_here(self, attempt: Attempt) -> bool:
        return self._work.is_here(attempt)

    def was_called(self, attempt: Attempt) -> bool:
        return self._work.was_called(attempt)

    def keep_abandoned(self, held: Collection[Attempt]) -> None:
        self._call(lambda: self._work.keep_abandoned(held))

    def cut_off(self, attempts: Collection[Attempt], then: Callable[[], None]) -> None:
        def act() -> None:
            self._work.cut_off(attempts)
            then()

        self._call(act)

    def cancel(self, job_id: UUID) -> None:
        self._call(lambda: self._work.cut_off_job(job_id))

    def fence(self) -> None:
        """Stop the calls of writes, for the lease is over; from any thread."""
        self._call(self._work.fence)

    def _call(self, act: Callable[[], None]) -> None:
        loop = self._runtime.loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(act)
        else:
            act()  # nothing can run before there is a loop


class Reconciler:
    """Beats for one worker, and compares; use it from one thread."""

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
        """`counts` returns what the worker has counted since its start, by name and labels, `missing` what it
        needs and lacks.
        """
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
        """Renew the lease, then compare; None, and nothing compared, when the worker's row is gone.

        Raises `DatabaseUnavailable`.
        """
        asked = self._lease.clock()
        standing = await self.tell(lag)
        if standing is not None:
            await self.compare(asked, may_hold=standing.holds)
        return standing

    async def tell(self, lag: timedelta) -> Standing | None:
        """Renew the lease, and tell what was counted; None when the worker's row is gone.

        With a row the database keeps what that was told, so a new one is told only what came after that. Raises
        `DatabaseUnavailable`.
        """
        in_flight = len(self._here.attempts())  # first: processes say with it what they have counted
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
        """Cut off what is not held any more, hand back what is held for nothing; `asked`: when the lease was renewed.

        Where nothing runs here, and a heartbeat has said that nothing is held (not `may_hold`), there is no query.

        An attempt counts as lost only if it ran here before the database was asked, and as unclaimed only if it is
        missing here at two comparisons in a row: a claim or an outcome may be under way at the moment of one.
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
                # It comes back and back and never ends: something about it cannot be stored, say.
                await self._registry.abandon(self._worker_id, attempt)
            else:
                await self._hand_back(item)
        self._missing = missing
        self._here.keep_abandoned(set(held))

    async def hand_back_all(self) -> bool:
        """Give back everything that is held, because nothing runs here any more.

        False when a thread of an unsafe call still runs: that one is left, for only the end of this process stops it.
        """
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
            # Whether it took effect is not known: the sweeper decides, as for a worker that was lost.
            await self._registry.abandon(self._worker_id, attempt)
        elif wakes := await self._registry.hand_back(held):
            await self._publisher.publish(wakes)
        _log.warning("attempt_handed_back", extra={"job": str(attempt.job_id), "attempt": attempt.number})
