"""Wake-ups and other signals between processes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from planq.shared.kernel.claims import StageClaim, StepClaim
from planq.shared.kernel.ids import StepRef, group_id, plan_attempt_id, respond_attempt_id, step_attempt_id
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
        return cls(plan_attempt_id(root_job_id, 1))

    def at(self, index: int) -> TaskLinks:
        """Return the links of one task of the group; where there is no group, these."""
        return self if self.group is None else TaskLinks(self.root_id, self.parent_id, self.group, index)


def links_after(end: StageClaim | StepClaim, count: int) -> TaskLinks:
    """Return the links of the `count` tasks that the end of an attempt made ready; `at` gives each its place."""
    if isinstance(end, StepClaim):
        job_id, parent_id = end.ref.job_id, step_attempt_id(end.ref, end.attempt)
    elif end.status is JobStatus.RESPONDING:
        job_id, parent_id = end.job_id, respond_attempt_id(end.job_id, end.attempt)
    else:
        job_id, parent_id = end.job_id, plan_attempt_id(end.job_id, end.attempt)
    root_id = plan_attempt_id(end.root_job_id or job_id, 1)
    return TaskLinks(root_id, parent_id, group_id(parent_id) if count > 1 else None)


@dataclass(frozen=True, slots=True)
class PlanWake:
    """Carry out the PLAN stage of a job; `agent` (the name of its agent) and `links` are only shown in Flower.

    `tenant` is in whose share it is carried out; where nobody knows it, as that of a tenant of its own.
    """

    job_id: UUID
    attempt: int = 1
    priority: Priority = Priority.INTERACTIVE
    agent: str | None = field(default=None, compare=False)
    links: TaskLinks | None = field(default=None, compare=False)
    tenant: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class StepWake:
    """Run a step; all but `ref` and `tenant` (see `PlanWake`) only chooses the queue and what is shown in Flower."""

    ref: StepRef
    pool: Pool
    tool_name: str
    attempt: int = 1
    priority: Priority = Priority.INTERACTIVE
    links: TaskLinks | None = field(default=None, compare=False)
    tenant: str = field(default="", compare=False)

    @property
    def job_id(self) -> UUID:
        return self.ref.job_id


@dataclass(frozen=True, slots=True)
class RespondWake:
    """Carry out the RESPOND stage of a job; `agent`, `links` and `tenant` as in `PlanWake`."""

    job_id: UUID
    attempt: int = 1
    priority: Priority = Priority.INTERACTIVE
    agent: str | None = field(default=None, compare=False)
    links: TaskLinks | None = field(default=None, compare=False)
    tenant: str = field(default="", compare=False)


Wake = PlanWake | StepWake | RespondWake


def stage_again(
    job_id: UUID,
    status: JobStatus,
    attempt: int,
    priority: Priority = Priority.INTERACTIVE,
    agent: str | None = None,
    links: TaskLinks | None = None,
    tenant: str = "",
) -> PlanWake | RespondWake:
    """Return the wake-up for the stage in which a job stands, after `attempt` at a stage of it."""
    kind = RespondWake if status is JobStatus.RESPONDING else PlanWake
    return kind(job_id, attempt + 1, priority, agent, links, tenant)


@dataclass(frozen=True, slots=True)
class StepsWake:
    """Run several steps of one round, all of one pool: one message for a part of a wide fan-out.

    `steps` are (index, tool name), in plan order. As in `StepWake`, all but the indices only chooses the queue and
    what is shown. In a group, its `links` are those of the first step, and the others have the indices after it.
    """

    job_id: UUID
    round: int
    pool: Pool
    steps: tuple[tuple[int, str], ...]
    attempt: int = 1
    priority: Priority = Priority.INTERACTIVE
    links: TaskLinks | None = field(default=None, compare=False)
    tenant: str = field(default="", compare=False)

    @property
    def each(self) -> list[StepWake]:
        links, first = self.links, 0 if self.links is None else self.links.group_index or 0
        return [
            StepWake(
                StepRef(self.job_id, self.round, index),
                self.pool,
                tool_name,
                self.attempt,
                self.priority,
                links and links.at(first + place),
                self.tenant,
            )
            for place, (index, tool_name) in enumerate(self.steps)
        ]


AnyWake = Wake | StepsWake


class Publisher(Protocol):
    """Sends wake-ups to workers. They may be lost, doubled or late: the claim and the sweeper make that harmless."""

    async def publish(self, wakes: Sequence[AnyWake]) -> bool:
        """Send all wake-ups in one batch; True when the broker took them, False when it cannot be reached now."""
        ...


class Queues(Protocol):
    """Looks at the broker's queues."""

    async def empty(self, queues: Collection[WakeQueue]) -> Collection[WakeQueue]:
        """Return those of `queues` that are known to hold no message; none when the broker does not answer."""
        ...


class Tracker(Protocol):
    """Shows fused stages and steps to monitors as Celery tasks of their own."""

    def started(self, wake: Wake, attempt: int) -> None:
        """A stage or step begins inside another Celery task."""
        ...

    def ended(self, wake: Wake, attempt: int, error: ErrorRecord | None, runtime_seconds: float) -> None:
        """It ended; `error` is None when it succeeded."""
        ...
