"""What a worker holds, as the database says it and as the worker itself knows it."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from shared.domain.ids import StepRef
from shared.domain.states import Effect
from shared.ports.wakes import Wake

Place = StepRef | UUID
"""Where an attempt is made: a step, or (by the job's id) the stage in which a job stands."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at a place; `number` is its fencing token."""

    place: Place
    number: int

    @property
    def job_id(self) -> UUID:
        """The job that the attempt belongs to."""
        return job_of(self.place)


@dataclass(frozen=True, slots=True)
class Held:
    """An attempt that a worker holds in the database: `effect` is None for a stage, `again` wakes the next one."""

    attempt: Attempt
    effect: Effect | None
    again: Wake


def job_of(place: Place) -> UUID:
    """Return the job that a place belongs to."""
    return place if isinstance(place, UUID) else place.job_id
