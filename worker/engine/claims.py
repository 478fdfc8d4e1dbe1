"""What is in flight in this process: attempts that it claims, carries out and concludes.

The database decides who holds what; this is the other half of the comparison. An attempt that is no longer held is
cut off: its call is cancelled, nothing of it is given back or written. Cutting off spares what already concludes: its
write is fenced, and the answer may just be under way.

A conclusion may take over what it makes ready. What it took is in flight from the moment of its answer, before
anybody carries it out; until then every attempt of its job is perhaps here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, TypeVar, cast
from uuid import UUID

from shared.domain.errors import DatabaseUnavailable
from shared.ports import Attempt, JobStore, Place, StageClaim, StepClaim, TransitionResult, job_of
from worker.engine.fence import Lease
from worker.engine.writes import Owner, Writes

Claim = StageClaim | StepClaim

K = TypeVar("K")
V = TypeVar("V")

_log = logging.getLogger("planq.engine")

_CLAIMS = frozenset({"claim_stage", "claim_step", "claim_steps", "claim_suspects"})
_CONCLUSIONS = frozenset(
    {
        "accept_plan",
        "refuse_plan",
        "chain_tool",
        "end_job",
        "retry_stage",
        "succeed_step",
        "fail_step",
        "suspend_step",
        "delegate_step",
        "ask_step",
    }
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
class _Taking:
    """A conclusion whose answer may bring claims. `is_void`: its job was cancelled meanwhile."""

    is_void: bool = False


@dataclass(eq=False, slots=True)
class Flight:
    """An attempt in flight and the asyncio task that carries it out, None before it is begun.

    `is_cut_off`: it is not held any more. `is_fenced`: it may be, but its call had to stop, for the lease is over.
    """

    attempt: Attempt
    task: asyncio.Task[Any] | None = None
    is_concluding: bool = False
    is_cut_off: bool = False
    is_fenced: bool = False

    def uncancel(self) -> None:
        """Take back the cancellation of its task that cutting it off has made."""
        if self.task is not None:
            self.task.uncancel()


class Claims:
    """Belongs to one event loop. `attempts`, `is_here` and the counters may be read from any thread.

    `told` hears every change, as (kind, place, number): `claiming` (number 0), `unclaimed`, `begun`, `acting` (it is
    the first that calls a write) and `still` (it was the last whose call may act), `concluding`, `ended`, `abandoned`
    (ended without an outcome, by a fault) and `late`. `still` comes from any thread.
    """

    def __init__(
        self,
        lease: Lease | None = None,
        told: Callable[[str, Place, int], None] = lambda *_: None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Without a `lease` there is none to lose. `clock` counts seconds.

        `ends_in` may be set before the first claim: it is told in how many seconds a job may run out of time that is
        carried out here.
        """
        self._lease = lease
        self._told = told
        self.ends_in: Callable[[float], None] = lambda _: None
        self._clock = clock
        self._asked: dict[object, float] = {}
        self._claiming: dict[Place, list[Claiming]] = {}
        self._taking: dict[UUID, list[_Taking]] = {}
        self._flights: dict[Attempt, Flight] = {}
        self._abandoned: set[Attempt] = set()
        self.late_outcomes = 0
        self.writes = Writes(lambda kind, attempt: told(kind, attempt.place, attempt.number))

    # From any thread: looking into a dict or copying its values is one step of the interpreter. The rest: on the loop

    @property
    def in_flight(self) -> int:
        """How many attempts are being carried out."""
        return len(self._flights)

    def attempts(self) -> list[Attempt]:
        """Return the attempts that are being carried out."""
        return [flight.attempt for flight in list(self._flights.values())]

    def is_here(self, attempt: Attempt) -> bool:
        """Return whether the attempt runs here, a call left behind too, or may be the answer to a claim or a take."""
        # In this order: an answer puts the attempt among the flights before it ends the waiting for it.
        return (
            attempt.job_id in self._taking
            or attempt.place in self._claiming
            or attempt in self._flights
            or self.writes.is_acting(attempt)
        )

    def was_called(self, attempt: Attempt) -> bool:
        """Return whether an attempt that is not here any more was begun here, and ended without an outcome."""
        return attempt in self._abandoned

    @property
    def is_stalled(self) -> bool:
        """True while a claim waits for its answer for so long that nothing more should be claimed here."""
        now = self._clock()
        return any(now - asked > _STALLED_SECONDS for asked in list(self._asked.values()))

    @contextmanager
    def claiming(self, places: Sequence[Place]) -> Iterator[list[Claiming]]:
        """Mark places as being claimed, until the answer has come and `hold` was called, or there is none."""
        asked = [Claiming(place) for place in places]
        for claiming in asked:
            self._told("claiming", claiming.place, 0)
            self._claiming.setdefault(claiming.place, []).append(claiming)
        try:
            yield asked
        finally:
            for claiming in asked:
                _remove(self._claiming, claiming.place, claiming)
                if not claiming.is_begun:
                    self._told("unclaimed", claiming.place, 0)

    def hold(self, claims: Sequence[Claim], asked: Sequence[Claiming]) -> None:
        """Count the attempts that a claim has brought as in flight; `begin` is next for each, or `drop`."""
        by_place = {claiming.place: claiming for claiming in asked}
        for claim in claims:
            claiming = by_place[attempt_of(claim).place]
            claiming.is_begun = True
            self._hold(claim, is_cut_off=claiming.is_void)

    def begin(self, claim: Claim) -> Flight | None:
        """Carry out what is held in the current task; None when it was cut off already."""
        flight = self._flights[attempt_of(claim)]
        if flight.is_cut_off:
            self.end(flight, is_settled=True)
            return None
        flight.task = asyncio.current_task()
        return flight

    def drop(self, claim: Claim) -> None:
        """Forget what is held and was not begun."""
        self.end(self._flights[attempt_of(claim)], is_settled=True)

    def _hold(self, claim: Claim, *, is_cut_off: bool) -> None:
        flight = Flight(attempt_of(claim), is_cut_off=is_cut_off)
        self._flights[flight.attempt] = flight
        if isinstance(claim, StageClaim):
            self.ends_in(min(claim.limits.job_timeout_seconds, claim.limits.plan_timeout_seconds))
        self._told("begun", flight.attempt.place, flight.attempt.number)

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
        for place, asked in self._claiming.items():
            if job_of(place) == job_id:
                for claiming in asked:
                    claiming.is_void = True
        for taking in self._taking.get(job_id, ()):
            taking.is_void = True
        self.cut_off([attempt for attempt in self._flights if attempt.job_id == job_id])

    def cut_off(self, attempts: Collection[Attempt]) -> None:
        """Cancel attempts that this worker does not hold any more, those that conclude excepted."""
        for attempt in attempts:
            flight = self._flights.get(attempt)
            if flight is None or flight.is_concluding or flight.is_cut_off:
                continue
            flight.is_cut_off = True
            if flight.task is not None:
                flight.task.cancel()
            _log.warning("attempt_cut_off", extra={"job": str(attempt.job_id), "attempt": attempt.number})

    def fence(self) -> None:
        """Stop the calls of writes, for the lease is over: others may soon do the same."""
        for attempt in self.writes.acting:
            flight = self._flights.get(attempt)
            if flight is None or flight.is_concluding or flight.is_cut_off or flight.is_fenced:
                continue
            flight.is_fenced = True
            if flight.task is not None:
                flight.task.cancel()
            _log.warning("attempt_fenced", extra={"job": str(attempt.job_id), "attempt": attempt.number})

    def owner(self, claim: StepClaim, is_held: Callable[[], Awaitable[bool]]) -> Owner:
        """Return the right of a call of a step to act; `is_held` asks the database. Call it on the event loop."""
        return Owner(claim, self._lease, self.writes, is_held)

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

    async def _allow_claim(self) -> None:
        if self._lease is not None and not self._lease.is_fresh:
            _log.warning("lease_awaited", extra={"attempt": None})
            await self._soon_fresh(self._lease)

    async def _allow_conclusion(self, claim: Claim) -> None:
        if self._lease is not None and not self._lease.is_fresh:
            _log.warning("lease_awaited", extra={"attempt": claim.attempt})
            await self._lease.until_fresh()
        flight = self._flights.get(attempt_of(claim))
        if flight is not None and not flight.is_concluding:
            flight.is_concluding = True
            self._told("concluding", flight.attempt.place, flight.attempt.number)

    async def _take_over(self, claim: Claim, concluding: Awaitable[TransitionResult]) -> TransitionResult:
        """Await a conclusion that may bring claims, and hold them."""
        attempt, taking = attempt_of(claim), _Taking()
        self._taking.setdefault(attempt.job_id, []).append(taking)
        try:
            moved = await concluding
            # Whoever has stopped waiting will not begin it: the next comparisons find it held for nothing.
            if attempt in self._flights:
                for taken in moved.taken:
                    self._hold(taken, is_cut_off=taking.is_void)
        finally:
            _remove(self._taking, attempt.job_id, taking)
        return moved

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
        if name in _CONCLUSIONS:
            return partial(self._conclude, method)
        if name in _CLAIMS:
            return partial(self._claim, method)
        return method

    async def _claim(self, method: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        await self._claims._allow_claim()
        with self._claims._asking():
            return await method(*arguments)

    async def _conclude(self, method: Callable[..., Awaitable[Any]], claim: Claim, *rest: Any, **named: Any) -> Any:
        await self._claims._allow_conclusion(claim)
        concluding = method(claim, *rest, **named)
        return await (concluding if named.get("take") is None else self._claims._take_over(claim, concluding))


def attempt_of(claim: Claim) -> Attempt:
    """Return the attempt that a claim is the right to."""
    return Attempt(claim.ref if isinstance(claim, StepClaim) else claim.job_id, claim.attempt)


def _remove(lists: dict[K, list[V]], key: K, item: V) -> None:
    items = lists[key]
    items.remove(item)
    if not items:
        del lists[key]
