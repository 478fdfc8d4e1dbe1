"""What leaves the API: JSON, problem details, and stored outputs as the bytes that they are.

Every refusal has the one shape of RFC 9457, as `application/problem+json`:

    {"type": "about:blank", "title": "Not Found", "status": 404, "detail": "there is no job …", "code": "not_found"}

`code` is stable and made for programs, `detail` for people. `errors` lists single defects where there are several.
Outputs and artifacts are never decoded on their way, and large ones go in slices. Their entity tag is the SHA-256 of
the bytes; a client that has them already gets 304.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Any

import orjson
from fastapi import Header
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse

from shared.domain.encoding import JsonText
from shared.store.payloads import PayloadStore
from shared.store.requests import StoredJson

_JSON = "application/json"

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


def encode(value: Any) -> bytes:
    """Return JSON text in UTF-8 for what the store holds: integers of any size, and strings of any code points.

    A `JsonText` in it is part of the text as it is.
    """
    try:
        return orjson.dumps(value, default=_as_it_is, option=orjson.OPT_PASSTHROUGH_DATACLASS)
    except TypeError:
        # Tools may return integers beyond 64 bits and lone surrogates; both have a JSON form, only not in orjson.
        return json.dumps(value, allow_nan=False, separators=(",", ":"), default=_value_of).encode("ascii")


def _as_it_is(value: Any) -> orjson.Fragment:
    if isinstance(value, JsonText):
        return orjson.Fragment(value.body)
    raise TypeError


def _value_of(value: Any) -> Any:
    if isinstance(value, JsonText):
        return json.loads(value.body)
    raise TypeError(f"{type(value).__name__} has no JSON form")


class JsonResponse(Response):
    """A response whose content is encoded by `encode`."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the body."""
        return encode(content)


IfNoneMatch = Annotated[str | None, Header(description="Entity tags of what the caller has already.")]


STORED: dict[int | str, dict[str, Any]] = {
    200: {"headers": {"ETag": {"description": "The SHA-256 of the JSON, in quotes.", "schema": {"type": "string"}}}},
    304: {"description": "The caller has it already."},
}


async def stored_json(
    payloads: PayloadStore,
    tenant_id: str,
    stored: StoredJson,
    if_none_match: str | None,
    more: Mapping[str, str] | None = None,
) -> Response:
    """Return the response that carries stored JSON, and `more` headers.

    Raises `StorageUnavailable` when a payload cannot be read. If that happens after its first slice, the connection
    breaks off before the announced length, which every client notices.
    """
    digest = stored.payload or hashlib.sha256(stored.body).digest()
    headers = {"ETag": f'"{digest.hex()}"', "Cache-Control": "private, no-cache", **(more or {})}
    if _is_known(headers["ETag"], if_none_match):
        return Response(status_code=304, headers=headers)
    if stored.payload is None:
        return Response(stored.body, media_type=_JSON, headers=headers)
    size, pieces = await payloads.open(tenant_id, stored.payload)
    # What is wrong with the storage shows at the first slice, while a status can still say so.
    first = await anext(pieces)
    return StreamingResponse(
        _chained(first, pieces), media_type=_JSON, headers={**headers, "Content-Length": str(size)}
    )


def _is_known(tag: str, if_none_match: str | None) -> bool:
    """Compare weakly (RFC 9110, section 13.1.2)."""
    if if_none_match is None:
        return False
    given = [one.strip().removeprefix("W/") for one in if_none_match.split(",")]
    return tag in given or "*" in given


async def _chained(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in rest:
        yield piece
