"""Live texts of models, from workers to followers of a job."""

from __future__ import annotations

from dataclasses import dataclass
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
