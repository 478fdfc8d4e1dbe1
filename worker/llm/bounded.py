"""No more of a reply than a limit: a model server that never ends, or a small body that unpacks to gigabytes.

`bound(client)` hooks into every response of an HTTP client before its body is read. The body is unpacked here, within
the limit, instead of by the client, which unpacks whatever it is given.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator

import httpx2

MAX_REPLY_BYTES = 16 * 1024 * 1024
"""Some hundred times the longest answer that `max_output_tokens` allows."""

_CODINGS = ("gzip", "deflate")


class ReplyTooLarge(Exception):
    """The body of a reply is longer than the limit, or packed in a way that was not offered."""


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream, *, is_packed: bool, limit: int) -> None:
        self._inner = inner
        self._limit = limit
        # Gzip or zlib, by what the data begins with.
        self._unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32) if is_packed else None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = self._limit
        async for chunk in self._inner:
            piece = chunk if self._unpacker is None else self._unpack(chunk, left + 1)
            left -= len(piece)
            if left < 0:
                raise ReplyTooLarge(f"expected a reply of at most {self._limit} bytes, found a longer one")
            yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()

    def _unpack(self, chunk: bytes, most: int) -> bytes:
        assert self._unpacker is not None
        try:
            return self._unpacker.decompress(chunk, most)
        except zlib.error as error:
            raise httpx2.DecodingError(f"the compressed reply is damaged: {error}") from error


def bound(client: httpx2.AsyncClient, limit: int = MAX_REPLY_BYTES) -> httpx2.AsyncClient:
    """Make every body that `client` reads end with `ReplyTooLarge` beyond `limit` bytes; returns the client.

    The SDKs wrap what is raised here; look for it along the causes of their exceptions.
    """

    async def bounded(response: httpx2.Response) -> None:
        coding = response.headers.pop("content-encoding", "identity").strip().lower()
        if coding not in ("", "identity", *_CODINGS):
            raise ReplyTooLarge(f"expected a reply packed as {' or '.join(_CODINGS)}, found {coding[:40]!r}")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Bounded(response.stream, is_packed=coding in _CODINGS, limit=limit)

    client.headers["Accept-Encoding"] = ", ".join(_CODINGS)
    client.event_hooks = {**client.event_hooks, "response": [*client.event_hooks.get("response", []), bounded]}
    return client
