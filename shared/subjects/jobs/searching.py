"""What an id may be of that somebody has at hand: planq's own ids, and those that Celery and Flower show."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

_TASK = re.compile(
    r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"
    r"(?:\.(?:plan|respond)\.[0-9]{1,9}|(?:\.r[0-9]{1,9}\.s|/)([0-9]{1,9})(?:\+[0-9]{1,9})?(?:\.[0-9]{1,9})?)(?:\.group)?"
)


class FoundKind(StrEnum):
    """What has an id."""

    JOB = "job"
    STEP = "step"  # of a job, by a Celery task or an idempotency key
    PLAN = "plan"  # the job whose plan it is
    CONVERSATION = "conversation"
    BATCH = "batch"
    LINE = "line"  # of a batch, by its custom_id
    SCHEDULE = "schedule"
    QUESTION = "question"
    JOB_ACTION = "job_action"


@dataclass(frozen=True, slots=True)
class NamedId:
    """An id that was read, and the step of its job that it names, if any."""

    id: UUID
    step_index: int | None = None


def named_id(text: str) -> NamedId | None:
    """Return what a text names: an id, a Celery task (`<job>.r0.s2.1`, `<job>.plan.1`) or a step (`<job>/2`).

    None for any other text: a `custom_id` may be all that is left.
    """
    given = text.strip().lower()
    if (found := _TASK.fullmatch(given)) is not None:
        return NamedId(UUID(found[1]), None if found[2] is None else int(found[2]))
    try:
        return NamedId(UUID(given)) if len(given) >= 32 else None
    except ValueError:
        return None
