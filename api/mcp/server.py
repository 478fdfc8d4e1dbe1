"""The MCP server of the API: it lists the tools of the caller, and runs each call as a durable job.

A client that disconnects loses the answer, not the call: a repeat under the same idempotency key gets the answer of
the first. The server keeps no session between two requests. The guard has already checked host, origin, key, scope,
media type and size.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any
from urllib.parse import unquote
from uuid import UUID, uuid4

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
    TextContent,
    Tool,
    ToolAnnotations,
)
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from planq.api.access.scopes import caller_of
from planq.api.documents import job_document
from planq.api.http.exchange import HttpRefusal, decode_body, error_response, json_bytes
from planq.api.intake.submission import Submissions
from planq.api.intake.waits import JobWaits
from planq.api.schemas import JobRequest
from planq.shared.agentic.references.grammar import escaped
from planq.shared.agentic.schema.schemas import MAX_DEPTH
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.agentic.tools.names import is_reserved, suggestion
from planq.shared.kernel.states import Effect, JobStatus, StepKind
from planq.shared.platform.computing import INLINE_CHARS, off_loop
from planq.shared.platform.errors import InvalidArguments, PlanqError, Unavailable
from planq.shared.platform.values.decoding import decode_stored
from planq.shared.platform.values.describe import excerpt, is_deeper_than
from planq.shared.platform.version import VERSION
from planq.shared.settings.settings import Settings
from planq.shared.subjects.jobs.job_view import JobView
from planq.shared.subjects.jobs.store import RequestStore
from planq.shared.subjects.payloads.store import PayloadStore
from planq.shared.subjects.tools.catalogue import Catalogue, ToolsByName

IDEMPOTENCY_KEY = "dev.planq/idempotencyKey"
"""In `_meta` of a call, as planq's own client sends it: repeats of the call are then one."""

JOB_ID = "dev.planq/job"
"""In `_meta` of a result: the id of the job that carried out the call."""

_USER = "x-user-external-id"
_MAX_RESULT_BYTES = 4 * 1024 * 1024
"""What a client of the official SDK reads as one message."""

_LOOK_SECONDS = 2.0
"""How often a client that asked for it is told of progress."""

_LEAST = 1e-6

_Report = Callable[[float, str | None], Awaitable[None]]
"""Tells a client of progress: a part of 1, and a message."""


@dataclass(frozen=True, slots=True)
class ToolCalls:
    """Carries out calls of tools as jobs of their callers."""

    settings: Settings
    submissions: Submissions
    requests: RequestStore
    payloads: PayloadStore
    waits: JobWaits

    async def call(
        self, request: Request, tool: ToolDefinition, arguments: Mapping[str, Any], key: Any, report: _Report | None
    ) -> CallToolResult:
        """Run a call as a job of the caller, and return its result; raises no error of planq.

        `key` is the idempotency key or None. `report` is None unless the client wants progress.
        """
        try:
            job_id = await self._submitted(request, tool, arguments, key)
        except (PlanqError, HTTPException) as refusal:
            return _refused(refusal)
        try:
            view = await self._ended(request, tool, job_id, report)
            return await self._result(caller_of(request.scope).tenant_id, view)
        except (PlanqError, HTTPException) as refusal:
            return _refused(refusal, job_id)

    async def _submitted(
        self, request: Request, tool: ToolDefinition, arguments: Mapping[str, Any], key: Any
    ) -> UUID:
        if key is not None and not isinstance(key, str):
            raise InvalidArguments(f"_meta/{IDEMPOTENCY_KEY}: expected a string, found something else")
        if is_deeper_than(arguments, MAX_DEPTH):
            raise InvalidArguments(f"arguments: expected at most {MAX_DEPTH} levels, found more")
        body = {
            "plan": {"calls": [{"tool_name": tool.name, "arguments": _verbatim(arguments)}]},
            "respond": "output",
            "user": unquote(request.headers.get(_USER, "")) or None,
        }
        try:
            wanted = JobRequest.model_validate(body)
        except ValidationError as error:
            # All else of the body is planq's own.
            raise InvalidArguments(f"the header {_USER}: {error.errors(include_url=False)[0]['msg']}") from None
        made = await self.submissions.submit(
            caller_of(request.scope).tenant_id,
            wanted,
            {"mcp": body},
            idempotency_key=key,
            traceparent=request.headers.get("traceparent"),
        )
        return made.job_id

    async def _ended(self, request: Request, tool: ToolDefinition, job_id: UUID, report: _Report | None) -> JobView:
        """Return the job of a call once it has ended or asks a person, or after the longest wait.

        That is as long as the tool may run, and at least as long as any other request waits.
        """
        tenant_id = caller_of(request.scope).tenant_id
        until = monotonic() + max(self.settings.max_wait_seconds, tool.longest_seconds or tool.timeout_seconds)
        part, reported_at = 0.0, None
        while True:
            left = max(0.0, until - monotonic())
            seconds = left if report is None else min(left, _LOOK_SECONDS)
            try:
                view = await self.waits.ended(job_id, seconds, request)
            except HttpRefusal as refusal:
                if refusal.status_code != 429:
                    raise
                view = None  # nobody can wait just now: the job is stored all the same
                left = 0.0
            if (
                view is None
                or view.has_ended
                or view.row["open_questions"]
                or self.waits.waiters.is_closed
                or not left
            ):
                return view or await self.requests.view(tenant_id, job_id)
            said = None if report is None else next((one["progress"] for one in _document(view)["steps"]), None)
            if report is not None and said is not None and said["at"] != reported_at:
                # The protocol wants it to grow, which not every tool knows of.
                part, reported_at = max(said["done"] or 0.0, part + _LEAST), said["at"]
                await report(part, said["message"] or None)

    async def _result(self, tenant_id: str, view: JobView) -> CallToolResult:
        job_id: UUID = view.row["id"]
        if view.row["status"] == JobStatus.COMPLETED:
            return await self._output(tenant_id, job_id, view.steps[0]["content"])
        job = _document(view)
        if not view.has_ended:
            asked = [f"question {one['id']}: {one['message']}" for one in job["open_questions"]]
            why = f"a person has to answer first ({'; '.join(asked)})" if asked else "it has not ended"
            return _failed(f"{job['status']}: {why}; {_LATER} GET /jobs/{job_id}", job_id)
        error = next((one["error"] for one in job["steps"] if one["error"]), None) or job["error"]
        message = "the job was cancelled" if error is None else f"{error['code']}: {error['message']}"
        return _failed(message, job_id)

    async def _output(self, tenant_id: str, job_id: UUID, content: str | None) -> CallToolResult:
        """Return what a call came to: as text what its tool says to models, else the output."""
        stored = await self.requests.output(tenant_id, job_id, 0)
        body = stored.body
        if stored.payload is not None:
            size, pieces = await self.payloads.open(tenant_id, stored.payload)
            if size > _MAX_RESULT_BYTES:
                problem = f"too_large: an answer has at most {_MAX_RESULT_BYTES} bytes; the output has {size}"
                where = f"GET /jobs/{job_id}/steps/0/output returns the output"
                return _failed(f"{problem}. The call itself succeeded, do not repeat it: {where}", job_id)
            body = b"".join([piece async for piece in pieces])
        # Tools may return lone surrogates, which are no text that a message could hold.
        text = json.dumps(decode_stored(body.decode()), ensure_ascii=False).encode("utf-8", "replace").decode()
        output = decode_stored(text)
        said = output["text"] if isinstance(output, dict) and list(output) == ["text"] else text
        shown = content if content is not None else said if isinstance(said, str) else text
        return CallToolResult(
            content=[TextContent(text=shown)],
            structured_content=output if isinstance(output, dict) else None,
            _meta={JOB_ID: str(job_id)},
        )


def _verbatim(value: Any) -> Any:
    """Return arguments so written that nothing in them is a reference: they are a client's data, and no plan."""
    if isinstance(value, str):
        return escaped(value)
    if isinstance(value, Mapping):
        return {name: _verbatim(item) for name, item in value.items()}
    return [_verbatim(item) for item in value] if isinstance(value, list) else value


def _document(view: JobView) -> Any:
    return decode_stored(json_bytes(job_document(view)))


_LATER = f"call again with the same _meta/{IDEMPOTENCY_KEY}, if there was one, or look at"


def _refused(refusal: PlanqError | HTTPException, job_id: UUID | None = None) -> CallToolResult:
    message = refusal.message if isinstance(refusal, PlanqError) else str(refusal.detail)
    code = refusal.code if isinstance(refusal, (PlanqError, HttpRefusal)) else "refused"
    return _failed(f"{code}: {message}", job_id)


def _failed(message: str, job_id: UUID | None) -> CallToolResult:
    """Return an error as a result, which the model reads; an error of the protocol is for programs."""
    return CallToolResult(
        content=[TextContent(text=message)], is_error=True, _meta=None if job_id is None else {JOB_ID: str(job_id)}
    )


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
            StreamableHTTPSessionManager, server, stateless=True, max_request_body_size=max_body_bytes
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
    """Return the tools of the caller's tenant, without planq's own."""
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
