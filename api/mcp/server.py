"""The MCP server of the API: lists the caller's tools, and calls them. It keeps no session between two requests.

The guard has let a request in before it comes here: by host, origin, key, scope, media type and size.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from uuid import uuid4

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
    CallToolRequestParams,
    CallToolResult,
    ErrorData,
    JSONRPCError,
    ListToolsResult,
    PaginatedRequestParams,
    Tool,
    ToolAnnotations,
)
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from planq.api.access.callers import caller_of
from planq.api.http.exchange import HttpRefusal, decode_body, error_response
from planq.api.mcp.calls import IDEMPOTENCY_KEY, ToolCalls
from planq.shared.agentic.schema.schemas import MAX_DEPTH
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.agentic.tools.names import is_reserved, suggestion
from planq.shared.kernel.states import Effect, StepKind
from planq.shared.platform.computing import INLINE_CHARS, off_loop
from planq.shared.platform.errors import PlanqError, Unavailable
from planq.shared.platform.values.describe import excerpt, is_deeper_than
from planq.shared.platform.version import VERSION
from planq.shared.subjects.tools.catalogue import Catalogue, ToolsByName

_log = logging.getLogger("planq.api")

_INSTRUCTIONS = (
    "Each call is a durable job. One of which a result says that it has not ended, or that a person has to answer "
    "first, goes on without you."
)
_MAX_DEPTH = MAX_DEPTH + 3
"""The message, its params and the arguments stand around what a tool is given."""

_Asked = ServerRequestContext[Any, Request]


class McpServer:
    """Answers the messages that come to `McpDoor`; precondition: it is asked while `open` holds."""

    def __init__(self, catalogue: Catalogue, calls: ToolCalls, max_body_bytes: int) -> None:
        server: Server[Any] = Server(
            "planq",
            version=VERSION,
            instructions=_INSTRUCTIONS,
            on_list_tools=partial(_listed, catalogue),
            on_call_tool=partial(_called, catalogue, calls),
        )
        self._make = partial(
            StreamableHTTPSessionManager,
            server,
            stateless=True,
            max_request_body_size=max_body_bytes,
        )
        self._manager: StreamableHTTPSessionManager | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Serve as long as this holds."""
        manager = self._make()
        async with manager.run():
            self._manager = manager
            try:
                yield
            finally:
                self._manager = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a message; one that is no JSON, or not one message, is refused before the SDK reads it."""
        try:
            body = await Request(scope, receive).body()
        except ClientDisconnect:
            return
        except HTTPException as refusal:
            await error_response(refusal)(scope, receive, send)
            return
        refused = await off_loop(_refusal, body) if len(body) > INLINE_CHARS else _refusal(body)
        if refused is not None:
            await refused(scope, receive, send)
        elif self._manager is not None:
            await self._manager.handle_request(scope, _again(body, receive), send)
        else:
            await error_response(HttpRefusal(503, Unavailable.code, "this process stops; ask again"))(
                scope, receive, send
            )


def _again(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that begins with a body that was read already."""
    left: list[Message] = [{"type": "http.request", "body": body}]

    async def replay() -> Message:
        return left.pop() if left else await receive()

    return replay


def _refusal(body: bytes) -> Response | None:
    """Return what answers a body that is not one message of JSON-RPC, None for one that may be."""
    try:
        message = decode_body(body)
    except HTTPException as refusal:
        return _rpc_error(PARSE_ERROR, str(refusal.detail))
    if not isinstance(message, dict):
        return _rpc_error(INVALID_REQUEST, f"expected one message of JSON-RPC, an object; found {excerpt(message)}")
    if is_deeper_than(message, _MAX_DEPTH):
        return _rpc_error(INVALID_REQUEST, f"expected at most {_MAX_DEPTH} levels, found more")
    return None


def _rpc_error(code: int, message: str) -> Response:
    error = JSONRPCError(jsonrpc="2.0", id=None, error=ErrorData(code=code, message=message))
    return Response(error.model_dump_json(exclude_unset=True), status_code=400, media_type="application/json")


async def _listed(catalogue: Catalogue, asked: _Asked, _: PaginatedRequestParams | None) -> ListToolsResult:
    return ListToolsResult(tools=[_shown(tool) for tool in (await _offered(catalogue, asked)).values()])


async def _called(
    catalogue: Catalogue, calls: ToolCalls, asked: _Asked, params: CallToolRequestParams
) -> CallToolResult:
    offered = await _offered(catalogue, asked)
    tool = offered.get(params.name)
    if tool is None:
        near = suggestion(params.name, offered)
        raise MCPError(
            INVALID_PARAMS, f"unknown tool {excerpt(params.name)}; {near}tools/list names those that there are"
        )
    meta = params.meta or {}

    async def report(part: float, message: str | None) -> None:
        await asked.session.report_progress(part, 1.0, message)

    tells = None if meta.get("progress_token") is None else report
    key, arguments = meta.get(IDEMPOTENCY_KEY), params.arguments or {}
    try:
        return await calls.call(_request_of(asked), tool, arguments, key, tells)
    except Exception as error:  # the SDK would tell its text
        fault_id = str(uuid4())
        _log.error("fault", extra={"fault": fault_id}, exc_info=error)
        raise MCPError(
            INTERNAL_ERROR, f"planq failed on this call; the cause is in its log under {fault_id}"
        ) from error


async def _offered(catalogue: Catalogue, asked: _Asked) -> ToolsByName:
    """Return the tools of the caller's tenant, without those that are parts of planq: plans for agents come later."""
    try:
        known = await catalogue.tools(caller_of(_request_of(asked).scope).tenant_id)
    except PlanqError as error:
        raise MCPError(INTERNAL_ERROR, f"{error.code}: {error.message}") from error
    return {name: tool for name, tool in known.items() if not is_reserved(name) and tool.kind in _KINDS}


_KINDS = (StepKind.TOOL, StepKind.AGENT)


def _request_of(asked: _Asked) -> Request:
    request = asked.request
    assert request is not None, "every message comes over HTTP"
    return request


def _shown(tool: ToolDefinition) -> Tool:
    """Return a tool as MCP lists it: its effect class as annotations, which planq's own client reads back."""
    reads = tool.effect in (Effect.PURE, Effect.READ)
    return Tool(
        name=tool.name,
        description=tool.description,
        input_schema=dict(tool.input_schema),
        output_schema=None if tool.output_schema is None else dict(tool.output_schema),
        annotations=ToolAnnotations(
            read_only_hint=reads, idempotent_hint=tool.effect is not Effect.UNSAFE, destructive_hint=not reads
        ),
    )
