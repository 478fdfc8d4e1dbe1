"""Wake-ups and other signals between processes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol
from uuid import UUID

from planq.shared.kernel.claims import Claim
from planq.shared.kernel.ids import PLAN, RESPOND, StepRef, attempt_id, group_id, root_task_id
from planq.shared.kernel.states import JobStatus, Pool, Priority, WakeQueue
from planq.shared.platform.errors import ErrorRecord


@dataclass(frozen=True, slots=True)
class TaskLinks:
    """How Celery tasks hang together, for people who watch them; nothing is decided by it.

    `root_id` is the first task of the outermost job, `parent_id` that of the attempt which made this one ready, None
    where nobody knows it any more. What one attempt made ready together is a `group`, with a `group_index` each.
    """

    root_id: str
    parent_id: str | None = None
    group: str | None = None
    group_index: int | None = None

    @classmethod
    def below(cls, root_job_id: UUID) -> TaskLinks:
        """Return the links of a task in the tree of this outermost job, whose parent nobody knows."""
        return cls(root_task_id(root_job_id))

    def at(self, index: int) -> TaskLinks:
        """Return the links of one task of the group; where there is no group, these."""
        return self if self.group is None else TaskLinks(self.root_id, self.parent_id, self.group, index)


def links_after(end: Claim, count: int) -> TaskLinks:
    """Return the links of the `count` tasks that the end of an attempt made ready; `at` gives each its place."""
    parent_id = attempt_id(end.ref, end.attempt)
    root_id = root_task_id(end.root_job_id or end.ref.job_id)
    return TaskLinks(root_id, parent_id, group_id(parent_id) if count > 1 else None)


@dataclass(frozen=True, slots=True)
class Origin:
    """What made an attempt ready: the end of another one, with `count` in all, as number `place`."""

    end: Claim
    count: int
    place: int = 0

    @property
    def links(self) -> TaskLinks:
        return links_after(self.end, self.count).at(self.place)


@dataclass(frozen=True, slots=True)
class Wake:
    """Claim what is at `ref`, and what is at `more` beside it: (index, name) of further steps of its round and pool.

    The rest only chooses the queue and what Flower shows: `name` is the tool of a step, the agent of a stage.
    `tenant` is in whose share it is carried out; where it is not known, as that of a tenant of its own. In a group,
    `links` are those of `ref`, and the others have the indices after it.
    """

    ref: StepRef
    pool: Pool = Pool.IO
    name: str | None = field(default=None, compare=False)
    attempt: int = 1
    priority: Priority = Priority.INTERACTIVE
    links: TaskLinks | None = field(default=None, compare=False)
    tenant: str = field(default="", compare=False)
    more: tuple[tuple[int, str | None], ...] = ()

    @classmethod
    def plan(cls, job_id: UUID, attempt: int = 1, **fields: Any) -> Wake:
        """Return the wake-up for the PLAN stage of a job; `fields` as of any other."""
        return cls(StepRef(job_id, 0, PLAN), attempt=attempt, **fields)

    @classmethod
    def respond(cls, job_id: UUID, attempt: int = 1, **fields: Any) -> Wake:
        """Return the wake-up for the RESPOND stage of a job; `fields` as of any other."""
        return cls(StepRef(job_id, 0, RESPOND), attempt=attempt, **fields)

    @classmethod
    def stage(cls, job_id: UUID, status: JobStatus, attempt: int = 1, **fields: Any) -> Wake:
        """Return the wake-up for the stage in which a job stands; `fields` as of any other."""
        return cls(StepRef(job_id, 0, stage_index(status)), attempt=attempt, **fields)

    @property
    def job_id(self) -> UUID:
        return self.ref.job_id

    @property
    def each(self) -> list[Wake]:
        """Return a wake-up for each of its steps."""
        if not self.more:
            return [self]
        links, first = self.links, 0 if self.links is None else self.links.group_index or 0
        return [replace(self, more=())] + [
            replace(
                self,
                ref=replace(self.ref, index=index),
                name=name,
                links=links and links.at(first + place),
                more=(),
            )
            for place, (index, name) in enumerate(self.more, 1)
        ]


def wake_of(claim: Claim, links: TaskLinks | None) -> Wake:
    """Return the wake-up with these links that would have led to a claim."""
    return Wake(claim.ref, claim.pool, claim.name, claim.attempt, claim.priority, links, claim.tenant_id)


def stage_index(status: str) -> int:
    """Return the index of the stage in which a job of this status stands."""
    return RESPOND if status == JobStatus.RESPONDING else PLAN


class Publisher(Protocol):
    """Sends wake-ups to workers. They may be lost, doubled or late: the claim and the sweeper make that harmless."""

    async def publish(self, wakes: Sequence[Wake]) -> bool:
        """Send all wake-ups in one batch; True when the broker took them, False when it cannot be reached now."""
        ...


class Queues(Protocol):
    """Looks at the broker's queues."""

    async def empty(self, queues: Collection[WakeQueue]) -> Collection[WakeQueue]:
        """Return those of `queues` that are known to hold no message; none when the broker does not answer."""
        ...


class Tracker(Protocol):
    """Shows attempts without a message to monitors, as Celery tasks of their own; `origin` is None if unknown."""

    def started(self, claim: Claim, origin: Origin | TaskLinks | None) -> None:
        """An attempt begins inside another Celery task."""
        ...

    def ended(
        self, claim: Claim, origin: Origin | TaskLinks | None, error: ErrorRecord | None, runtime_seconds: float
    ) -> None:
        """It ended; `error` is None when it succeeded."""
        ...
