"""Which jobs are meant: one filter for the list of jobs, for job actions, for commands and for the page."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

from pydantic import Field, ValidationError

from planq.api.http.exchange import HttpRefusal, decode_body
from planq.api.intake.submission import check_object
from planq.api.schemas import MAX_METADATA_BYTES, Metadata, RequestBody
from planq.shared.kernel.states import JobStatus, Priority, Strategy
from planq.shared.platform.errors import InvalidRequest, capped, storable
from planq.shared.platform.values.describe import excerpt
from planq.shared.subjects.jobs.selection import JobFilter

_UUID_PATTERN = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
_MOST_SECONDS = 1e9
_TIME = {"format": "date-time"}

FilterWords = Annotated[str, Field(min_length=1, max_length=200, description="They stand in its input in any case.")]
FilterAgent = Annotated[str, Field(min_length=1, max_length=200, description="The name of its agent.")]
FilterBatch = Annotated[str, Field(pattern=_UUID_PATTERN, description="The batch of its line.")]
FilterSeconds = Annotated[float, Field(ge=0, le=_MOST_SECONDS, description="So long ago it was submitted.")]
FilterTime = Annotated[
    str,
    Field(max_length=40, json_schema_extra=_TIME, description="When it was submitted; UTC without a zone."),
]
FilterCost = Annotated[float, Field(ge=0, lt=1e9, description="It has cost so much by now.")]


class JobFilterRequest(RequestBody):
    """Which jobs are meant: those for which all of it holds, never child jobs, none at all that came later."""

    status: Annotated[JobStatus, Field(strict=False)] | None = Field(
        None, description="Where they stand; without it all that can be changed so, of a retry those that failed."
    )
    strategy: Annotated[Strategy, Field(strict=False)] | None = None
    priority: Annotated[Priority, Field(strict=False)] | None = None
    agent: FilterAgent | None = None
    batch_id: FilterBatch | None = None
    words: FilterWords | None = None
    metadata: Metadata = Field(
        None,
        description="Each of these keys stands in its metadata with this value; a text also fits the number, true, "
        "false or null that is written so.",
    )
    older_than_seconds: FilterSeconds | None = None
    newer_than_seconds: FilterSeconds | None = None
    created_before: FilterTime | None = None
    created_after: FilterTime | None = None
    min_cost_usd: FilterCost | None = None

    def checked(self, now: datetime) -> JobFilter:
        """Return the filter as it is kept; raises `TooLarge` for metadata, `InvalidRequest` for what is no time."""
        check_object("metadata", self.metadata, MAX_METADATA_BYTES)
        before = [_ago(now, self.older_than_seconds), _time("created_before", self.created_before)]
        after = [_ago(now, self.newer_than_seconds), _time("created_after", self.created_after)]
        return JobFilter(
            status=self.status,
            strategy=self.strategy,
            agent=None if self.agent is None else storable(self.agent),
            priority=self.priority,
            batch_id=None if self.batch_id is None else UUID(self.batch_id),
            words=None if self.words is None else storable(self.words),
            metadata=self.metadata,
            made_before=min((one for one in before if one is not None), default=None),
            made_after=max((one for one in after if one is not None), default=None),
            min_cost_usd=self.min_cost_usd,
        )


def filter_of(given: Mapping[str, Any], now: datetime) -> JobFilter:
    """Return the filter of an address, whose `metadata` is the text of a JSON object; None stands for not given.

    Raises `InvalidRequest` with what does not fit, and what `checked` raises.
    """
    known = {name: value for name, value in given.items() if value is not None}
    known["metadata"] = object_in("metadata", given.get("metadata"))
    try:
        return JobFilterRequest.model_validate(known).checked(now)
    except ValidationError as error:
        defects = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors(include_url=False)]
        raise InvalidRequest("; ".join(defects[:10])) from None


def object_in(name: str, text: str | None) -> dict[str, Any] | None:
    """Return the JSON object of a parameter; raises `InvalidRequest` for what is none, `TooLarge` for a long one."""
    if text is None:
        return None
    try:
        value = decode_body(text.encode(), name=name)
    except HttpRefusal as refusal:
        raise InvalidRequest(f"{name}: {refusal.detail}") from refusal
    if not isinstance(value, dict):
        raise InvalidRequest(f"{name}: expected a JSON object, found {excerpt(value)}")
    check_object(name, value, MAX_METADATA_BYTES)
    return value


def _ago(now: datetime, seconds: float | None) -> datetime | None:
    return None if seconds is None else now - timedelta(seconds=seconds)


def _time(name: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text.strip().upper())
    except ValueError:
        found = None
    if found is None or not 1 < found.year < 9999:  # a zone leads beyond what a time can be
        raise InvalidRequest(f"{name}: expected a time such as 2026-11-28T09:30:00Z, found {capped(text, 40)!r}")
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
