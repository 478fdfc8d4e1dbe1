"""A chain: one attempt after the other in one slot, each claimed by the commit that ended the one before.

A step is claimed only when there is a slot for it, because the time of a claimed step runs (`slots.py`). Of what a
transition has made ready, a process keeps its share, and the rest goes out in messages (`own_share` and what follows
it, which are pure). Steps of the `io` pool wait more than they compute, so a few of them are not worth a message; of
many, each worker gets its part, in a message for several steps. A `cpu` step keeps a process busy and has a message
of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from uuid import UUID

from planq.shared.kernel.claims import Claim, StepClaim
from planq.shared.kernel.follow_ups import after_step
from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.job_store import ClaimRequest, TransitionResult, UnitStep
from planq.shared.kernel.states import STAGES, TERMINAL_JOB, Pool
from planq.shared.kernel.steps import PlannedStep
from planq.shared.kernel.usage import ModelCall
from planq.shared.kernel.wakes import Origin, Wake
from planq.shared.platform.errors import ErrorRecord
from planq.worker.engine.running import RunningAttempt
from planq.worker.engine.slots import ANYBODY, Party, Slots

T = TypeVar("T")

Units = Mapping[StepRef, PlannedStep]
"""The steps that go on with a unit, each by the step before it."""

_CONCLUDE_SECONDS = 1.0
"""What a conclusion under way gets when the process stops, before its work is given back in its place. Both writes
are fenced, so only one of them lands."""


@dataclass(frozen=True, slots=True)
class WakeOutcome:
    """The outcome of carrying out one wake-up.

    `attempt` is None when there was nothing to do: the claim found the work taken, over or not yet due. `error` is
    what the attempt failed with. `taken` and `wakes` are what it led to: what this process has claimed already, and
    what anybody may carry out; `origin` is that of the first of `taken`. `poisoned` says that a thread which cannot
    be stopped still runs a tool here, so that a `cpu` process should be replaced. `is_late` says that the outcome was
    rejected, because the attempt had ended otherwise (taken back, cancelled, expired). `steps` counts the attempts of
    a wake-up for several steps. `unit` are the further steps of its unit. `has_ended`: with the attempt, its job has.
    """

    attempt: int | None = None
    wakes: Sequence[Wake] = ()
    taken: Sequence[Claim] = ()
    error: ErrorRecord | None = None
    poisoned: bool = False
    is_late: bool = False
    steps: int | None = None
    unit: Sequence[UnitStep] = ()
    origin: Origin | None = None
    has_ended: bool = False

    @property
    def text(self) -> str:
        """Return the outcome in a word or two, as Flower shows it."""
        if self.steps:
            return f"{self.steps} steps"
        if self.attempt is None:
            return "nothing to do"
        if self.is_late:
            return "rejected: too late"
        return "succeeded" if self.error is None else f"failed: {self.error.code}"

    @classmethod
    def by(
        cls,
        claim: Claim,
        result: TransitionResult,
        *,
        round: int | None = None,
        error: ErrorRecord | None = None,
        poisoned: bool = False,
        unit: Sequence[UnitStep] = (),
    ) -> WakeOutcome:
        """Return the outcome of an attempt from its last transition; one that did not land led to nothing.

        What it made ready is in `round`, None for its own; `unit` are the further steps of its unit.
        """
        if not result.applied:
            return cls(claim.attempt, error=error, poisoned=poisoned, is_late=True)
        end = unit[-1].claim if unit else claim
        ref = end.ref
        wakes: Sequence[Wake] = ()
        if result.ready or result.children or result.job_status in STAGES:
            wakes = after_step(ref if round is None else replace(ref, round=round), result, end)
        origin = Origin(end, len(result.taken) + len(wakes)) if result.taken else None
        has_ended = result.job_status in TERMINAL_JOB
        return cls(claim.attempt, wakes, result.taken, error, poisoned, unit=unit, origin=origin, has_ended=has_ended)


def after_release(claim: Claim, result: TransitionResult) -> list[Wake]:
    """Return the wake-ups after a claim was given back: the next attempt, or what a skip leads to."""
    return [
        replace(wake, attempt=claim.attempt + 1) if wake.ref == claim.ref else wake
        for wake in after_step(claim.ref, result, claim)
    ]


@dataclass(eq=False, slots=True)
class Chain:
    """What is carried out in one slot, and how it may go on. Its slots are those of its `party`.

    `may_go_on` says whether a follow-up may be taken over here now, `workers` how many workers of the pool there are.
    `held` counts its slots, `asked` is for how many wake-ups it claimed last. While `is_asking`, it waits for the
    answer to a claim, or has not begun. `units` are those of its plan; `known` is what its executor knows already of
    the step after a unit, with the claim that the unit's commit brings. `calls` are the model calls
    of the stage at hand that are not recorded yet.
    """

    pool: Pool
    slots: Slots
    may_go_on: Callable[[], bool]
    workers: Callable[[], int]
    held: int = 0
    party: Party = ANYBODY
    asked: int = 0
    is_asking: bool = True
    is_stopped: bool = False
    running: RunningAttempt | None = None
    units: Units = field(default_factory=dict)
    known: tuple[StepClaim, Any] | None = None
    calls: list[ModelCall] = field(default_factory=list)

    def take(self, ready: int | None = None) -> ClaimRequest | None:
        """Return what the next conclusion takes over, None for nothing; may be asked again for the same one.

        `ready` is the most steps of this pool that it makes ready, None where nobody knows. A slot is kept for each.
        """
        if self.held > 1:
            self.keep(1)
        if not self.goes_on:
            return None
        if ready is None:
            self.held += self.slots.reserve(LOCAL_FAN_OUT - 1, self.party)
        elif ready > 1:
            share = own_share(ready, 1 + self.slots.free(self.party), self.workers())
            self.held += self.slots.reserve(share - 1, self.party)
        return ClaimRequest(self.pool, steps=self.held)

    @property
    def goes_on(self) -> bool:
        """True while something more may be begun here, and no other tenant waits for the slot."""
        return not self.is_stopped and self.may_go_on() and not self.slots.is_wanted_from(self.party)

    def keep(self, count: int) -> None:
        if self.held > count:
            self.slots.release(self.held - count, self.party)
            self.held = count

    def become(self, party: Party) -> None:
        """Hold the slots for another party: what is carried out next differs in kind, or is known by now."""
        if party != self.party:
            self.slots.hand_over(self.held, self.party, party)
            self.party = party

    @property
    def is_open(self) -> bool:
        """True while the answer of the database is awaited, which must be known before anything is given back."""
        return self.is_asking or (self.running is not None and self.running.is_concluding)

    def stop(self, task: asyncio.Task[Any]) -> None:
        self.is_stopped = True
        if not self.is_open:
            task.cancel()


class Work:
    """Everything that goes on for one message: its chains, and what they send."""

    def __init__(self) -> None:
        self._chains: dict[asyncio.Task[Any], Chain] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._errors: list[BaseException] = []

    def begin(self, chain: Chain, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a chain; when it has ended, however it ended, its slots are given back."""
        task = self.spawn(work)
        self._chains[task] = chain
        return task

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run something that is not broken off when the chains are stopped."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def done(self) -> None:
        """Return once all has ended; raises the first error that anything ended with."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        if self._errors:
            raise self._errors[0]

    async def stop(self, timeout_seconds: float) -> None:
        """Stop all chains, and wait as long as that until they have given back what they carried out.

        What then still waits for the database goes on by itself.
        """
        for task, chain in list(self._chains.items()):
            chain.stop(task)
        await self._ended_within(min(_CONCLUDE_SECONDS, timeout_seconds))
        for task, chain in list(self._chains.items()):
            if chain.is_open and not chain.is_asking:
                task.cancel()
        await self._ended_within(timeout_seconds - _CONCLUDE_SECONDS)

    async def _ended_within(self, timeout_seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                while self._tasks:
                    await asyncio.wait(self._tasks)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        chain = self._chains.pop(task, None)
        if chain is not None:
            chain.keep(0)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._errors.append(error)


LOCAL_FAN_OUT = 8
"""So many steps stay together: a message more costs as much as carrying out several that only wait."""

_MOST = 100
"""Steps in one message. A process that takes more than it has slots for would keep the rest from others."""


def own_share(ready: int, free: int, workers: int) -> int:
    """Return how many of `ready` steps this process takes: its part as one of `workers`, as far as it has slots."""
    part = -(-ready // max(workers, 1))
    return max(0, min(ready, free, max(part, LOCAL_FAN_OUT)))


def in_messages(wakes: Sequence[Wake], workers: int) -> list[Wake]:
    """Return wake-ups as they are published: the `io` steps of a round in even parts for the other workers."""
    messages: list[Wake] = []
    rounds: dict[tuple[UUID, int], list[Wake]] = {}
    for wake in wakes:
        if wake.pool == Pool.IO and not wake.ref.is_stage:
            rounds.setdefault((wake.ref.job_id, wake.ref.round), []).append(wake)
        else:
            messages.append(wake)
    for steps in rounds.values():
        size = min(_MOST, max(LOCAL_FAN_OUT, -(-len(steps) // max(workers - 1, 1))))
        messages += [together(steps[start : start + size]) for start in range(0, len(steps), size)]
    return messages


def together(wakes: Sequence[Wake]) -> Wake:
    """Return one wake-up for several steps of one round and pool, in a row of their group.

    Raises IndexError for none.
    """
    return replace(wakes[0], more=tuple((wake.ref.index, wake.name) for wake in wakes[1:]))
