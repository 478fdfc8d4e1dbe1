"""What is in flight in this process: attempts that it claims, carries out and concludes.

The database decides who holds what; this is the other half of the comparison. An attempt that is no longer held is
cut off: its call is cancelled, nothing of it is given back or written. Cutting off spares what already concludes: its
write is fenced, and the answer may just be under way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from time import monotonic
from typing import Any, cast
from uuid import UUID

from shared.domain.errors import DatabaseUnavailable
from shared.ports import Attempt, JobStore, Place, StageClaim, StepClaim, StepWake, Wake, job_of
from worker.engine.lease import Lease

Claim = StageClaim | StepClaim

_log = logging.getLogger("planq.engine")

_CLAIMS = frozenset({"claim_stage", "claim_step"})
_CONCLUSIONS = frozenset(
    {"accept_plan", "refuse_plan", "end_job", "succeed_step", "fail_step", "suspend_step", "ask_step"}
)
"""The writes of `JobStore` that end an attempt; each takes the claim first."""


_FRESH_SECONDS = 1.0
"""What a claim waits for a lease that is not fresh: a worker that was frozen renews it in less."""

_STALLED_SECONDS = 1.5
"""When a claim has waited so long for its answer, this process may have lost the database without a word. TCP notices
after ten times as long, and until then every wake-up that it takes would lie here, while others stand idle."""


@dataclass(eq=False, slots=True)
class Claiming:
    """A claim whose answer is awaited. `is_void`: its job was cancelled meanwhile; `is_begun`: it led to work."""

    place: Place
    is_void: bool = False
    is_begun: bool = False


@dataclass(eq=False, slots=True)
class Flight:
    """An attempt in flight and the asyncio task that carries it out."""

    attempt: Attempt
    task: asyncio.Task[Any]
    is_concluding: bool = False
    is_cut_off: bool = False


class Claims:
    """Belongs to one event loop. `attempts`, `is_here` and the counters may be read from any thread.

    `told` hears every change, as (kind, place, number): `claiming` (number 0), `unclaimed`, `begun`, `concluding`,
    `ended`, `abandoned` (ended without an outcome, by a fault) and `late`.
    """

    def __init__(
        self,
        lease: Lease | None = None,
        told: Callable[[str, Place, int], None] = lambda *_: None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Without a `lease` there is none to lose. `clock` counts seconds."""
        self._lease = lease
        self._told = told
        self._clock = clock
        self._asked: dict[object, float] = {}
        self._claiming: set[Claiming] = set()
        self._flights: dict[Attempt, Flight] = {}
        self._abandoned: set[Attempt] = set()
        self.late_outcomes = 0

    # From any thread: copying a set or a dict's values is one step of the interpreter. The rest: on the loop only ---

    @property
    def in_flight(self) -> int:
        """How many attempts are being carried out."""
        return len(self._flights)

    def attempts(self) -> list[Attempt]:
        """Return the attempts that are being carried out."""
        return [flight.attempt for flight in list(self._flights.values())]

    def is_here(self, attempt: Attempt) -> bool:
        """Return whether the attempt runs here, or may be the answer to a claim that is awaited."""
        return attempt in self._flights or any(c.place == attempt.place for c in self._claiming.copy())

    def was_called(self, attempt: Attempt) -> bool:
        """Return whether an attempt that is not here any more was begun here, and ended without an outcome."""
        return attempt in self._abandoned

    @property
    def is_stalled(self) -> bool:
        """True while a claim waits for its answer for so long that nothing more should be claimed here."""
        now = self._clock()
        return any(now - asked > _STALLED_SECONDS for asked in list(self._asked.values()))

    @contextmanager
    def claiming(self, place: Place) -> Iterator[Claiming]:
        """Mark a place as being claimed, until the answer has come and `begin` was called, or there is none."""
        claiming = Claiming(place)
        self._told("claiming", place, 0)
        self._claiming.add(claiming)
        try:
            yield claiming
        finally:
            self._claiming.discard(claiming)
            if not claiming.is_begun:
                self._told("unclaimed", place, 0)

    def begin(self, claim: Claim, claiming: Claiming) -> Flight:
        """Take up the attempt that a claim has brought, in the current task."""
        claiming.is_begun = True
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("the engine runs inside an asyncio task")
        flight = Flight(attempt_of(claim), task)
        self._flights[flight.attempt] = flight
        self._told("begun", flight.attempt.place, flight.attempt.number)
        return flight

    def end(self, flight: Flight, *, is_settled: bool) -> None:
        """Forget an attempt; `is_settled` False when it ended by a fault and perhaps still counts as running."""
        self._flights.pop(flight.attempt, None)
        if not is_settled:
            self._abandoned.add(flight.attempt)
        self._told("ended" if is_settled else "abandoned", flight.attempt.place, flight.attempt.number)

    def count_late(self, attempt: Attempt) -> None:
        """Count an outcome that was rejected because its attempt had ended otherwise."""
        self.late_outcomes += 1
        self._told("late", attempt.place, attempt.number)

    def cut_off_job(self, job_id: UUID) -> None:
        """Cut off whatever runs for a job that was cancelled, and what is just being claimed for it."""
        for claiming in self._claiming:
            if job_of(claiming.place) == job_id:
                claiming.is_void = True
        self.cut_off([attempt for attempt in self._flights if attempt.job_id == job_id])

    def cut_off(self, attempts: Collection[Attempt]) -> None:
        """Cancel attempts that this worker does not hold any more, those that conclude excepted."""
        for attempt in attempts:
            flight = self._flights.get(attempt)
            if flight is None or flight.is_concluding or flight.is_cut_off:
                continue
            flight.is_cut_off = True
            flight.task.cancel()
            _log.warning("attempt_cut_off", extra={"job": str(attempt.job_id), "attempt": attempt.number})

    def keep_abandoned(self, held: Collection[Attempt]) -> None:
        """Forget abandoned attempts that the database has settled: all but those in `held`."""
        self._abandoned.intersection_update(held)

    def watch(self, store: JobStore) -> JobStore:
        """Return the store for whoever carries out attempts here.

        Claims and conclusions wait while the lease is not fresh, so that a worker that was frozen first learns what
        it has lost; a conclusion marks its attempt. Made for all stages at once, so that none can forget it.
        """
        return cast(JobStore, _Watched(store, self))

    async def until_held(self) -> None:
        """Return once the lease is fresh, at once where it is; what was lost meanwhile is cut off here instead.

        For the moment before a tool is called: a worker that was frozen between its claim and the call must not begin
        what another one has done by now.
        """
        if self._lease is not None and not self._lease.is_fresh:
            await self._lease.until_fresh()
            await asyncio.sleep(0)  # the order to cut off may still be queued on this loop

    async def _allow(self, claim: Claim | None) -> None:
        if self._lease is not None and not self._lease.is_fresh:
            _log.warning("lease_awaited", extra={"attempt": claim.attempt if claim is not None else None})
            await (self._soon_fresh(self._lease) if claim is None else self._lease.until_fresh())
        if claim is not None:
            flight = self._flights.get(attempt_of(claim))
            if flight is not None and not flight.is_concluding:
                flight.is_concluding = True
                self._told("concluding", flight.attempt.place, flight.attempt.number)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Count a claim as asked for until its answer is there.

        Raises `DatabaseUnavailable` at once while an earlier one waits for too long.
        """
        if self.is_stalled:
            raise DatabaseUnavailable("an earlier claim of this worker still waits for its answer")
        mark = object()
        self._asked[mark] = self._clock()
        try:
            yield
        finally:
            del self._asked[mark]

    async def _soon_fresh(self, lease: Lease) -> None:
        """Wait a moment for the lease; raises `DatabaseUnavailable` where nothing should be claimed here now."""
        try:
            async with asyncio.timeout(_FRESH_SECONDS):
                await lease.until_fresh()
        except TimeoutError:
            raise DatabaseUnavailable("this worker cannot renew its lease, so it claims nothing") from None


class _Watched:
    """A `JobStore` whose claims and conclusions ask `Claims` first; everything else goes straight through."""

    def __init__(self, store: JobStore, claims: Claims) -> None:
        self._store = store
        self._claims = claims

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name not in _CLAIMS | _CONCLUSIONS:
            return method

        async def asked(first: Any, *rest: Any, **named: Any) -> Any:
            await self._claims._allow(first if name in _CONCLUSIONS else None)
            with self._claims._asking() if name in _CLAIMS else nullcontext():
                asking: Awaitable[Any] = method(first, *rest, **named)
                return await asking

        return asked


def attempt_of(claim: Claim) -> Attempt:
    """Return the attempt that a claim is the right to."""
    return Attempt(claim.ref if isinstance(claim, StepClaim) else claim.job_id, claim.attempt)


def place_of(wake: Wake) -> Place:
    """Return what a wake-up asks to claim."""
    return wake.ref if isinstance(wake, StepWake) else wake.job_id
