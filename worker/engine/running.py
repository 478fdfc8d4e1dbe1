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
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from time import monotonic
from typing import Any, ParamSpec, TypeVar, cast
from uuid import UUID

from planq.shared.kernel.claims import Claim
from planq.shared.kernel.ids import Attempt, StepRef
from planq.shared.kernel.states import Effect
from planq.shared.platform.errors import DatabaseUnavailable
from planq.worker.engine.lease import Lease, Writes

_log = logging.getLogger("planq.engine")

P = ParamSpec("P")
T = TypeVar("T")

_FRESH_SECONDS = 1.0
"""What a claim waits for a lease that is not fresh: a worker that was frozen renews it in less."""

_STALLED_SECONDS = 1.5
"""When a claim has waited so long for its answer, this process may have lost the database without a word. TCP notices
after ten times as long, and until then every wake-up that it takes would lie here, while others stand idle."""


class AttemptState(Enum):
    """How far an attempt in flight has come, and whether it is still this worker's.

    CLAIMING: the answer to its claim is awaited. HELD: it is this worker's, and nothing of it runs. FENCED: its call
    had to stop because the lease is over; it may still be this worker's, and is held again once the lease is fresh.
    CONCLUDING: its outcome is being written, and the database decides whether that lands. CANCELLED: the same, but
    its job was cancelled meanwhile, so nothing that the write brings is begun. CUT_OFF: it is not this worker's any
    more, for good.
    """

    CLAIMING = "claiming"
    HELD = "held"
    RUNNING = "running"
    FENCED = "fenced"
    CONCLUDING = "concluding"
    CANCELLED = "cancelled"
    CUT_OFF = "cut off"


_NEXT: Mapping[AttemptState, Collection[AttemptState]] = {
    AttemptState.CLAIMING: (AttemptState.CUT_OFF,),
    AttemptState.HELD: (AttemptState.RUNNING, AttemptState.CONCLUDING, AttemptState.CUT_OFF),
    AttemptState.RUNNING: (AttemptState.FENCED, AttemptState.CONCLUDING, AttemptState.CUT_OFF),
    AttemptState.FENCED: (AttemptState.HELD, AttemptState.CUT_OFF),
    AttemptState.CONCLUDING: (AttemptState.CANCELLED,),
    AttemptState.CANCELLED: (),
    AttemptState.CUT_OFF: (),
}
"""The states that may follow each. What concludes is not stopped: its write is fenced, and may just have landed."""


@dataclass(eq=False, slots=True)
class PendingClaim:
    """A claim whose answer is awaited; CUT_OFF where its job was cancelled meanwhile."""

    ref: StepRef
    state: AttemptState = AttemptState.CLAIMING


@dataclass(eq=False, slots=True)
class RunningAttempt:
    """An attempt in flight, since `held_at`, and the asyncio task that carries it out, None before it is begun."""

    attempt: Attempt
    claim: Claim
    state: AttemptState = AttemptState.HELD
    held_at: float = 0.0
    task: asyncio.Task[Any] | None = None

    @property
    def is_concluding(self) -> bool:
        """True while its outcome is being written: nothing else may end it meanwhile."""
        return self.state in (AttemptState.CONCLUDING, AttemptState.CANCELLED)

    def move(self, state: AttemptState) -> bool:
        """Go to a state, and cancel the task where that stops it; False, and no change, where it may not follow."""
        if state not in _NEXT[self.state]:
            return False
        self.state = state
        if self.task is not None and state in (AttemptState.FENCED, AttemptState.CUT_OFF):
            self.task.cancel()
        return True

    def uncancel(self) -> None:
        """Take back the cancellation of its task that stopping it has made."""
        if self.task is not None:
            self.task.uncancel()


class InFlightWork:
    """Belongs to one event loop. `attempts`, `is_here` and the counters may be read from any thread.

    `on_change` is called with every change, as (kind, ref, number): `claiming` (number 0), `unclaimed`, `begun`,
    `acting` (it is the first that calls a write) and `still` (it was the last whose call may act), `concluding`,
    `ended`, `abandoned` (ended without an outcome, by a fault) and `late`. `still` comes from any thread.
    """

    def __init__(
        self,
        lease: Lease | None = None,
        on_change: Callable[[str, StepRef, int], None] = lambda *_: None,
        clock: Callable[[], float] = monotonic,
        on_acting: Callable[[bool], None] = lambda _: None,
    ) -> None:
        """Without a `lease`, which the `Owner` of each call asks as well, there is none to lose. `clock` in seconds.

        `on_acting` is called from any thread, with whether calls of writes may act. `ends_in` may be set before the
        first claim: it is called with the seconds after which a job may run out of time that is carried out here.
        """
        self.lease = lease
        self._on_change = on_change
        self.ends_in: Callable[[float], None] = lambda _: None
        self._clock = clock
        self._asked: dict[object, float] = {}
        self._unknown_claims = 0
        self._claiming: dict[tuple[UUID, int], list[PendingClaim]] = {}
        self._taking: dict[UUID, list[RunningAttempt]] = {}
        self._running: dict[Attempt, RunningAttempt] = {}
        self._abandoned: set[Attempt] = set()
        self.late_outcomes = 0

        def note(kind: str, attempt: Attempt) -> None:
            on_change(kind, attempt.ref, attempt.number)
            on_acting(kind == "acting")

        self.writes = Writes(note)

    # From any thread: looking into a dict or copying its values is one step of the interpreter. The rest: on the loop

    @property
    def count(self) -> int:
        return len(self._running)

    def attempts(self) -> list[Attempt]:
        return [running.attempt for running in list(self._running.values())]

    def ages(self) -> dict[Attempt, float]:
        now = self._clock()
        return {running.attempt: now - running.held_at for running in list(self._running.values())}

    def is_here(self, attempt: Attempt) -> bool:
        """Return whether the attempt runs here, a call left behind too, or may be the answer to a claim or a take."""
        # In this order: an answer puts the attempt among the running ones before it ends the waiting for it.
        return (
            self._unknown_claims > 0
            or attempt.job_id in self._taking
            or attempt.ref.key in self._claiming
            or attempt in self._running
            or self.writes.is_acting(attempt)
        )

    def was_called(self, attempt: Attempt) -> bool:
        return attempt in self._abandoned

    @property
    def is_stalled(self) -> bool:
        """True while a claim waits for its answer for so long that nothing more should be claimed here."""
        oldest = next(iter(list(self._asked.values())), None)  # they are in the order in which they were asked
        return oldest is not None and self._clock() - oldest > _STALLED_SECONDS

    @contextmanager
    def claiming(self, refs: Sequence[StepRef]) -> Iterator[list[PendingClaim]]:
        """Mark addresses as being claimed, until the answer has come and `hold` was called, or there is none."""
        asked = list(map(PendingClaim, refs))
        for claiming in asked:
            self._on_change("claiming", claiming.ref, 0)
            self._claiming.setdefault(claiming.ref.key, []).append(claiming)
        try:
            yield asked
        finally:
            for claiming in asked:
                if self._end_claim(claiming):
                    self._on_change("unclaimed", claiming.ref, 0)

    @contextmanager
    def claiming_any(self) -> Iterator[None]:
        """Mark that a claim without addresses is asked for: until it ends, whatever is held may be its answer."""
        self._unknown_claims += 1
        try:
            yield
        finally:
            self._unknown_claims -= 1

    def hold(self, claims: Sequence[Claim], asked: Sequence[PendingClaim] = ()) -> None:
        """Count the attempts that a claim has brought as in flight; `begin` is next for each, or `drop`."""
        by_key = {claiming.ref.key: claiming for claiming in asked}
        for claim in claims:
            claiming = by_key.get(claim.ref.key)
            is_lost = claiming is not None and claiming.state is AttemptState.CUT_OFF
            self._hold(claim, AttemptState.CUT_OFF if is_lost else AttemptState.HELD)
            if claiming is not None:
                self._end_claim(claiming)

    def _end_claim(self, claiming: PendingClaim) -> bool:
        """Wait for the answer to a claim no more; False where that was said before."""
        pending = self._claiming.get(claiming.ref.key, [])
        if claiming not in pending:
            return False
        pending.remove(claiming)
        if not pending:
            del self._claiming[claiming.ref.key]
        return True

    def begin(self, claim: Claim) -> RunningAttempt | None:
        """Carry out what is held in the current task; None when it was cut off already."""
        running = self._running[Attempt(claim.ref, claim.attempt)]
        if not running.move(AttemptState.RUNNING):
            self.end(running, is_settled=True)
            return None
        running.task = asyncio.current_task()
        return running

    def drop(self, claim: Claim) -> None:
        self.end(self._running[Attempt(claim.ref, claim.attempt)], is_settled=True)

    def _hold(self, claim: Claim, state: AttemptState) -> None:
        attempt = Attempt(claim.ref, claim.attempt)
        self._running[attempt] = RunningAttempt(attempt, claim, state, self._clock())
        self._on_change("begun", attempt.ref, attempt.number)

    def end(self, running: RunningAttempt, *, is_settled: bool) -> None:
        """Forget an attempt; `is_settled` False when it ended by a fault and perhaps still counts as running."""
        self._running.pop(running.attempt, None)
        if not is_settled:
            self._abandoned.add(running.attempt)
        self._on_change("ended" if is_settled else "abandoned", running.attempt.ref, running.attempt.number)

    def count_late(self, attempt: Attempt) -> None:
        """Count an outcome that was rejected because its attempt had ended otherwise."""
        self.late_outcomes += 1
        self._on_change("late", attempt.ref, attempt.number)

    def cut_off_job(self, job_id: UUID) -> None:
        """Cut off whatever runs for a job that was cancelled, and what is just being claimed for it."""
        for (asked_for, _), asked in self._claiming.items():
            if asked_for == job_id:
                for claiming in asked:
                    claiming.state = AttemptState.CUT_OFF
        for concluding in self._taking.get(job_id, ()):
            concluding.move(AttemptState.CANCELLED)
        self.cut_off([attempt for attempt in self._running if attempt.job_id == job_id])

    def cut_off(self, attempts: Collection[Attempt]) -> None:
        """Cancel attempts that this worker does not hold any more, those that conclude excepted.

        While its tool is called, one whose conversation is told the outcome is not cut off either.
        """
        for attempt in attempts:
            running = self._running.get(attempt)
            if running is None or (reports_late_outcome(running.claim) and self.writes.is_acting(attempt)):
                continue
            if running.move(AttemptState.CUT_OFF):
                _log.warning("attempt_cut_off", extra={"job": str(attempt.job_id), "attempt": attempt.number})

    def fence(self) -> None:
        """Stop the calls of writes, for the lease is over: others may soon do the same."""
        for attempt in self.writes.acting:
            running = self._running.get(attempt)
            if running is not None and running.move(AttemptState.FENCED):
                _log.warning("attempt_fenced", extra={"job": str(attempt.job_id), "attempt": attempt.number})

    def keep_abandoned(self, held: Collection[Attempt]) -> None:
        """Forget abandoned attempts that the database has settled: all but those in `held`."""
        self._abandoned.intersection_update(held)

    async def claim(self, ask: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what `ask` claims, once the lease is fresh, for which it waits a moment at most.

        Raises `DatabaseUnavailable` where nothing should be claimed here now: the lease cannot be renewed, or an
        earlier claim waits for its answer for too long.
        """
        if self.lease is not None and not self.lease.is_fresh:
            _log.warning("lease_awaited", extra={"attempt": None})
            try:
                async with asyncio.timeout(_FRESH_SECONDS):
                    await self.lease.until_fresh()
            except TimeoutError:
                raise DatabaseUnavailable("this worker cannot renew its lease, so it claims nothing") from None
        if self.is_stalled:
            raise DatabaseUnavailable("an earlier claim of this worker still waits for its answer")
        mark = object()
        self._asked[mark] = self._clock()
        try:
            return await ask(*args, **kwargs)
        finally:
            del self._asked[mark]

    async def conclude(self, write: Callable[..., Awaitable[T]], claim: Claim, /, *args: Any, **kwargs: Any) -> T:
        """Store by `write` what an attempt came to; return what it returns.

        Waits while the lease is not fresh, so that a worker that was frozen first learns what it has lost. The claims
        that a `take` brings are held.
        """
        if self.lease is not None and not self.lease.is_fresh:
            _log.warning("lease_awaited", extra={"attempt": claim.attempt})
            await self.lease.until_fresh()
        attempt = Attempt(claim.ref, claim.attempt)
        running = self._running.get(attempt) or RunningAttempt(attempt, claim, AttemptState.CONCLUDING)
        if running.move(AttemptState.CONCLUDING):
            self._on_change("concluding", attempt.ref, attempt.number)
        if kwargs.get("take") is None:
            return await write(claim, *args, **kwargs)
        taking = self._taking.setdefault(claim.ref.job_id, [])
        taking.append(running)
        try:
            result = await write(claim, *args, **kwargs)
            # A caller that has stopped waiting will not begin it: the next comparisons find it held for nothing.
            if attempt in self._running:
                is_lost = running.state in (AttemptState.CANCELLED, AttemptState.CUT_OFF)
                for taken in cast(Any, result).taken:
                    self._hold(taken, AttemptState.CUT_OFF if is_lost else AttemptState.HELD)
        finally:
            taking.remove(running)
            if not taking:
                del self._taking[claim.ref.job_id]
        return result

    async def until_held(self) -> None:
        """Return once the lease is fresh, at once where it is; what was lost meanwhile is cut off here instead.

        For the moment before a tool is called: a worker that was frozen between its claim and the call must not begin
        what another one has done by now.
        """
        if self.lease is not None and not self.lease.is_fresh:
            await self.lease.until_fresh()
            await asyncio.sleep(0)  # the order to cut off may still be queued on this loop


def attempt_of(claim: Claim) -> Attempt:
    return Attempt(claim.ref, claim.attempt)


def reports_late_outcome(claim: Claim) -> bool:
    """Return whether a conversation is told the outcome of a call also where its turn was cancelled meanwhile."""
    return claim.effect is Effect.UNSAFE and claim.conversation_id is not None
