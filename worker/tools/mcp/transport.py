"""The two transports of the SDK, wrapped so that planq learns when a connection ends and why HTTP refused.

Imported only when a server is configured.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import Context, ContextVar
from typing import Any

import anyio
from anyio.abc import ObjectReceiveStream
from httpx2 import Request, Response, Timeout
from mcp.client._transport import ReadStream, TransportStreams
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage

from planq.shared.domain.jobs.limits import MAX_TIMEOUT_SECONDS
from planq.worker.egress import AnswerBounds, Egress
from planq.worker.tools.mcp.config import McpServer

http_refusal: ContextVar[deque[int] | None] = ContextVar("planq.mcp.http_refusal", default=None)
"""Where the last HTTP status of 400 or above that answered a call is noted for its caller.

The SDK reports all of them with one text, but runs each POST in a copy of its caller's context.
"""


call_headers: ContextVar[Mapping[str, str] | None] = ContextVar("planq.mcp.call_headers", default=None)
"""What a call says beside the server's own headers."""

_MAX_ANSWER_BYTES = 16 * 1024 * 1024
"""Of an answer that is no event stream, whose events the SDK bounds one by one."""

NOT_SENT = 0
"""Noted in place of a status when no connection could be opened for a call."""


@asynccontextmanager
async def open_transport(
    server: McpServer, ended: Callable[[], None], egress: Egress
) -> AsyncIterator[TransportStreams]:
    """Open the server's transport; `ended` is called when no message can come from it any more."""
    async with _transport(server, egress) as (read, write):
        yield _WatchedStream(read, ended), write


@asynccontextmanager
async def _transport(server: McpServer, egress: Egress) -> AsyncIterator[TransportStreams]:
    if server.command is not None:
        async with _stdio(server) as streams:
            yield streams
        return
    assert server.url is not None
    # A call's own limit is the step's timeout; this one only has to be longer.
    longest = MAX_TIMEOUT_SECONDS + 30.0
    bounds, timeout = AnswerBounds(_MAX_ANSWER_BYTES, longest, open_streams=True), Timeout(30.0, read=longest)
    hooks: dict[str, list[Callable[..., Any]]] = {"request": [_add_headers], "response": [_note_refusal]}
    async with (
        egress.trusted(bounds, timeout, headers=server.headers, event_hooks=hooks, not_sent=_note_unsent) as client,
        streamable_http_client(server.url, http_client=client) as streams,
    ):
        yield streams


def _stdio(server: McpServer) -> AbstractAsyncContextManager[TransportStreams]:
    assert server.command is not None
    parameters = StdioServerParameters(command=server.command, args=server.args, env=server.env, cwd=server.cwd)
    # Not `sys.stderr`: Celery puts a logger in its place, which is no file that a child process could write to.
    return stdio_client(parameters, errlog=sys.__stderr__ or sys.stderr)


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
    """A read stream that reports its end; else the stream that it wraps."""

    def __init__(self, inner: ReadStream[SessionMessage | Exception], ended: Callable[[], None]) -> None:
        self._inner = inner
        self._ended = ended

    @property
    def last_context(self) -> Context | None:
        """The sender's context of the last message, where the inner stream keeps it."""
        context: Context | None = getattr(self._inner, "last_context", None)
        return context

    async def receive(self) -> SessionMessage | Exception:
        try:
            return await self._inner.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            self._ended()
            raise

    async def aclose(self) -> None:
        await self._inner.aclose()
