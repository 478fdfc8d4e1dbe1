"""A chain: one attempt after the other in one slot, each claimed by the commit that ended the one before.

A step is claimed only when there is a slot for it, because the time of a claimed step runs (`Slots`). Of what a
transition has made ready, a process keeps its share, and the rest goes out in messages (`own_share` and what follows
it, which are pure). Steps of the `io` lane wait more than they compute, so a few of them are not worth a message; of
many, each worker gets its part, in a message for several steps. A `cpu` step keeps a process busy and has a message
of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from uuid import UUID

from shared.domain.errors import ErrorRecord
from shared.domain.jobs.ids import StepRef, group_id, plan_attempt_id, respond_attempt_id, step_attempt_id
from shared.domain.jobs.states import STAGES, JobStatus, Lane, Priority
from shared.domain.jobs.steps import PlannedStep
from shared.domain.jobs.usage import ModelCall
from shared.ports.jobs.claims import StageClaim, StepClaim
from shared.ports.jobs.store import Take, TransitionResult, UnitStep
from shared.ports.jobs.sweep import Place
from shared.ports.jobs.wakes import AnyWake, StepsWake, StepWake, TaskLinks, Wake, stage_again
from worker.engine.in_flight import Claim, RunningAttempt

T = TypeVar("T")

Units = Mapping[StepRef, PlannedStep]
"""The steps that go on with a unit, each by the step before it."""

_CONCLUDE_SECONDS = 1.0
"""What a conclusion under way gets when the process stops, before its work is given back in its place. Both writes
are fenced, so only one of them lands."""


@dataclass(frozen=True, slots=True)
class Carried:
    """The outcome of carrying out one wake-up.

    `attempt` is None when there was nothing to do: the claim found the work taken, over or not yet due. `error` is
    what the stage or step failed with. `taken` and `wakes` are what it led to: what this process has claimed already,
    and what anybody may carry out; `links` are those of `taken`. `poisoned` says that a thread which cannot be
    stopped still runs a tool here, so that a `cpu` process should be replaced. `is_late` says that the outcome was
    rejected, because the attempt had ended otherwise (taken back, cancelled, expired). `steps` counts the attempts of
    a wake-up for several steps. `unit` are the further steps of its unit.
    """

    attempt: int | None = None
    wakes: Sequence[Wake] = ()
    taken: Sequence[StageClaim | StepClaim] = ()
    error: ErrorRecord | None = None
    poisoned: bool = False
    is_late: bool = False
    steps: int | None = None
    unit: Sequence[UnitStep] = ()
    links: TaskLinks | None = None

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
    ) -> Carried:
        """Return the outcome of an attempt from its last transition; one that did not land led to nothing.

        What it made ready is in `round`, None for its own; `unit` are the further steps of its unit.
        """
        if not result.applied:
            return cls(claim.attempt, (), result.taken, error, poisoned, is_late=True)
        end = unit[-1].claim if unit else claim
        ref = end.ref if isinstance(end, StepClaim) else StepRef(end.job_id, end.round, 0)
        wakes = after_step(ref if round is None else replace(ref, round=round), result, end)
        links = links_after(end, len(result.taken) + len(wakes)) if result.taken else None
        return cls(claim.attempt, wakes, result.taken, error, poisoned, unit=unit, links=links)


def after_step(ref: StepRef, result: TransitionResult, end: Claim | None = None) -> list[Wake]:
    """Return the wake-ups that an applied transition of the step `ref` asks for, beside what it took over.

    `end` is the attempt whose end it was, in a job of the same tree; None where nobody knows that any more.
    """
    priority, agent = (Priority.INTERACTIVE, None) if end is None else (end.priority, _agent_of(end))
    is_stage = result.job_status in STAGES and not any(isinstance(claim, StageClaim) for claim in result.taken)
    links: Iterator[TaskLinks | None] = itertools.repeat(None)
    if end is not None and (count := len(result.children) + is_stage + len(result.ready)):
        taken = len(result.taken)
        links = map(links_after(end, taken + count).at, itertools.count(taken))
    wakes: list[Wake] = [replace(child, priority=priority, links=next(links)) for child in result.children]
    if is_stage and result.job_status is not None:
        stage = stage_again(ref.job_id, result.job_status, result.stage_attempt, priority, agent, next(links))
        wakes.append(stage)
    # Steps of the `io` lane come last: those that share a message then have indices of the group in a row.
    for step in sorted(result.ready, key=lambda step: step.lane is Lane.IO):
        place = StepRef(ref.job_id, ref.round, step.index)
        wakes.append(StepWake(place, step.lane, step.tool_name, priority=priority, links=next(links)))
    return wakes


def links_after(end: Claim, count: int) -> TaskLinks:
    """Return the links of the `count` tasks that the end of an attempt made ready; `at` gives each its place."""
    if isinstance(end, StepClaim):
        job_id, parent_id = end.ref.job_id, step_attempt_id(end.ref, end.attempt)
    elif end.status is JobStatus.RESPONDING:
        job_id, parent_id = end.job_id, respond_attempt_id(end.job_id, end.attempt)
    else:
        job_id, parent_id = end.job_id, plan_attempt_id(end.job_id, end.attempt)
    root_id = plan_attempt_id(end.root_job_id or job_id, 1)
    return TaskLinks(root_id, parent_id, group_id(parent_id) if count > 1 else None)


def _agent_of(claim: Claim) -> str | None:
    return claim.agent if isinstance(claim, StepClaim) else claim.agent_name


def after_release(claim: StepClaim, result: TransitionResult) -> list[Wake]:
    """Return the wake-ups after a claimed step was given back: its next attempt, or what a skip leads to."""
    return [
        replace(wake, attempt=claim.attempt + 1) if isinstance(wake, StepWake) and wake.ref == claim.ref else wake
        for wake in after_step(claim.ref, result, claim)
    ]


def wake_of(claim: Claim, links: TaskLinks | None) -> Wake:
    """Return the wake-up with these links that would have led to a claim."""
    if isinstance(claim, StepClaim):
        return StepWake(claim.ref, claim.lane, claim.tool_name, claim.attempt, claim.priority, links)
    return stage_again(claim.job_id, claim.status, claim.attempt - 1, claim.priority, claim.agent_name, links)


def place_of(wake: Wake) -> Place:
    """Return what a wake-up asks to claim."""
    return wake.ref if isinstance(wake, StepWake) else wake.job_id


@dataclass(eq=False, slots=True)
class Chain:
    """What is carried out in one slot, and how it may go on. Its slots are those of its `priority`.

    `may_go_on` says whether a follow-up may be taken over here now, `workers` how many workers of the lane there are.
    `held` counts its slots, `asked` is for how many wake-ups it claimed last. While `is_asking`, it waits for the
    answer to a claim, or has not begun. `units` are those of its plan; `known` is what its executor knows already of
    the step after a unit, with the claim that the unit's commit brings. `calls` are the model calls
    of the stage at hand that are not recorded yet.
    """

    lane: Lane
    slots: Slots
    may_go_on: Callable[[], bool]
    workers: Callable[[], int]
    held: int = 0
    priority: Priority = Priority.INTERACTIVE
    asked: int = 0
    is_asking: bool = True
    is_stopped: bool = False
    running: RunningAttempt | None = None
    units: Units = field(default_factory=dict)
    known: tuple[StepClaim, Any] | None = None
    calls: list[ModelCall] = field(default_factory=list)

    def take(self, ready: int | None = None) -> Take | None:
        """Return what the next conclusion takes over, None for nothing; may be asked again for the same one.

        `ready` is how many steps of this lane it makes ready, None where that is not known. A slot is kept for each.
        """
        self.keep(1)
        if not self.goes_on:
            return None
        most = FEW if ready is None else own_share(ready, 1 + self.slots.free(self.priority), self.workers())
        self.held += self.slots.reserve(most - 1, self.priority)
        return Take(self.lane, steps=self.held)

    @property
    def goes_on(self) -> bool:
        """True while something more may be begun here."""
        return not self.is_stopped and self.may_go_on()

    def keep(self, count: int) -> None:
        """Give back the slots beyond `count`."""
        if self.held > count:
            self.slots.release(self.held - count, self.priority)
            self.held = count

    @property
    def is_open(self) -> bool:
        """True while the answer of the database is awaited, which must be known before anything is given back."""
        return self.is_asking or (self.running is not None and self.running.is_concluding)

    def stop(self, task: asyncio.Task[Any]) -> None:
        """End the chain and give back what it carries out; `task` runs it."""
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


class Slots:
    """Belongs to one event loop. Bulk work takes at most `bulk` of them, and only while nobody else waits for one."""

    def __init__(self, count: int, bulk: int | None = None) -> None:
        self._free = count
        self._bulk_free = count if bulk is None else bulk
        self._waiting: dict[Priority, deque[asyncio.Future[None]]] = {priority: deque() for priority in Priority}

    def free(self, priority: Priority = Priority.INTERACTIVE) -> int:
        """Return how many can be had at once: 0 while others wait for theirs who go first."""
        goes_first = self._waiting[Priority.INTERACTIVE] or self._waiting[priority]
        return 0 if goes_first else self._left(priority)

    def reserve(self, most: int, priority: Priority = Priority.INTERACTIVE) -> int:
        """Take up to `most` of the free slots; returns how many."""
        taken = max(0, min(most, self.free(priority)))
        self._count(-taken, priority)
        return taken

    async def wait(self, most: int = 1, priority: Priority = Priority.INTERACTIVE) -> int:
        """Wait for a slot, then take up to `most` of the free ones; returns how many, at least 1."""
        if not self.free(priority):
            await self._turn(priority)
        taken = min(most, self._left(priority))
        self._count(-taken, priority)
        self._call_next()
        return taken

    def release(self, count: int = 1, priority: Priority = Priority.INTERACTIVE) -> None:
        """Give slots back."""
        self._count(count, priority)
        self._call_next()

    def _left(self, priority: Priority) -> int:
        return self._free if priority is Priority.INTERACTIVE else min(self._free, self._bulk_free)

    def _count(self, change: int, priority: Priority) -> None:
        self._free += change
        if priority is Priority.BULK:
            self._bulk_free += change

    async def _turn(self, priority: Priority) -> None:
        line = self._waiting[priority]
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.append(turn)
        try:
            await turn
            # Between the call and now somebody interactive may have taken it, or have come to wait.
            while not self._left(priority) or (priority is Priority.BULK and self._waiting[Priority.INTERACTIVE]):
                line[0] = turn = asyncio.get_running_loop().create_future()
                await turn
        except asyncio.CancelledError:
            line.remove(turn)
            self._call_next()  # the next in line must not wait for one who has gone
            raise
        line.popleft()

    def _call_next(self) -> None:
        for priority, line in self._waiting.items():
            if line:
                if self._left(priority) > 0 and not line[0].done():
                    line[0].set_result(None)
                return


def bulk_slots(slots: int, share: float) -> int:
    """Return how many of a worker's slots bulk work may take: its share, and one at least."""
    return max(1, int(slots * share))


FEW = 8
"""So many steps stay together: a message more costs as much as carrying out several that only wait."""

_MOST = 100
"""Steps in one message. A process that takes more than it has slots for would keep the rest from others."""


def own_share(ready: int, free: int, workers: int) -> int:
    """Return how many of `ready` steps this process takes: its part as one of `workers`, as far as it has slots."""
    part = -(-ready // max(workers, 1))
    return max(0, min(ready, free, max(part, FEW)))


def in_messages(wakes: Sequence[Wake], workers: int) -> list[AnyWake]:
    """Return wake-ups as they are published: the `io` steps of a round in even parts for the other workers."""
    messages: list[AnyWake] = []
    rounds: dict[tuple[UUID, int], list[StepWake]] = {}
    for wake in wakes:
        if isinstance(wake, StepWake) and wake.lane is Lane.IO:
            rounds.setdefault((wake.ref.job_id, wake.ref.round), []).append(wake)
        else:
            messages.append(wake)
    for steps in rounds.values():
        messages += _parts(steps, max(workers - 1, 1))
    return messages


def together(wakes: Sequence[StepWake]) -> StepsWake:
    """Return one wake-up for several steps of one round and lane, in a row of their group.

    Raises IndexError for none.
    """
    first = wakes[0]
    steps = tuple((wake.ref.index, wake.tool_name) for wake in wakes)
    return StepsWake(first.ref.job_id, first.ref.round, first.lane, steps, first.attempt, first.priority, first.links)


def _parts(steps: Sequence[StepWake], others: int) -> Iterable[AnyWake]:
    size = min(_MOST, max(FEW, -(-len(steps) // others)))
    for start in range(0, len(steps), size):
        part = steps[start : start + size]
        yield part[0] if len(part) == 1 else together(part)
