"""The HTTP clients of model providers: replies are bounded in size, closed in time, and streams from any server.

A small compressed body can unpack to gigabytes, and a server may never end. The body is therefore unpacked here,
within a limit, instead of in the client.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import httpx2
from pydantic_ai.models import create_async_httpx2_client

MAX_REPLY_BYTES = 16 * 1024 * 1024
"""Some hundred times the longest answer that `max_output_tokens` allows."""

_CODINGS = ("gzip", "deflate")

_replies: ContextVar[list[httpx2.Response] | None] = ContextVar("planq_replies", default=None)


class ReplyTooLarge(Exception):
    """The body of a reply is longer than the limit, or packed in a way that was not offered."""


def model_client(timeout: httpx2.Timeout, *, as_streams: bool) -> httpx2.AsyncClient:
    """Return a client whose bodies end with `ReplyTooLarge` beyond `MAX_REPLY_BYTES`.

    With `as_streams` a JSON body is read as an event stream: use it where only streams are asked for, since the body
    is kept in memory. The SDKs wrap exceptions that are raised here: look for them among the causes of theirs.
    """

    async def received(response: httpx2.Response) -> None:
        coding = response.headers.pop("content-encoding", "identity").strip().lower()
        if coding not in ("", "identity", *_CODINGS):
            raise ReplyTooLarge(f"expected a reply packed as {' or '.join(_CODINGS)}, found {coding[:40]!r}")
        stream = response.stream
        assert isinstance(stream, httpx2.AsyncByteStream)
        response.stream = _Body(_unpacked(stream, is_packed=coding in _CODINGS), stream)
        replies = _replies.get()
        if replies is not None:
            replies.append(response)
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if as_streams and response.is_success and kind == "application/json":
            response.stream = _Body(_as_stream(response.stream), stream)
            response.headers["content-type"] = "text/event-stream"

    client = create_async_httpx2_client(timeout=timeout)
    client.headers["Accept-Encoding"] = ", ".join(_CODINGS)
    hooks = client.event_hooks
    client.event_hooks = {**hooks, "response": [*hooks.get("response", []), received]}
    return client


@asynccontextmanager
async def closing_replies() -> AsyncIterator[None]:
    """Close what model clients receive within the block, in this asyncio task, when the block ends."""
    replies: list[httpx2.Response] = []
    token = _replies.set(replies)
    try:
        yield
    finally:
        _replies.reset(token)
        for response in replies:
            if not response.is_closed:
                await asyncio.shield(response.aclose())


class _Body(httpx2.AsyncByteStream):
    """Pieces made from an inner stream; read a second time (some SDKs look for more), it is empty."""

    def __init__(self, pieces: AsyncIterator[bytes], inner: httpx2.AsyncByteStream) -> None:
        self._pieces = pieces
        self._inner = inner

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._pieces

    async def aclose(self) -> None:
        await self._inner.aclose()


async def _unpacked(stream: httpx2.AsyncByteStream, *, is_packed: bool) -> AsyncIterator[bytes]:
    # Gzip or zlib, by what the data begins with.
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32) if is_packed else None
    left = MAX_REPLY_BYTES
    async for chunk in stream:
        try:
            piece = chunk if unpacker is None else unpacker.decompress(chunk, left + 1)
        except zlib.error as error:
            raise httpx2.DecodingError(f"the compressed reply is damaged: {error}") from error
        left -= len(piece)
        if left < 0:
            raise ReplyTooLarge(f"expected a reply of at most {MAX_REPLY_BYTES} bytes, found a longer one")
        yield piece


async def _as_stream(body: httpx2.AsyncByteStream | httpx2.SyncByteStream) -> AsyncIterator[bytes]:
    """Yield a chat completion as the events of a stream with all of it at once.

    Another body (an error object, say) becomes one event as it is, for the SDK to judge.
    """
    assert isinstance(body, httpx2.AsyncByteStream)
    whole = b"".join([piece async for piece in body])
    try:
        chunk = _chunk(json.loads(whole))
    except (ValueError, RecursionError, TypeError, KeyError):
        yield b"data: " + b" ".join(whole.split()) + b"\n\n"
    else:
        yield f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode("ascii")


def _chunk(completion: Mapping[str, Any]) -> dict[str, Any]:
    choices = [{**choice, "delta": _delta(choice["message"])} for choice in completion["choices"]]
    for choice in choices:
        del choice["message"]
    return {**completion, "object": "chat.completion.chunk", "choices": choices}


def _delta(message: Mapping[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls") or []
    return {**message, "tool_calls": [{**call, "index": index} for index, call in enumerate(calls)]}
