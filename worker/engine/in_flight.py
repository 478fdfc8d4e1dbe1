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
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any, Concatenate, ParamSpec, TypeVar
from uuid import UUID

from planq.shared.domain.errors import DatabaseUnavailable
from planq.shared.domain.jobs.states import Effect
from planq.shared.ports.jobs.claims import StageClaim, StepClaim
from planq.shared.ports.jobs.store import JobStore, TransitionResult
from planq.shared.ports.jobs.sweep import Attempt, Place, job_of
from planq.worker.engine.fence import Lease
from planq.worker.engine.writes import Owner, Writes

Claim = StageClaim | StepClaim

C = TypeVar("C", StageClaim, StepClaim)
K = TypeVar("K")
P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V")

Concluding = Callable[Concatenate[C, P], Awaitable[T]]
ConcludingCall = Callable[Concatenate[C, P], Coroutine[Any, Any, T]]

_log = logging.getLogger("planq.engine")

_FRESH_SECONDS = 1.0
"""What a claim waits for a lease that is not fresh: a worker that was frozen renews it in less."""

_STALLED_SECONDS = 1.5
"""When a claim has waited so long for its answer, this process may have lost the database without a word. TCP notices
after ten times as long, and until then every wake-up that it takes would lie here, while others stand idle."""


@dataclass(eq=False, slots=True)
class PendingClaim:
    """A claim whose answer is awaited. `is_void`: its job was cancelled meanwhile; `is_begun`: it led to work."""

    place: Place
    is_void: bool = False
    is_begun: bool = False


@dataclass(eq=False, slots=True)
class _PendingConclusion:
    """A conclusion whose answer may bring claims. `is_void`: its job was cancelled meanwhile."""

    is_void: bool = False


@dataclass(eq=False, slots=True)
class RunningAttempt:
    """An attempt in flight, since `held_at`, and the asyncio task that carries it out, None before it is begun.

    `is_cut_off`: it is not held any more. `is_fenced`: it may be, but its call had to stop, for the lease is over.
    `is_seen_through`: while its tool is called it is not cut off, for a conversation is told the outcome.
    """

    attempt: Attempt
    task: asyncio.Task[Any] | None = None
    held_at: float = 0.0
    is_concluding: bool = False
    is_cut_off: bool = False
    is_fenced: bool = False
    is_seen_through: bool = False

    def uncancel(self) -> None:
        """Take back the cancellation of its task that cutting it off has made."""
        if self.task is not None:
            self.task.uncancel()


class InFlightWork:
    """Belongs to one event loop. `attempts`, `is_here` and the counters may be read from any thread.

    `on_change` is called with every change, as (kind, place, number): `claiming` (number 0), `unclaimed`, `begun`,
    `acting` (it is the first that calls a write) and `still` (it was the last whose call may act), `concluding`,
    `ended`, `abandoned` (ended without an outcome, by a fault) and `late`. `still` comes from any thread.
    """

    def __init__(
        self,
        lease: Lease | None = None,
        on_change: Callable[[str, Place, int], None] = lambda *_: None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Without a `lease` there is none to lose. `clock` counts seconds.

        `ends_in` may be set before the first claim: it is called with the seconds after which a job may run out of
        time that is carried out here.
        """
        self._lease = lease
        self._on_change = on_change
        self.ends_in: Callable[[float], None] = lambda _: None
        self._clock = clock
        self._asked: dict[object, float] = {}
        self._claiming: dict[Place, list[PendingClaim]] = {}
        self._taking: dict[UUID, list[_PendingConclusion]] = {}
        self._running: dict[Attempt, RunningAttempt] = {}
        self._abandoned: set[Attempt] = set()
        self.late_outcomes = 0
        self.writes = Writes(lambda kind, attempt: on_change(kind, attempt.place, attempt.number))

    # From any thread: looking into a dict or copying its values is one step of the interpreter. The rest: on the loop

    @property
    def count(self) -> int:
        """How many attempts are being carried out."""
        return len(self._running)

    def attempts(self) -> list[Attempt]:
        """Return the attempts that are being carried out."""
        return [running.attempt for running in list(self._running.values())]

    def ages(self) -> dict[Attempt, float]:
        """Return for how many seconds the attempts have been held."""
        now = self._clock()
        return {running.attempt: now - running.held_at for running in list(self._running.values())}

    def is_here(self, attempt: Attempt) -> bool:
        """Return whether the attempt runs here, a call left behind too, or may be the answer to a claim or a take."""
        # In this order: an answer puts the attempt among the running ones before it ends the waiting for it.
        return (
            attempt.job_id in self._taking
            or attempt.place in self._claiming
            or attempt in self._running
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
    def claiming(self, places: Sequence[Place]) -> Iterator[list[PendingClaim]]:
        """Mark places as being claimed, until the answer has come and `hold` was called, or there is none."""
        asked = [PendingClaim(place) for place in places]
        for claiming in asked:
            self._on_change("claiming", claiming.place, 0)
            self._claiming.setdefault(claiming.place, []).append(claiming)
        try:
            yield asked
        finally:
            for claiming in asked:
                _remove(self._claiming, claiming.place, claiming)
                if not claiming.is_begun:
                    self._on_change("unclaimed", claiming.place, 0)

    def hold(self, claims: Sequence[Claim], asked: Sequence[PendingClaim]) -> None:
        """Count the attempts that a claim has brought as in flight; `begin` is next for each, or `drop`."""
        by_place = {claiming.place: claiming for claiming in asked}
        for claim in claims:
            claiming = by_place[attempt_of(claim).place]
            claiming.is_begun = True
            self._hold(claim, is_cut_off=claiming.is_void)

    def begin(self, claim: Claim) -> RunningAttempt | None:
        """Carry out what is held in the current task; None when it was cut off already."""
        running = self._running[attempt_of(claim)]
        if running.is_cut_off:
            self.end(running, is_settled=True)
            return None
        running.task = asyncio.current_task()
        return running

    def drop(self, claim: Claim) -> None:
        """Forget what is held and was not begun."""
        self.end(self._running[attempt_of(claim)], is_settled=True)

    def _hold(self, claim: Claim, *, is_cut_off: bool) -> None:
        is_unsafe_turn = isinstance(claim, StepClaim) and reports_late_outcome(claim)
        running = RunningAttempt(
            attempt_of(claim), held_at=self._clock(), is_cut_off=is_cut_off, is_seen_through=is_unsafe_turn
        )
        self._running[running.attempt] = running
        if isinstance(claim, StageClaim):
            self.ends_in(min(claim.limits.job_timeout_seconds, claim.limits.plan_timeout_seconds))
        self._on_change("begun", running.attempt.place, running.attempt.number)

    def end(self, running: RunningAttempt, *, is_settled: bool) -> None:
        """Forget an attempt; `is_settled` False when it ended by a fault and perhaps still counts as running."""
        self._running.pop(running.attempt, None)
        if not is_settled:
            self._abandoned.add(running.attempt)
        self._on_change("ended" if is_settled else "abandoned", running.attempt.place, running.attempt.number)

    def count_late(self, attempt: Attempt) -> None:
        """Count an outcome that was rejected because its attempt had ended otherwise."""
        self.late_outcomes += 1
        self._on_change("late", attempt.place, attempt.number)

    def cut_off_job(self, job_id: UUID) -> None:
        """Cut off whatever runs for a job that was cancelled, and what is just being claimed for it."""
        for place, asked in self._claiming.items():
            if job_of(place) == job_id:
                for claiming in asked:
                    claiming.is_void = True
        for taking in self._taking.get(job_id, ()):
            taking.is_void = True
        self.cut_off([attempt for attempt in self._running if attempt.job_id == job_id])

    def cut_off(self, attempts: Collection[Attempt]) -> None:
        """Cancel attempts that this worker does not hold any more, those that conclude excepted."""
        for attempt in attempts:
            running = self._running.get(attempt)
            if running is None or running.is_concluding or running.is_cut_off:
                continue
            if running.is_seen_through and self.writes.is_acting(attempt):
                continue
            running.is_cut_off = True
            if running.task is not None:
                running.task.cancel()
            _log.warning("attempt_cut_off", extra={"job": str(attempt.job_id), "attempt": attempt.number})

    def fence(self) -> None:
        """Stop the calls of writes, for the lease is over: others may soon do the same."""
        for attempt in self.writes.acting:
            running = self._running.get(attempt)
            if running is None or running.is_concluding or running.is_cut_off or running.is_fenced:
                continue
            running.is_fenced = True
            if running.task is not None:
                running.task.cancel()
            _log.warning("attempt_fenced", extra={"job": str(attempt.job_id), "attempt": attempt.number})

    def owner(self, claim: StepClaim, is_held: Callable[[], Awaitable[bool]]) -> Owner:
        """Return the right of a call of a step to act; `is_held` asks the database. Call it on the event loop."""
        return Owner(claim, self._lease, self.writes, is_held)

    def keep_abandoned(self, held: Collection[Attempt]) -> None:
        """Forget abandoned attempts that the database has settled: all but those in `held`."""
        self._abandoned.intersection_update(held)

    def guard(self, store: JobStore) -> JobStore:
        """Return the store for the attempts that are carried out here (`GuardedStore`)."""
        return GuardedStore(store, self)

    def claims(self, method: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        """Return a claim of the store that waits for a fresh lease, a moment at most.

        It raises `DatabaseUnavailable` where nothing should be claimed here now: the lease cannot be renewed, or an
        earlier claim waits for its answer for too long.
        """

        async def claim(*args: P.args, **kwargs: P.kwargs) -> T:
            await self._allow_claim()
            with self._asking():
                return await method(*args, **kwargs)

        return claim

    def concludes(self, method: Concluding[C, P, T]) -> ConcludingCall[C, P, T]:
        """Return a conclusion of the store that waits for a fresh lease and marks its attempt as concluding."""

        async def conclude(claim: C, /, *args: P.args, **kwargs: P.kwargs) -> T:
            await self._allow_conclusion(claim)
            return await method(claim, *args, **kwargs)

        return conclude

    def takes_over(self, method: Concluding[C, P, TransitionResult]) -> ConcludingCall[C, P, TransitionResult]:
        """Return a conclusion as `concludes` does; the claims that a `take` brings with it are held."""

        async def conclude(claim: C, /, *args: P.args, **kwargs: P.kwargs) -> TransitionResult:
            await self._allow_conclusion(claim)
            concluding = method(claim, *args, **kwargs)
            return await (concluding if kwargs.get("take") is None else self._take_over(claim, concluding))

        return conclude

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
        running = self._running.get(attempt_of(claim))
        if running is not None and not running.is_concluding:
            running.is_concluding = True
            self._on_change("concluding", running.attempt.place, running.attempt.number)

    async def _take_over(self, claim: Claim, concluding: Awaitable[TransitionResult]) -> TransitionResult:
        """Await a conclusion that may bring claims, and hold them."""
        attempt, taking = attempt_of(claim), _PendingConclusion()
        self._taking.setdefault(attempt.job_id, []).append(taking)
        try:
            result = await concluding
            # A caller that has stopped waiting will not begin it: the next comparisons find it held for nothing.
            if attempt in self._running:
                for taken in result.taken:
                    self._hold(taken, is_cut_off=taking.is_void)
        finally:
            _remove(self._taking, attempt.job_id, taking)
        return result

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


class GuardedStore:
    """`JobStore` for the attempts carried out here: claims and conclusions wait while the lease is not fresh.

    So a worker that was frozen first learns what it has lost. Every method of the port is named here as a claim, as
    the conclusion of an attempt, or as neither; the type checker reports one that is missing.
    """

    def __init__(self, store: JobStore, work: InFlightWork) -> None:
        self.claim_stage = work.claims(store.claim_stage)
        self.claim_step = work.claims(store.claim_step)
        self.claim_steps = work.claims(store.claim_steps)
        self.claim_suspects = work.claims(store.claim_suspects)
        self.accept_plan = work.takes_over(store.accept_plan)
        self.refuse_plan = work.takes_over(store.refuse_plan)
        self.chain_tool = work.takes_over(store.chain_tool)
        self.succeed_step = work.takes_over(store.succeed_step)
        self.fail_step = work.takes_over(store.fail_step)
        self.end_job = work.concludes(store.end_job)
        self.keep_end = work.concludes(store.keep_end)
        self.end_kept = work.concludes(store.end_kept)
        self.retry_stage = work.concludes(store.retry_stage)
        self.suspend_step = work.concludes(store.suspend_step)
        self.delegate_step = work.concludes(store.delegate_step)
        self.ask_step = work.concludes(store.ask_step)
        self.fire_timer = store.fire_timer
        self.hand_on_steps = store.hand_on_steps
        self.report_progress = store.report_progress
        self.release_stage = store.release_stage
        self.release_step = store.release_step
        self.reserve = store.reserve
        self.charge_step = store.charge_step
        self.warn = store.warn
        self.note_step = store.note_step
        self.keep_traceback = store.keep_traceback
        self.record_calls = store.record_calls
        self.children = store.children
        self.approvals = store.approvals
        self.steps_to_ask_about = store.steps_to_ask_about
        self.serve_end = store.serve_end
        self.note_outcome = store.note_outcome
        self.history = store.history
        self.holds_step = store.holds_step


def attempt_of(claim: Claim) -> Attempt:
    """Return the attempt that a claim is the right to."""
    return Attempt(claim.ref if isinstance(claim, StepClaim) else claim.job_id, claim.attempt)


def reports_late_outcome(claim: StepClaim) -> bool:
    """Return whether a conversation is told the outcome of a call also where its turn was cancelled meanwhile."""
    return claim.effect is Effect.UNSAFE and claim.conversation_id is not None


def _remove(lists: dict[K, list[V]], key: K, item: V) -> None:
    items = lists[key]
    items.remove(item)
    if not items:
        del lists[key]
