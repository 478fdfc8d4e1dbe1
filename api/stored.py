"""Outputs and artifacts as they are stored: their bytes, never decoded, large ones in slices.

The entity tag is the SHA-256 of the bytes; whoever has them already gets 304.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any

from fastapi import Header
from starlette.responses import Response, StreamingResponse

from shared.store.payloads import PayloadStore
from shared.store.requests import StoredJson

_JSON = "application/json"

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
