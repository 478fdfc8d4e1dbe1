"""The tools of all MCP servers of one worker, and their life from start to end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from planq.shared.domain.errors import Misconfigured
from planq.shared.domain.results.artifacts import build_tool_response, provenance
from planq.shared.domain.tools.definition import ToolDefinition
from planq.shared.domain.tools.scoping import scope_headers
from planq.shared.domain.values.backoff import pause_after
from planq.shared.ports import BytesArtifact, RichOutput, Tool, ToolContext
from planq.worker.egress import Egress
from planq.worker.tools.declare import faults_of
from planq.worker.tools.errors import ToolError
from planq.worker.tools.mcp.asking import Conversation, Need, Resumption
from planq.worker.tools.mcp.config import McpServer
from planq.worker.tools.mcp.definitions import answer_of, definition_of
from planq.worker.tools.registry import check_definition

if TYPE_CHECKING:
    from planq.worker.tools.mcp.connection import ServerConnection

_log = logging.getLogger("planq.tools")

_MOST_LEGS = 12
"""Most requests to a server that one attempt at a call makes."""

_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0

OnChange = Callable[[str, Sequence[Tool]], None]
"""`(source, tools)`: the tools of this source are now exactly these; `Registry.replace` is one."""


class McpTool:
    """One tool of an MCP server."""

    def __init__(self, connection: ServerConnection, listed: Mapping[str, Any], definition: ToolDefinition) -> None:
        self._connection = connection
        self._tool: str = listed["name"]
        self._declared: Mapping[str, Any] | None = listed.get("outputSchema")
        self._definition = definition
        self.place = f"{definition.source} (tool {self._tool!r})"

    @property
    def definition(self) -> ToolDefinition:
        """The published definition."""
        return self._definition

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Call the server, and ask people what it needs to know; see `planq.shared.ports.Tool.call`."""
        result = await self._result(arguments, context)
        artifact_id = f"{context.idempotency_key}/content"
        answer = answer_of(self._definition.name, self._declared, result, artifact_id)
        now = datetime.now(UTC)
        artifacts: list[Mapping[str, Any] | BytesArtifact] = [
            BytesArtifact(file.artifact_id, file.data, file.media_type, provenance(context, now))
            for file in answer.files
        ]
        if answer.kept:
            body = {"artifact_type": "mcp_content", "content": answer.kept}
            artifacts.append(build_tool_response(artifact_id, body, context, now))
        if not artifacts and answer.content is None:
            return answer.output
        return RichOutput(answer.output, artifacts, answer.content)

    async def _result(self, arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
        """Return the server's result. A call that people have answered goes on where the server left it."""
        from planq.worker.tools.mcp.connection import StateForgotten

        server = self._connection.server.name
        talk = Conversation(server, self._tool, context.people)
        says = talk.said_in_the_middle if self._definition.repeatable and context.people is not None else None
        headers = scope_headers(context) if self._definition.user_scoped else None
        resumption = talk.resumption()
        has_forgotten = False

        async def progressed(progress: float, total: float | None, message: str | None) -> None:
            part = progress / total if total and 0 <= progress <= total else None
            await context.progress(part, message or "")

        for leg in range(_MOST_LEGS):
            try:
                result = await self._connection.call(
                    self._tool, arguments, context.idempotency_key, resumption, says, headers, progressed
                )
            except StateForgotten:
                if has_forgotten or resumption is None:
                    break
                has_forgotten, resumption = True, None
                talk.forget()
                continue
            if not isinstance(result, Need):
                return result
            if result.requests:
                resumption = talk.put(result)
            else:  # the server is not done, and wants to be asked again
                resumption = Resumption(state=result.state)
                await asyncio.sleep(pause_after(leg + 1, _FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS))
        why = "does not know the state that it gave just now" if has_forgotten else "keeps asking to be called again"
        raise ToolError(f"MCP server {server!r}, tool {self._tool!r}, {why}")


class McpToolbox:
    """The servers of an `mcp.json`; made by `connect_mcp`."""

    def __init__(
        self, servers: Sequence[McpServer], on_change: OnChange | None = None, egress: Egress | None = None
    ) -> None:
        self._servers = servers
        self._on_change = on_change
        self._egress = egress or Egress()
        self._connections: list[ServerConnection] = []
        self._tools: dict[str, list[Tool]] = {}
        self._refused: dict[str, str] = {}
        self._is_open = False

    async def open(self) -> None:
        """Connect to all servers at once; raises `Misconfigured` for a required one that gives no usable tools."""
        if not self._servers:
            return
        from planq.worker.tools.mcp.connection import ServerConnection

        for server in self._servers:
            self._connections.append(self._connection(ServerConnection, server))
        try:
            connected = await asyncio.gather(*(connection.open() for connection in self._connections))
            for connection, is_connected in zip(self._connections, connected, strict=True):
                self._check_required(connection, is_connected)
        except BaseException:
            await self.aclose()
            raise
        self._is_open = True

    def tools(self) -> list[Tool]:
        """Return the tools of every server that has been reached, also of one that is away just now."""
        return [tool for tools in self._tools.values() for tool in tools]

    def away(self) -> list[str]:
        """Return a sentence for each required server that is away just now; callable from any thread."""
        return [
            f"the required MCP server {one.server.name!r} is away: {one.problem}"
            for one in self._connections
            if one.server.planq.required and not one.is_connected
        ]

    async def aclose(self) -> None:
        """Close all connections and end the stdio servers."""
        await asyncio.gather(*(connection.aclose() for connection in self._connections))

    def _connection(self, kind: type[ServerConnection], server: McpServer) -> ServerConnection:
        def on_tools(listed: Sequence[Mapping[str, Any]]) -> None:
            self._take(connection, listed)

        connection = kind(server, on_tools, self._egress)
        return connection

    def _check_required(self, connection: ServerConnection, is_connected: bool) -> None:
        server = connection.server
        refused = self._refused.get(server.source)
        if not server.planq.required or (is_connected and refused is None):
            return
        raise Misconfigured(
            f"MCP server {server.name!r} is required: {refused or connection.problem}; "
            'start it, correct its entry in mcp.json, or remove "required"'
        )

    def _take(self, connection: ServerConnection, listed: Sequence[Mapping[str, Any]]) -> None:
        """Replace the tools of a server by what it lists now; unusable ones are logged and left out."""
        server = connection.server
        tools: dict[str, Tool] = {}
        for entry in listed:
            if entry.get("taskSupport") == "required":
                reason = (
                    f"tool {entry['name']!r} can only be called as a task of its server, which planq cannot do yet"
                )
                _log.warning("mcp_tool_refused", extra={"server": server.name, "reason": reason})
                continue
            try:
                tool = McpTool(connection, entry, definition_of(server, entry))
                check_definition(tool.definition, tool.place, is_trusted=False)
                _refuse_double(tools, tool)
            except (Misconfigured, ValidationError) as error:
                problem = faults_of(error) if isinstance(error, ValidationError) else error.message
                self._refused[server.source] = problem
                _log.warning("mcp_tool_refused", extra={"server": server.name, "reason": problem})
                continue
            tools[tool.definition.name] = tool
        before = {tool.definition.name: tool.definition for tool in self._tools.get(server.source, ())}
        if self._is_open and before == {name: tool.definition for name, tool in tools.items()}:
            return
        self._tools[server.source] = list(tools.values())
        if self._is_open and self._on_change is not None:
            try:
                self._on_change(server.source, self._tools[server.source])
            except Misconfigured as error:
                _log.warning("mcp_tools_refused", extra={"server": server.name, "reason": error.message})


def _refuse_double(tools: Mapping[str, Tool], tool: McpTool) -> None:
    if tool.definition.name in tools:
        raise Misconfigured(f"{tool.place}: another tool of this server is also called {tool.definition.name!r}")
