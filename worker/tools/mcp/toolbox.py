"""The tools of all MCP servers of one worker, and their life from start to end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from planq.shared.agentic.results.artifacts import build_tool_response, provenance
from planq.shared.agentic.schema.schemas import MAX_DEPTH, is_deeper_than
from planq.shared.agentic.tools.contract import BytesArtifact, RichOutput, Tool, ToolContext
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.agentic.tools.scoping import scope_headers
from planq.shared.kernel.states import Effect
from planq.shared.platform.errors import Misconfigured, capped
from planq.shared.platform.values.backoff import pause_after
from planq.worker.egress import Egress
from planq.worker.tools.declare import faults_of
from planq.worker.tools.errors import ToolError
from planq.worker.tools.mcp.asking import Conversation, Need, Resumption
from planq.worker.tools.mcp.config import McpServer
from planq.worker.tools.mcp.definitions import answer_of, definition_of, registry_names
from planq.worker.tools.mcp.listing import Listing, place_of
from planq.worker.tools.registry import check_definition

if TYPE_CHECKING:
    from planq.worker.tools.mcp.connection import ServerConnection

_log = logging.getLogger("planq.tools")

_MOST_LEGS = 12
"""Most requests to a server that one attempt at a call makes."""

_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0

OnChange = Callable[[str, Sequence[Tool]], Sequence[str]]
"""`(source, tools)`: the tools of this source are now exactly these; returns why some are left out.

`Registry.replace` is one.
"""

MAX_NAMED = 20
"""Maximum number of tools of one server that are named as left out."""

MAX_SENTENCE_CHARS = 500


class McpTool:
    def __init__(self, connection: ServerConnection, listed: Mapping[str, Any], definition: ToolDefinition) -> None:
        self._connection = connection
        self._tool: str = listed["name"]
        self._declared: Mapping[str, Any] | None = listed.get("outputSchema")
        self.definition = definition
        self.place = place_of(definition.source, self._tool)

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Call the server, and ask people what it needs to know; see `Tool.call`."""
        result = await self._result(arguments, context)
        artifact_id = f"{context.idempotency_key}/content"
        answer = answer_of(self.definition.name, self._declared, result, artifact_id)
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
        from planq.worker.tools.mcp.connection import StateForgotten

        server = self._connection.server.name
        allowed = self._connection.server.planq.secret_forms
        talk = Conversation(server, self._tool, context.people, secret_forms=allowed)
        # A call that asks in the middle ends, and is made again with the answer.
        may_repeat = self.definition.repeatable or self.definition.effect is not Effect.UNSAFE
        says = talk.said_in_the_middle if may_repeat and context.people is not None else None
        headers = scope_headers(context) if self.definition.user_scoped else None
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
        self._tools: dict[str, Sequence[Tool]] = {}
        self._names = [server.name for server in servers]
        self._faults: dict[str, Sequence[str]] = {}
        self._left_out: dict[str, Sequence[str]] = {}
        self._is_open = False

    async def open(self) -> None:
        """Connect to all servers at once; raises `Misconfigured` for a required one that cannot be reached."""
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

    def left_out(self) -> list[str]:
        """Return a sentence for each tool of a server that is not offered; callable from any thread."""
        return [sentence for sentences in list(self._left_out.values()) for sentence in sentences]

    async def aclose(self) -> None:
        await asyncio.gather(*(connection.aclose() for connection in self._connections))

    def _connection(self, kind: type[ServerConnection], server: McpServer) -> ServerConnection:
        def on_tools(listing: Listing) -> None:
            self._take(connection, listing)

        connection = kind(server, on_tools, self._egress)
        return connection

    def _check_required(self, connection: ServerConnection, is_connected: bool) -> None:
        server = connection.server
        if server.planq.required and not is_connected:
            raise Misconfigured(
                f"MCP server {server.name!r} is required: {connection.problem}; "
                'start it, correct its entry in mcp.json, or remove "required"'
            )

    def _take(self, connection: ServerConnection, listing: Listing) -> None:
        source = connection.server.source
        tools, faults = offered_tools(connection, listing, self._names)
        before = [tool.definition for tool in self._tools.get(source, ())]
        now = [tool.definition for tool in tools]
        if self._is_open and before == now and faults == self._faults.get(source):
            return
        self._tools[source], self._faults[source] = tools, faults
        refused = [] if self._on_change is None else self._on_change(source, tools)
        self._note(connection.server, [*faults, *refused])

    def _note(self, server: McpServer, left_out: Sequence[str]) -> None:
        shown = [capped(sentence, MAX_SENTENCE_CHARS) for sentence in left_out[:MAX_NAMED]]
        if more := len(left_out) - len(shown):
            shown.append(f"{server.source}: {more} more tools are left out")
        for sentence in shown:
            _log.warning("mcp_tool_refused", extra={"server": server.name, "reason": sentence})
        self._left_out[server.source] = shown


def offered_tools(
    connection: ServerConnection, listing: Listing, servers: Collection[str]
) -> tuple[Sequence[McpTool], Sequence[str]]:
    """Return the tools of a listing that can be offered, and a sentence for each other."""
    names = registry_names(connection.server.name, [one["name"] for one in listing.tools], servers)
    tools, faults = [], list(listing.left_out)
    for entry in listing.tools:
        try:
            tools.append(_tool_of(connection, entry, names[entry["name"]]))
        except Misconfigured as error:
            faults.append(error.message)
    return tools, faults


def _tool_of(connection: ServerConnection, entry: Mapping[str, Any], name: str) -> McpTool:
    server = connection.server
    place = place_of(server.source, entry["name"])
    if entry.get("taskSupport") == "required":
        raise Misconfigured(f"{place}: it can only be called as a task of its server, which planq cannot do yet")
    for schema in (entry["inputSchema"], entry.get("outputSchema")):
        if schema is not None and is_deeper_than(schema, MAX_DEPTH):
            raise Misconfigured(f"{place}: a schema is nested more than {MAX_DEPTH} levels deep")
    try:
        tool = McpTool(connection, entry, definition_of(server, entry, name))
    except ValidationError as error:
        raise Misconfigured(f"{place}: {faults_of(error)}") from error
    check_definition(tool.definition, place, is_trusted=False)
    return tool
