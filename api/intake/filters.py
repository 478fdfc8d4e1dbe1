"""Which jobs are meant: one filter for the list of jobs, for job actions, for commands and for the page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from inspect import Parameter
from typing import Annotated, Any
from uuid import UUID

from fastapi import Query
from pydantic import Field, ValidationError, create_model

from planq.api.http.exchange import HttpRefusal, decode_body
from planq.api.intake.submission import check_object
from planq.api.schemas import MAX_METADATA_BYTES, Metadata, RequestBody
from planq.shared.kernel.states import JobStatus, Strategy
from planq.shared.platform.errors import InvalidRequest, capped, storable
from planq.shared.platform.values.describe import excerpt
from planq.shared.subjects.jobs.selection import FILTER_FIELDS, FilterField, JobFilter

_METADATA = (
    "A JSON object: each of these keys stands in its metadata with this value; "
    "a text also fits the number, true, false or null that is written so."
)
_IN_QUERY: Mapping[str, Any] = {
    "status": Annotated[JobStatus | None, Query(description="Only jobs that stand here.")],
    "strategy": Annotated[Strategy | None, Query(description="Only jobs with this strategy.")],
    "metadata": Annotated[str | None, Query(description=_METADATA)],
}
_IN_BODY: Mapping[str, Any] = {
    "status": Field(
        None, description="Where they stand; without it all that can be changed so, of a retry those that failed."
    ),
    "metadata": Field(
        None,
        description="Each of these keys stands in its metadata with this value; a text also fits the number, true, "
        "false or null that is written so.",
    ),
}
"""What is said of a field in an address and in a body where it is not the same in both."""


def _checked_type(one: FilterField) -> Any:
    is_plain = one.meaning is None and not one.bounds
    return one.kind if is_plain else Annotated[one.kind, Field(description=one.meaning, **one.bounds)]


def query_parameters(*names: str) -> list[Parameter]:
    """Return the query parameters for these fields of the filter, for all without names."""
    return [
        Parameter(
            one.name,
            Parameter.POSITIONAL_OR_KEYWORD,
            default=None,
            annotation=_IN_QUERY.get(one.name) or Annotated[_checked_type(one) | None, Query()],
        )
        for one in FILTER_FIELDS
        if not names or one.name in names
    ]


def _body_type(one: FilterField) -> Any:
    if one.name == "metadata":
        return Metadata
    if issubclass(one.kind, StrEnum):
        return Annotated[one.kind, Field(strict=False)] | None
    return _checked_type(one) | None


_TYPES: dict[str, Any] = {one.name: (_body_type(one), _IN_BODY.get(one.name)) for one in FILTER_FIELDS}
_Fields = create_model("_Fields", __base__=RequestBody, **_TYPES)


class JobFilterRequest(_Fields):
    """Which jobs are meant: those for which all of it holds, never child jobs, none at all that came later."""

    def checked(self, now: datetime) -> JobFilter:
        """Return the filter as it is stored; raises `TooLarge` for metadata, `InvalidRequest` for a bad time."""
        given: dict[str, Any] = dict(self)
        check_object("metadata", given["metadata"], MAX_METADATA_BYTES)
        before = [_ago(now, given["older_than_seconds"]), _time("created_before", given["created_before"])]
        after = [_ago(now, given["newer_than_seconds"]), _time("created_after", given["created_after"])]
        given |= {
            "batch_id": given["batch_id"] and UUID(given["batch_id"]),
            "made_before": min((one for one in before if one is not None), default=None),
            "made_after": max((one for one in after if one is not None), default=None),
        }
        kept = {name: given[name] for name in _KEPT}
        texts: dict[str, Any] = {name: storable(one) for name, one in kept.items() if type(one) is str}
        return JobFilter(**(kept | texts))


_KEPT = [one.name for one in fields(JobFilter)]


def filter_of(given: Mapping[str, Any], now: datetime) -> JobFilter:
    """Return the filter of a query, whose `metadata` is the text of a JSON object; None means absent.

    Raises `InvalidRequest` for a bad value, and as `checked` does.
    """
    known = {name: value for name, value in given.items() if value is not None}
    known["metadata"] = object_in("metadata", given.get("metadata"))
    try:
        return JobFilterRequest.model_validate(known).checked(now)
    except ValidationError as error:
        defects = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors(include_url=False)]
        raise InvalidRequest("; ".join(defects[:10])) from None


def object_in(name: str, text: str | None) -> dict[str, Any] | None:
    """Return the JSON object of a parameter; raises `InvalidRequest` for other text, `TooLarge` for a long one."""
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
