"""`now`, `wait` and `remind_me`: the tools about time.

The sweeper of any worker creates exactly one job for each due time, or one for all times missed while no worker ran.
It has the rights of the asking job, and its agent unless another is named.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import TypedDict

from planq.shared.agentic.tools.contract import Suspended, ToolContext
from planq.shared.agentic.tools.names import MAX_AGENT_NAME
from planq.shared.kernel.states import Effect
from planq.shared.platform.errors import InvalidArguments, InvalidRequest, RequestRefused, capped, storable
from planq.shared.platform.values.schedule import MAX_AHEAD, check_cron, read_moment, read_zone
from planq.shared.subjects.moments.contract import Reminder
from planq.worker.tools.declare import tool
from planq.worker.tools.services import ToolServices

_LONGEST_WAIT_SECONDS = 86_400


class WaitResult(TypedDict):
    """The end of a wait."""

    waited_seconds: Annotated[float, Field(description="The seconds that were asked for.")]


class PresentMoment(TypedDict):
    """A moment in UTC."""

    iso: Annotated[str, Field(description="ISO 8601 with offset, to the second: 2026-11-21T02:31:00+00:00")]
    unix: Annotated[int, Field(description="Whole seconds since 1970-01-01T00:00:00Z.")]
    timezone: Literal["UTC"]


@tool(effect=Effect.IDEMPOTENT, repeatable=True)
async def wait(
    seconds: Annotated[float, Field(description="How long to wait, in seconds.", ge=0, le=_LONGEST_WAIT_SECONDS)],
) -> WaitResult | Suspended:
    """Wait for a number of seconds (at most a day) before the steps after this one; no worker is held meanwhile."""
    waited = WaitResult(waited_seconds=seconds)
    return Suspended(timedelta(seconds=seconds), waited) if seconds else waited


@tool(effect=Effect.READ, timeout_seconds=10, repeatable=True)
async def now(services: ToolServices) -> PresentMoment:
    """Tell the present date and time, in UTC."""
    moment = services.now().replace(microsecond=0)
    return {"iso": moment.isoformat(), "unix": int(moment.timestamp()), "timezone": "UTC"}


_INPUT_CHARS = 10_000
_NAME_CHARS = 200

_REMINDER_IDS = uuid.UUID("0c9d1a52-6c1d-5a0f-8a3e-3b0c8cf6a1d7")
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


_Description = Annotated[
    str,
    Field(
        description="What to do or to be reminded of: the input of the job that is made then.",
        min_length=1,
        max_length=_INPUT_CHARS,
    ),
]
_At = Annotated[
    str | None, Field(description="Once, at this time: ISO 8601; without an offset the local time in `timezone`.")
]
_Delay = Annotated[
    float | None, Field(description="Once, so many seconds from now.", gt=0, le=MAX_AHEAD.total_seconds())
]
_Crontab = Annotated[
    str | None,
    Field(
        description="Again and again: a cron expression of five fields, such as `0 9 * * 1` for Mondays at nine, "
        "read in `timezone`. A time (ISO 8601) is taken as `at`.",
        max_length=200,
    ),
]
_Zone = Annotated[str, Field(description="An IANA name such as Europe/Berlin.", max_length=100)]
_Name = Annotated[str | None, Field(description="A short name.", min_length=1, max_length=_NAME_CHARS)]
_Agent = Annotated[
    str | None,
    Field(description="The agent that gets the job; by default the one that asks.", max_length=MAX_AGENT_NAME),
]


@tool(effect=Effect.IDEMPOTENT, timeout_seconds=30)
async def remind_me(
    description: _Description,
    context: ToolContext,
    services: ToolServices,
    at: _At = None,
    delay_seconds: _Delay = None,
    crontab: _Crontab = None,
    timezone: _Zone = "UTC",
    name: _Name = None,
    agent: _Agent = None,
) -> Reminded:
    """Schedule a reminder or task for later: once (`at` or `delay_seconds`) or recurring (`crontab`); give one."""
    reminder = Reminder(
        id=uuid.uuid5(_REMINDER_IDS, context.idempotency_key),
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
        "schedule": reminder.cron or _in_utc(reminder.at or next_at) or "",
        "timezone": timezone,
        "next_at": _in_utc(next_at),
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


def _in_utc(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat()
