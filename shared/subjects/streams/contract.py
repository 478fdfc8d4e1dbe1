"""What models are saying while they say it: from a worker's calls to those who follow a job live."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Epoch:
    """Which text of a job it is: that of an attempt at a stage, and of a try of a model in it.

    Both only grow. Whoever shows a text puts that of a newer epoch in its place.
    """

    job_id: UUID
    attempt: int
    number: int


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A part of a text, from its character `start` on; `stage` is the job's status while it is said."""

    epoch: Epoch
    tenant_id: str
    stage: str
    start: int
    text: str


@dataclass(frozen=True, slots=True)
class LiveText:
    """What a model has said so far."""

    epoch: Epoch
    stage: str
    text: str


class TextSink(Protocol):
    """Takes texts of jobs that somebody follows."""

    async def followed(self, job_ids: Collection[UUID]) -> Collection[UUID]:
        """Return those of the jobs that somebody follows; raises `DatabaseUnavailable`."""
        ...

    async def write(self, pieces: Sequence[TextPiece]) -> Mapping[Epoch, int]:
        """Add a piece to each text; return how many characters of each are there now.

        Nothing is kept of a piece that does not follow what is there: whoever writes goes on from the number that is
        returned. A text that a newer one of its job has replaced is missing. Precondition: one piece of each epoch,
        none of them empty, and texts that can be stored (`planq.shared.platform.errors.storable`). Raises
        `DatabaseUnavailable`; whether the pieces were added is then unknown, and to write them again is harmless.
        """
        ...
