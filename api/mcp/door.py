"""The door of the MCP server: it loads the SDK with the first message that comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlette.types import Receive, Scope, Send

from planq.api.deps import Services

if TYPE_CHECKING:
    from planq.api.mcp.server import McpServer


class McpDoor:
    """The ASGI application behind `/mcp`; precondition: it is asked while `open` holds.

    Importing the SDK takes half a second of a processor and 20 MB, and most processes never get a message.
    """

    def __init__(self, services: Services, max_body_bytes: int) -> None:
        self._services = services
        self._max_body_bytes = max_body_bytes
        self._closing = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None
        self._server: asyncio.Future[McpServer]

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            self._closing.set()
            if self._serving is not None:
                await self._serving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._serving is None:
            self._server = asyncio.get_running_loop().create_future()
            self._serving = asyncio.create_task(self._serve())
        await (await asyncio.shield(self._server))(scope, receive, send)

    async def _serve(self) -> None:
        # The server's own tasks end in the task that has begun them, so this one holds it open.
        server = await asyncio.to_thread(self._load)
        async with server.open():
            self._server.set_result(server)
            await self._closing.wait()

    def _load(self) -> McpServer:
        from planq.api.mcp.server import McpServer, ToolCalls

        s = self._services
        calls = ToolCalls(s.settings, s.submissions, s.requests, s.payloads, s.waits)
        return McpServer(s.catalogue, calls, self._max_body_bytes)
