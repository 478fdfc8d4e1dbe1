"""The one shape of every refusal: problem details, RFC 9457, as `application/problem+json`.

    {"type": "about:blank", "title": "Not Found", "status": 404, "detail": "there is no job …", "code": "not_found"}

`code` is stable and made for programs, `detail` for people. `errors` lists single defects where there are several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

MEDIA_TYPE = "application/problem+json"


_TITLES = {413: "Content Too Large", 414: "URI Too Long", 416: "Range Not Satisfiable", 422: "Unprocessable Content"}
"""What RFC 9110 calls statuses for which Python before 3.13 has the names of RFC 2616 and RFC 4918."""


def title_of(status: int) -> str:
    """Return an HTTP status in words, the same on every Python."""
    return _TITLES.get(status) or HTTPStatus(status).phrase


class Problem(BaseModel):
    """Problem details (RFC 9457, section 3) with planq's members `code`, `errors` and `retryable`."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(default="about:blank", description="A URI reference; `code` tells the kinds apart.")
    title: str = Field(description="The HTTP status in words.")
    status: int = Field(description="The HTTP status.")
    detail: str = Field(description="What was expected, what was found, what to do.")
    code: str = Field(description="A stable name of the kind of problem, for programs.")
    instance: str | None = Field(default=None, description="The id under which a fault was logged.")
    errors: list[dict[str, Any]] | None = Field(default=None, description="Every defect, where there are several.")


class Refusal(HTTPException):
    """A refusal that is about HTTP itself, so that it has no place in the domain's tree of errors.

    It is an `HTTPException` because FastAPI lets only those through while it reads a body.
    """

    def __init__(
        self, status: int, code: str, detail: str, *, headers: Mapping[str, str] | None = None, **members: Any
    ) -> None:
        super().__init__(status, detail, dict(headers) if headers else None)
        self.code = code
        self.members = members


def problem(
    status: int,
    code: str,
    detail: str,
    *,
    errors: Sequence[Mapping[str, Any]] | None = None,
    instance: str | None = None,
    members: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return problem details as a JSON object; `members` are further ones and never replace these."""
    shown: dict[str, Any] = {
        "type": "about:blank",  # RFC 9457 §4.2.1: the title is then that of the status
        "title": title_of(status),
        "status": status,
        "detail": detail,
        "code": code,
    }
    if instance is not None:
        shown["instance"] = instance
    if errors is not None:
        shown["errors"] = list(errors)
    return {**(members or {}), **shown}


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI description of these error statuses, each a problem."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": title_of(status), "content": content} for status in statuses}
