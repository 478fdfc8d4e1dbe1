"""The reminders that jobs have scheduled: look, remove. They are made by the tool `remind_me`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated
from uuid import UUID

from fastapi import Path, Query
from pydantic import Field
from starlette.responses import Response

from planq.api.access.scopes import Who
from planq.api.deps import Use, strict_router
from planq.api.http.exchange import error_responses
from planq.api.http.ids import MAX_PAGE, Limit, cursor_bytes, cursor_of, no_cursor, page_of, uuid_of
from planq.api.schemas import Answer, Id, PageDocument, Time
from planq.shared.kernel.states import Outcome
from planq.shared.platform.database import Row

schedule_routes = strict_router("agents")


class ScheduleDocument(Answer):
    """A job that is made at a time, once or, with `cron`, again and again."""

    id: Id
    name: str
    user_id: str
    agent: str | None = Field(description="Who gets the job; null for planq's planner.")
    input: str = Field(description="What the job is asked.")
    cron: str | None = Field(description="Minute, hour, day of month, month, day of week; null for one that is once.")
    timezone: str
    conversation_id: Id | None = Field(
        description="The conversation whose turns its jobs are; null where it was asked for in none."
    )
    is_active: bool = Field(description="False when it is over, or was switched off.")
    next_at: Time | None = Field(description="When it is due next; null when it is over.")
    last_job_id: Id | None = Field(description="The job that it made last.")
    last_outcome: Outcome | None = Field(description="What that came to; null before its end, or once it is removed.")
    error: str | None = Field(description="Why it was switched off.")
    created_at: Time


class SchedulePage(PageDocument[ScheduleDocument]):
    """Schedules, newest first; `next_cursor` is null on the last page."""


_CURSOR = "^[A-Za-z0-9_-]{21}[AQgw][A-D][A-Za-z0-9_-]{9}$"
"""The 16 bytes of an id and 8 of a time, which begin with 0 until 4253, in base64 for URLs; for `/openapi.json`."""


@schedule_routes.get("/schedules", response_model=SchedulePage)
async def list_schedules(
    services: Use,
    who: Who,
    everything: Annotated[bool, Query(alias="all", description="Also those that are over.")] = False,
    limit: Limit = MAX_PAGE,
    cursor: Annotated[
        str | None, Query(json_schema_extra={"pattern": _CURSOR}, description="`next_cursor` of the page before.")
    ] = None,
) -> Response:
    """List the reminders of `remind_me` that are to come, newest first."""
    after = None if cursor is None else _from_cursor(cursor)
    rows = await services.schedules.page(who.tenant_id, limit=limit + 1, everything=everything, after=after)
    return page_of(rows, limit, cursor_after=_to_cursor)


@schedule_routes.delete(
    "/schedules/{schedule_id}", status_code=204, response_class=Response, responses=error_responses(404)
)
async def delete_schedule(
    schedule_id: Annotated[str, Path(json_schema_extra={"format": "uuid"})], services: Use, who: Who
) -> Response:
    """Remove a schedule: it makes no more jobs; those that it made stay."""
    await services.schedules.delete(who.tenant_id, uuid_of("schedule", schedule_id))
    return Response(status_code=204)


def _to_cursor(row: Row) -> str:
    micros = round(row["created_at"].timestamp() * 1_000_000)
    return cursor_of(row["id"].bytes + micros.to_bytes(8, "big"))


def _from_cursor(cursor: str) -> tuple[datetime, UUID]:
    try:
        raw = cursor_bytes(cursor, 24)
        micros = int.from_bytes(raw[16:], "big")
        seconds, rest = divmod(micros, 1_000_000)
        return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest), UUID(bytes=raw[:16])
    except (ValueError, OverflowError, OSError):
        raise no_cursor() from None
