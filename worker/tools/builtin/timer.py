"""`wait` and `now`: the two tools about time."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import TypedDict

from shared.domain.states import Effect
from shared.ports import Suspended
from worker.tools.declare import tool
from worker.tools.services import ToolServices

MAX_WAIT_SECONDS = 86_400


class Waited(TypedDict):
    """The end of a wait."""

    waited_seconds: Annotated[float, Field(description="The seconds that were asked for.")]


class Moment(TypedDict):
    """A moment in UTC."""

    iso: Annotated[str, Field(description="ISO 8601 with offset, to the second: 2026-11-21T02:31:00+00:00")]
    unix: Annotated[int, Field(description="Whole seconds since 1970-01-01T00:00:00Z.")]
    timezone: Literal["UTC"]


@tool(effect=Effect.IDEMPOTENT)
async def wait(
    seconds: Annotated[float, Field(description="How long to wait, in seconds.", ge=0, le=MAX_WAIT_SECONDS)],
) -> Waited | Suspended:
    """Wait for a number of seconds (at most a day) before the steps after this one; no worker is held meanwhile."""
    return Suspended(timedelta(seconds=seconds), Waited(waited_seconds=seconds))


@tool(effect=Effect.READ, timeout_seconds=10)
async def now(services: ToolServices) -> Moment:
    """Tell the present date and time, in UTC."""
    moment = services.now().replace(microsecond=0)
    return {"iso": moment.isoformat(), "unix": int(moment.timestamp()), "timezone": "UTC"}
