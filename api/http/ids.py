"""Ids in paths and bodies, and the cursors and pages of lists. A cursor is opaque to clients."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar
from uuid import UUID

from fastapi import Query
from starlette.responses import Response

from planq.api.http.exchange import JsonResponse
from planq.shared.platform.errors import InvalidRequest, NotFound, capped


def uuid_of(what: str, text: str, whose: str = "their") -> UUID:
    """Return the id in a path; text that is no UUID names none of `what`: `NotFound`."""
    try:
        return UUID(text)
    except ValueError:
        raise NotFound(f"there is no {what} {capped(text, 80)!r}; {whose} ids are UUIDs") from None


def job_id_of(text: str) -> UUID:
    return uuid_of("job", text, "job")


def conversation_id_of(text: str) -> UUID:
    """Return the id of a conversation that a caller names, as `uuid_of` does."""
    return uuid_of("conversation", text)


T = TypeVar("T")

MAX_PAGE = 100
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE)]
CursorQuery = Annotated[
    str | None,
    # The 16 bytes of an id in base64 for URLs.
    Query(
        json_schema_extra={"pattern": "^[A-Za-z0-9_-]{21}[AQgw]$"}, description="`next_cursor` of the page before."
    ),
]


def page_of(
    rows: Sequence[T],
    limit: int,
    show: Callable[[T], Any] = lambda row: row,
    cursor_after: Callable[[T], str] | None = None,
) -> Response:
    """Answer with at most `limit` rows; one row more than that says that there is a next page.

    Where `cursor_after` does not say another, the cursor is the `id` of a page's last row.
    """
    after = cursor_after or (lambda row: cursor_of(row["id"].bytes))  # type: ignore[index]
    following = after(rows[limit - 1]) if len(rows) > limit else None
    return JsonResponse({"items": [show(row) for row in rows[:limit]], "next_cursor": following})


def id_of_cursor(cursor: str | None) -> UUID | None:
    """Return the id behind which a page begins, None for the first page; raises `InvalidRequest` for no cursor."""
    return None if cursor is None else UUID(bytes=cursor_bytes(cursor, 16))


def cursor_of(raw: bytes) -> str:
    """Return the bytes that name a place in a list as a cursor: base64 for URLs, without padding."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def cursor_bytes(cursor: str, size: int) -> bytes:
    """Return the bytes of a cursor; raises `InvalidRequest` for what is none of this `size`."""
    try:
        raw = base64.b64decode(f"{cursor}{'=' * (-len(cursor) % 4)}".encode("ascii"), altchars=b"-_", validate=True)
    except ValueError:
        raise no_cursor() from None
    if len(raw) != size:
        raise no_cursor()
    return raw


def no_cursor() -> InvalidRequest:
    return InvalidRequest("cursor: expected next_cursor of an earlier page, found something else")
