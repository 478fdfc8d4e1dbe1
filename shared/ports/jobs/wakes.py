"""Wake-ups and other signals between processes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from shared.domain.errors import ErrorRecord
from shared.domain.jobs.ids import StepRef
from shared.domain.jobs.states import JobStatus, Lane, Priority, WakeQueue


@dataclass(frozen=True, slots=True)
class PlanWake:
    """Carry out the PLAN stage of a job."""

    job_id: UUID
    attempt: int = 1
    priority: Priority = Priority.INTERACTIVE


@dataclass(frozen=True, slots=True)
class StepWake:
    """Run a step; all but `ref` only chooses the queue and the name shown in Flower."""

    ref: StepRef
    lane: Lane
    tool_name: str
    attempt: int = 1
    priority: Priority = Priority.INTERACTIVE


@dataclass(frozen=True, slots=True)
class RespondWake:
    """Carry out the RESPOND stage of a job."""

    job_id: UUID
    attempt: int = 1
    priority: Priority = Priority.INTERACTIVE


Wake = PlanWake | StepWake | RespondWake


def stage_again(
    job_id: UUID, status: JobStatus, attempt: int, priority: Priority = Priority.INTERACTIVE
) -> PlanWake | RespondWake:
    """Return the wake-up for the stage in which a job stands, after `attempt` at a stage of it."""
    if status is JobStatus.RESPONDING:
        return RespondWake(job_id, attempt + 1, priority)
    return PlanWake(job_id, attempt + 1, priority)


@dataclass(frozen=True, slots=True)
class StepsWake:
    """Run several steps of one round, all of one lane: one message for a part of a wide fan-out.

    `steps` are (index, tool name), in plan order. As in `StepWake`, all but the indices only choose queue and name.
    """

    job_id: UUID
    round: int
    lane: Lane
    steps: tuple[tuple[int, str], ...]
    attempt: int = 1
    priority: Priority = Priority.INTERACTIVE

    @property
    def each(self) -> list[StepWake]:
        """The wake-ups that this one stands for."""
        return [
            StepWake(StepRef(self.job_id, self.round, index), self.lane, tool_name, self.attempt, self.priority)
            for index, tool_name in self.steps
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
