"""The two transports of the SDK, wrapped so that planq learns when a connection ends and why HTTP refused.

Imported only when a server is configured.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import Context, ContextVar
from typing import Any

import anyio
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from httpx2 import AsyncByteStream, Request, Response, SSEError, Timeout
from mcp.client._transport import ReadStream, TransportStreams, WriteStream
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage

from planq.shared.kernel.limits import MAX_TIMEOUT_SECONDS
from planq.worker.egress import AnswerBounds, Egress
from planq.worker.tools.mcp.config import McpServer
from planq.worker.tools.mcp.reading import Reading, too_many_bytes
from planq.worker.tools.mcp.stdio import stdio_transport

# It writes a traceback for each message that it cannot read; the call that fails names the reason.
logging.getLogger("mcp.client.streamable_http").setLevel(logging.CRITICAL)

http_refusal: ContextVar[deque[int] | None] = ContextVar("planq.mcp.http_refusal", default=None)
"""Where the last HTTP status of 400 or above that answered a call is noted for its caller.

The SDK reports all of them with one text, but runs each POST in a copy of its caller's context.
"""


call_headers: ContextVar[Mapping[str, str] | None] = ContextVar("planq.mcp.call_headers", default=None)
"""Headers of a call in addition to the server's."""

NOT_SENT = 0
"""Noted in place of a status when no connection could be opened for a call."""

_MAX_STREAM = 4
"""Events that lead to one answer, and the answer, are at most this many times as large as an answer may be."""

_GET_SECONDS = 1.0
"""The least time between two GETs: a server chooses how soon the SDK connects again for its events."""


@asynccontextmanager
async def open_transport(
    server: McpServer, reading: Reading, ended: Callable[[], None], egress: Egress
) -> AsyncIterator[TransportStreams]:
    """Open the server's transport; `ended` is called when no message can come from it any more."""
    opened = stdio_transport(server, reading) if server.command is not None else _http(server, reading, egress)
    async with opened as (read, write):
        yield _WatchedStream(read, reading, ended), _NotedStream(write, reading)


@asynccontextmanager
async def _http(server: McpServer, reading: Reading, egress: Egress) -> AsyncIterator[TransportStreams]:
    assert server.url is not None
    # A call's own limit is the step's timeout; this one only has to be longer.
    longest = MAX_TIMEOUT_SECONDS + 30.0
    bounds = AnswerBounds(reading.most, longest, open_streams=True)
    timeout = Timeout(30.0, read=longest)
    next_get = 0.0

    async def wait_before_get(request: Request) -> None:
        nonlocal next_get
        if request.method == "GET":
            now = asyncio.get_running_loop().time()
            at = max(now, next_get)
            next_get = at + _GET_SECONDS
            await asyncio.sleep(at - now)

    async def bound(response: Response) -> None:
        if response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            response.stream = _EventStream(response, reading)

    hooks: dict[str, list[Callable[..., Any]]] = {
        "request": [_add_headers, wait_before_get],
        "response": [_note_refusal, bound],
    }
    async with (
        egress.trusted(bounds, timeout, headers=server.headers, event_hooks=hooks, not_sent=_note_unsent) as client,
        streamable_http_client(server.url, http_client=client, max_sse_event_size=reading.most) as streams,
    ):
        yield streams


class _EventStream(AsyncByteStream):
    def __init__(self, response: Response, reading: Reading) -> None:
        self._inner = response.stream
        self._reading = reading
        self._is_open = response.request.method == "GET"

    async def __aiter__(self) -> AsyncIterator[bytes]:
        assert isinstance(self._inner, AsyncByteStream)
        size, most = 0, _MAX_STREAM * self._reading.most
        async for chunk in self._inner:
            size += len(chunk)
            if self._is_open:
                await self._reading.pace(len(chunk))
            elif size > most:
                raise SSEError(too_many_bytes(most))
            yield chunk

    async def aclose(self) -> None:
        assert isinstance(self._inner, AsyncByteStream)
        await self._inner.aclose()


def _note_unsent(request: Request) -> None:
    """Note that a POST, which is what a call is, could not be sent; GETs only fetch answers."""
    noted = http_refusal.get()
    if noted is not None and request.method == "POST":
        noted.append(NOT_SENT)


async def _add_headers(request: Request) -> None:
    request.headers.update(call_headers.get() or {})


async def _note_refusal(response: Response) -> None:
    noted = http_refusal.get()
    if noted is not None and response.status_code >= 400:
        noted.append(response.status_code)


class _WatchedStream(ObjectReceiveStream[SessionMessage | Exception]):
    """A read stream that reports its end, and drops answers that were not asked for; else the one that it wraps."""

    def __init__(
        self, inner: ReadStream[SessionMessage | Exception], reading: Reading, ended: Callable[[], None]
    ) -> None:
        self._inner = inner
        self._reading = reading
        self._ended = ended

    @property
    def last_context(self) -> Context | None:
        """The sender's context of the last message, where the inner stream keeps it."""
        context: Context | None = getattr(self._inner, "last_context", None)
        return context

    async def receive(self) -> SessionMessage | Exception:
        try:
            while True:
                item = await self._inner.receive()
                if await self._reading.received(item):
                    return item
        except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            self._ended()
            raise

    async def aclose(self) -> None:
        await self._inner.aclose()


class _NotedStream(ObjectSendStream[SessionMessage]):
    def __init__(self, inner: WriteStream[SessionMessage], reading: Reading) -> None:
        self._inner = inner
        self._reading = reading

    async def send(self, item: SessionMessage) -> None:
        self._reading.sent(item.message)
        await self._inner.send(item)

    async def aclose(self) -> None:
        await self._inner.aclose()
