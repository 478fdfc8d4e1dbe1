"""`remind_me`: a job that planq makes later, once or again and again. The schedule lies in the database.

What is due is made by the sweeper of any worker, exactly one job for each due time; what was missed while no worker
ran makes one job altogether. The job may do no more than the one that asked: it goes to the same agent unless another
is named, and has the same tools.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import TypedDict

from shared.domain.errors import InvalidArguments, InvalidRequest, RequestRefused, capped, storable
from shared.domain.names import MAX_AGENT_NAME
from shared.domain.schedule import MAX_AHEAD, check_cron, read_moment, read_zone
from shared.domain.states import Effect
from shared.ports import Reminder, ToolContext
from worker.tools.declare import tool
from worker.tools.services import ToolServices

MAX_TEXT_CHARS = 10_000
MAX_NAME_CHARS = 200

REMINDERS = uuid.UUID("0c9d1a52-6c1d-5a0f-8a3e-3b0c8cf6a1d7")
"""Namespace of reminder ids (RFC 9562 §5.5)."""


class Reminded(TypedDict):
    """The reminder as it is stored."""

    status: Literal["success"]
    reminder_id: Annotated[str, Field(description="Its id among the schedules.")]
    name: str
    agent: Annotated[str | None, Field(description="Who gets the job; null for planq's planner.")]
    recurrence: Literal["once", "recurring"]
    schedule: Annotated[str, Field(description="The cron expression, or the time in UTC.")]
    timezone: str
    next_at: Annotated[str | None, Field(description="When it is due next, in UTC; null when it has been fired.")]


Description = Annotated[
    str,
    Field(
        description="What to do or to be reminded of: the input of the job that is made then.",
        min_length=1,
        max_length=MAX_TEXT_CHARS,
    ),
]
At = Annotated[
    str | None, Field(description="Once, at this time: ISO 8601; without an offset the local time in `timezone`.")
]
Delay = Annotated[
    float | None, Field(description="Once, so many seconds from now.", gt=0, le=MAX_AHEAD.total_seconds())
]
Crontab = Annotated[
    str | None,
    Field(
        description="Again and again: a cron expression of five fields, such as `0 9 * * 1` for Mondays at nine, "
        "read in `timezone`. A time (ISO 8601) is taken as `at`.",
        max_length=200,
    ),
]
Zone = Annotated[str, Field(description="An IANA name such as Europe/Berlin.", max_length=100)]
Name = Annotated[str | None, Field(description="A short name.", min_length=1, max_length=MAX_NAME_CHARS)]
Agent = Annotated[
    str | None,
    Field(description="The agent that gets the job; by default the one that asks.", max_length=MAX_AGENT_NAME),
]


@tool(effect=Effect.IDEMPOTENT, timeout_seconds=30)
async def remind_me(
    description: Description,
    context: ToolContext,
    services: ToolServices,
    at: At = None,
    delay_seconds: Delay = None,
    crontab: Crontab = None,
    timezone: Zone = "UTC",
    name: Name = None,
    agent: Agent = None,
) -> Reminded:
    """Schedule a reminder or task for later: once (`at` or `delay_seconds`) or recurring (`crontab`); give one."""
    reminder = Reminder(
        id=uuid.uuid5(REMINDERS, context.idempotency_key),
        name=storable(name or capped(" ".join(description.split()), 60)),
        input=storable(description),
        agent=storable(agent) if agent else context.agent,
        zone=timezone,
    )
    try:
        reminder = _when(reminder, at, delay_seconds, crontab)
        next_at = await services.memory.schedule(context, reminder, most=services.max_reminders)
    except RequestRefused as error:
        raise InvalidArguments(f"remind_me: {error.message}") from error
    return {
        "status": "success",
        "reminder_id": str(reminder.id),
        "name": reminder.name,
        "agent": reminder.agent,
        "recurrence": "recurring" if reminder.cron else "once",
        "schedule": reminder.cron or _told(reminder.at or next_at) or "",
        "timezone": timezone,
        "next_at": _told(next_at),
    }


def _when(reminder: Reminder, at: str | None, delay_seconds: float | None, crontab: str | None) -> Reminder:
    given: dict[str, Any] = {"at": at, "delay_seconds": delay_seconds, "crontab": crontab}
    said = [name for name, value in given.items() if value is not None]
    if len(said) != 1:
        raise InvalidRequest(
            f"expected one of at, delay_seconds and crontab, found {' and '.join(said) or 'none of them'}"
        )
    zone = read_zone(reminder.zone)
    if crontab is not None and _is_time(crontab):
        at, crontab = crontab, None
    if at is not None:
        return replace(reminder, at=read_moment(at, zone))
    if delay_seconds is not None:
        return replace(reminder, delay=timedelta(seconds=delay_seconds))
    assert crontab is not None
    check_cron(crontab)
    return replace(reminder, cron=" ".join(crontab.split()))


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text.strip())
    except ValueError:
        return False
    return True


def _told(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat()
