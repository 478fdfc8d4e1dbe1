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


@dataclass(frozen=True, slots=True)
class StepRef:
    """Which step of which round of which job."""

    job_id: UUID
    round: int
    index: int


def plan_attempt_id(job_id: UUID, attempt: int) -> str:
    """Return the Celery task id of one attempt at the PLAN stage, as Flower shows it."""
    return f"{job_id}.plan.{attempt}"


def respond_attempt_id(job_id: UUID, attempt: int) -> str:
    """Return the Celery task id of one attempt at the RESPOND stage, as Flower shows it."""
    return f"{job_id}.respond.{attempt}"


def step_attempt_id(ref: StepRef, attempt: int) -> str:
    """Return the Celery task id of one attempt at a step: `<job>.r<round>.s<index>.<attempt>`."""
    return f"{ref.job_id}.r{ref.round}.s{ref.index}.{attempt}"


def group_id(attempt_id: str) -> str:
    """Return the Celery group id of what one attempt made ready together: `<attempt>.group`."""
    return f"{attempt_id}.group"


def steps_attempt_id(first: StepRef, count: int, attempt: int) -> str:
    """Return the Celery task id of a wake-up for `count` steps: `<job>.r<round>.s<first>+<others>.<attempt>`."""
    return f"{first.job_id}.r{first.round}.s{first.index}+{count - 1}.{attempt}"
