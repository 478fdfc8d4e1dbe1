"""One MCP server: a task that holds the connection, and calls that wait for it.

The SDK's cancel scopes must be left in the task that entered them, so one task opens, holds and closes the
connection; calls run in their callers' tasks. When the connection ends, calls in flight fail as passing faults (the
engine decides by effect class what may be repeated), and the task connects again: at once or after a growing pause,
and without waiting for its end when a call asks for it. Imported only when a server is configured.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import mcp_types as types
from mcp.client import Client

from shared.domain.errors import Unreached
from shared.domain.redact import Redaction
from shared.telemetry.logs import hide
from worker.tools.errors import quoted
from worker.tools.mcp.config import McpServer
from worker.tools.mcp.failures import failure_of, is_connection_lost
from worker.tools.mcp.transport import http_refusal, open_transport

log = logging.getLogger("planq.tools")

IDEMPOTENCY_KEY = "dev.planq/idempotencyKey"
"""In `_meta` of a call: the same for every attempt of a step."""

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 60.0
STEADY_SECONDS = 30.0
"""A connection that lasted this long is opened anew without a pause; one that ends sooner might end in a loop."""

QUIET_SECONDS = 1.0
"""A call asks for a new connection no sooner than this after one failed, so that many calls make one attempt."""

MAX_PAGES = 100
CLOSE_SECONDS = 8.0
"""The SDK gives a stdio server up to 6.5 s to end before it is killed and given up."""

ENDED = "the connection ended"

Listed = Sequence[Mapping[str, Any]]


class ServerConnection:
    """The connection to one server; `on_tools` gets the JSON form of its tools after each connecting."""

    def __init__(self, server: McpServer, on_tools: Callable[[Listed], None]) -> None:
        self.server = server
        self.problem = "it was never connected"
        self._hide = Redaction(server.secrets)
        hide(server.secrets)
        self._on_tools = on_tools
        self._client: Client | None = None
        self._task: asyncio.Task[None] | None = None
        self._lost = asyncio.Event()
        self._wanted = asyncio.Event()
        self._attempted = asyncio.Event()
        self._stopping = asyncio.Event()
        self._failed_at = float("-inf")

    async def open(self) -> bool:
        """Start the task, wait for its first attempt, and return whether that connected."""
        self._task = asyncio.create_task(self._stay_connected(), name=f"planq-mcp-{self.server.name}")
        await self._attempted.wait()
        return self._client is not None

    async def aclose(self) -> None:
        """Close the connection and end a stdio server; returns when its process is gone or was given up."""
        self._stopping.set()
        self._lose()
        self._wanted.set()
        if self._task is not None:
            with contextlib.suppress(asyncio.CancelledError, TimeoutError):
                await asyncio.wait_for(self._task, CLOSE_SECONDS)

    async def call(self, tool: str, arguments: Mapping[str, Any], idempotency_key: str) -> dict[str, Any]:
        """Call a tool once and return the JSON form of its `CallToolResult`.

        Cancelling tells the server to stop. Raises `ExecutionFailed` subclasses only: `Unreached` when nothing was
        sent, `Transient` when the connection ended before the answer came.
        """
        client = await self._connected()
        # The SDK's type is an open map, which mypy cannot yet express (PEP 728).
        meta = cast("types.RequestParamsMeta", {IDEMPOTENCY_KEY: idempotency_key})
        refusal: deque[int] = deque(maxlen=1)
        token = http_refusal.set(refusal)
        try:
            result = await client.call_tool(tool, dict(arguments), meta=meta)
        except Exception as error:
            if is_connection_lost(error) and client is self._client:
                self._lose()
            failure = failure_of(error, self.server.name, tool, refusal)
            failure.message = self._hide(failure.message)  # it is stored and shown, and servers repeat what they got
            raise failure from error
        finally:
            http_refusal.reset(token)
        return {
            "content": [self._block(block, is_error=bool(result.is_error)) for block in result.content],
            "structuredContent": result.structured_content,
            "isError": result.is_error,
        }

    def _block(self, block: types.ContentBlock, *, is_error: bool) -> dict[str, Any]:
        """Return the JSON form of a part of a result; the text of an error without what may be secret."""
        shown: dict[str, Any] = block.model_dump(mode="json", by_alias=True, exclude_none=True)
        if is_error and isinstance(shown.get("text"), str):
            shown["text"] = self._hide(shown["text"])
        return shown

    def _lose(self) -> None:
        """Give the connection up at once: its task closes it later, and what was sent on it would reach nobody."""
        self._client = None
        self._lost.set()

    async def _connected(self) -> Client:
        if self._task is None or self._task.done():
            raise Unreached(f"MCP server {self.server.name!r}: this worker has closed its connection")
        if self._client is None and asyncio.get_running_loop().time() - self._failed_at >= QUIET_SECONDS:
            self._attempted.clear()
            self._wanted.set()
            await self._attempted.wait()
        if self._client is None:
            raise Unreached(f"MCP server {self.server.name!r} is not connected: {self.problem}")
        return self._client

    async def _stay_connected(self) -> None:
        pause = 0.0
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._wanted.wait()
                if self._stopping.is_set():
                    break
                self._wanted.clear()
                pause = await self._hold_one_connection(pause)
        finally:
            self._attempted.set()

    async def _hold_one_connection(self, pause: float) -> float:
        """Connect, stay connected until the connection ends, and return the pause before the next attempt."""
        loop = asyncio.get_running_loop()
        connected_at: float | None = None
        reason = ENDED
        refusal: deque[int] = deque(maxlen=1)
        http_refusal.set(refusal)
        self._lost.clear()
        try:
            async with asyncio.timeout(self.server.planq.connect_timeout_seconds) as limit:
                async with self._new_client() as client:
                    client.session.validate_tool_result = _left_to_the_engine  # type: ignore[method-assign]
                    listed = await _list_tools(client)
                    limit.reschedule(None)
                    connected_at = loop.time()
                    self._announce(client, listed)
                    await self._lost.wait()
                    self._client = None  # it may have been lost before it was announced
                    limit.reschedule(loop.time() + CLOSE_SECONDS)
        except Exception as error:
            if connected_at is None or not isinstance(error, TimeoutError):  # closing may last too long
                reason = self._hide(_reason(error)) + "".join(f" (HTTP {status})" for status in refusal)
        finally:
            self._client = None
        if self._stopping.is_set():
            return 0.0
        self.problem = reason
        log.warning("mcp_server_lost", extra={"server": self.server.name, "reason": reason})
        if connected_at is None:
            self._failed_at = loop.time()
            self._attempted.set()
        elif loop.time() - connected_at >= STEADY_SECONDS:
            return 0.0
        return min(max(2 * pause, FIRST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)

    def _new_client(self) -> Client:
        return Client(
            open_transport(self.server, self._lose),
            cache=None,
            client_info=types.Implementation(name="planq", version="1"),
        )

    def _announce(self, client: Client, listed: Listed) -> None:
        self._client = client
        self.problem = ENDED
        log.info(
            "mcp_server_connected",
            extra={"server": self.server.name, "tools": len(listed), "protocol": client.protocol_version},
        )
        self._on_tools(listed)
        self._attempted.set()


async def _left_to_the_engine(name: str, result: types.CallToolResult) -> None:
    """Stand in for the SDK's own check of an output against its schema, before ours.

    It matches patterns, which a server may choose as it likes, with Python's engine on this very loop.
    """


async def _list_tools(client: Client) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        listed.extend(_as_listed(tool) for tool in page.tools)
        cursor = page.next_cursor
        if cursor is None:
            break
    return listed


def _as_listed(tool: types.Tool) -> dict[str, Any]:
    """Return a tool in the JSON form of the protocol; schemas as the server sent them."""
    hints = tool.annotations
    return {
        "name": tool.name,
        "title": tool.title,
        "description": tool.description,
        "inputSchema": tool.input_schema,
        "outputSchema": tool.output_schema,
        "annotations": None if hints is None else hints.model_dump(by_alias=True, exclude_none=True),
        "taskSupport": None if tool.execution is None else tool.execution.task_support,
    }


def _reason(error: Exception) -> str:
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return "it did not answer in time" if isinstance(error, TimeoutError) and not str(error) else quoted(error)
