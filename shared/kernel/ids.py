"""Identifiers, and the names under which work is known outside the database.

Ids are UUIDv7 (RFC 9562 §5.7): they sort by the time they were made. Clock and entropy are arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

TENANT = "default"
"""The one tenant at present; every row of every table carries a tenant's id."""


def uuid7(unix_ms: int, entropy: bytes) -> UUID:
    """Return the UUIDv7 of a time in Unix milliseconds and ten random bytes (RFC 9562 §5.7)."""
    if len(entropy) != 10:
        raise ValueError(f"expected 10 random bytes, found {len(entropy)}")
    head = unix_ms.to_bytes(6, "big")
    raw = bytearray(head + entropy)
    raw[6] = 0x70 | (raw[6] & 0x0F)
    raw[8] = 0x80 | (raw[8] & 0x3F)
    return UUID(bytes=bytes(raw))


def unix_ms_of(id: UUID) -> int:
    """Return the time of a UUIDv7 in Unix milliseconds; of any other UUID some number below 2**48."""
    return int.from_bytes(id.bytes[:6], "big")


PLAN, RESPOND = -1, -2
"""The indices of a round's stages: a stage is a step that asks a model, and stands beside those of the plan."""


@dataclass(frozen=True, slots=True)
class StepRef:
    """The address of what can be claimed: which step of which round of which job, or which of its stages.

    Steps count on over the rounds of a job, and attempts at its stages do. So `key` alone tells them apart, and a
    wake-up for a stage need not know the round.
    """

    job_id: UUID
    round: int
    index: int

    def __hash__(self) -> int:
        return hash((self.job_id.int, self.index))  # not by way of UUID, whose hash is made in Python each time

    @property
    def is_stage(self) -> bool:
        return self.index < 0

    @property
    def key(self) -> tuple[UUID, int]:
        return self.job_id, self.index


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at what is at an address; `number` is its fencing token."""

    ref: StepRef
    number: int

    def __hash__(self) -> int:
        return hash((self.ref.job_id.int, self.ref.index, self.number))

    @property
    def job_id(self) -> UUID:
        return self.ref.job_id


_STAGE_NAMES = {PLAN: "plan", RESPOND: "respond"}


def attempt_id(ref: StepRef, attempt: int, more: int = 0) -> str:
    """Return the Celery task id of an attempt, as Flower shows it; of a wake-up for `more` steps beside `ref`, too.

    `<job>.plan.<attempt>`, `<job>.respond.<attempt>`, `<job>.r<round>.s<index>.<attempt>`, `<job>.r0.s3+2.1`
    """
    if ref.is_stage:
        return f"{ref.job_id}.{_STAGE_NAMES[ref.index]}.{attempt}"
    return f"{ref.job_id}.r{ref.round}.s{ref.index}{f'+{more}' if more else ''}.{attempt}"


def root_task_id(job_id: UUID) -> str:
    """Return the Celery task id of the first task of a job."""
    return attempt_id(StepRef(job_id, 0, PLAN), 1)


def group_id(attempt_id: str) -> str:
    """Return the Celery group id of what one attempt made ready together: `<attempt>.group`."""
    return f"{attempt_id}.group"
