"""Live texts of models, from workers to followers of a job."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Epoch:
    """Identifies a text of a job, by attempt and try; a newer epoch replaces older ones."""

    job_id: UUID
    attempt: int
    number: int


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A part of a text from its character `start` on; `stage` is the job's status."""

    epoch: Epoch
    tenant_id: str
    stage: str
    start: int
    text: str


@dataclass(frozen=True, slots=True)
class LiveText:
    """The text so far."""

    epoch: Epoch
    stage: str
    text: str


class TextSink(Protocol):
    """Takes texts of followed jobs."""

    async def followed(self, job_ids: Collection[UUID]) -> Collection[UUID]:
        """Return the followed ones of these jobs; raises `DatabaseUnavailable`."""
        ...

    async def write(self, pieces: Sequence[TextPiece]) -> Mapping[Epoch, int]:
        """Append a piece to each text; return each text's length.

        A piece that leaves a gap is dropped: writers continue from the returned length. Texts replaced by a newer
        epoch are missing. Precondition: one piece per epoch, not empty, storable. Raises `DatabaseUnavailable`;
        writing again is harmless.
        """
        ...
