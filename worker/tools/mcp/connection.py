"""One MCP server: a task that owns the connection, and calls that wait for it.

One task opens, holds and closes the connection, because of the SDK's cancel scopes. When it ends, calls in flight
fail as transient, and the task reconnects, at once or after a growing pause. Imported only if a server is configured.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import mcp_types as types
from mcp.client import Client
from mcp.client.session import ClientRequestContext, IncomingMessage
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError

from planq.shared.agentic.tools.contract import AskingPerson
from planq.shared.platform.errors import ExecutionFailed, Unreached
from planq.shared.platform.logs import hide
from planq.shared.platform.redact import Redaction
from planq.shared.platform.values.backoff import pause_after, pauses
from planq.worker.egress import Egress
from planq.worker.tools.errors import ToolError, quoted
from planq.worker.tools.mcp.asking import Need, Resumption
from planq.worker.tools.mcp.config import McpServer
from planq.worker.tools.mcp.failures import call_failure, has_forgotten, is_connection_lost
from planq.worker.tools.mcp.listing import MAX_PAGES, MAX_TOOLS, Listing
from planq.worker.tools.mcp.reading import Reading
from planq.worker.tools.mcp.transport import call_headers, http_refusal, open_transport

_log = logging.getLogger("planq.tools")

_IDEMPOTENCY_KEY = "dev.planq/idempotencyKey"
_HEADERS = "dev.planq/headers"
"""In `_meta` of a call: the same for every attempt of a step."""

_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 60.0
_STEADY_SECONDS = 30.0
"""After a connection of this length the next one is opened without a pause; shorter ones might loop."""

_QUIET_SECONDS = 1.0
"""A call asks for a new connection no sooner than this after one failed, so that many calls make one attempt."""

_CLOSE_SECONDS = 8.0
"""The SDK gives a stdio server up to 6.5 s to end before it is killed and given up."""

_FIRST_RESEND_SECONDS, _LONGEST_RESEND_SECONDS = 0.1, 1.0
"""The pauses between tries of a call that could not be sent."""

_LISTED_ANEW_SECONDS = 1.0
"""A server that says without an end that its tools have changed is asked for them no more often than this."""

_HEARD_ANEW_SECONDS = 5.0
"""The pause before a server is asked again to say when its tools change, where that has ended."""

_ENDED = "the connection ended"

SaysInTheMiddle = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""The answer to what a server asks while a call runs; raises `AskingPerson` where a person has to be asked first."""


class StateForgotten(Exception):
    """The server does not know the state with which a call went on; nothing has been done."""


@dataclass(eq=False, slots=True)
class _PendingCall:
    says: SaysInTheMiddle | None
    broken: asyncio.Future[BaseException] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    is_over: asyncio.Event = field(default_factory=asyncio.Event)


class ServerConnection:
    """The connection to one server; `on_tools` gets the tools that it lists after each connecting."""

    def __init__(self, server: McpServer, on_tools: Callable[[Listing], None], egress: Egress) -> None:
        self.server = server
        self._egress = egress
        self.problem = "it was never connected"
        self._hide = Redaction(server.secrets)
        hide(server.secrets)
        self._on_tools = on_tools
        self._client: Client | None = None
        self._task: asyncio.Task[None] | None = None
        self._lost = asyncio.Event()
        self._changed = asyncio.Event()
        self._wanted = asyncio.Event()
        self._attempted = asyncio.Event()
        self._stopping = asyncio.Event()
        self._failed_at = float("-inf")
        self._running: set[_PendingCall] = set()

    async def open(self) -> bool:
        """Start the task, wait for its first attempt, and return whether that connected."""
        self._task = asyncio.create_task(self._stay_connected(), name=f"planq-mcp-{self.server.name}")
        await self._attempted.wait()
        return self._client is not None

    @property
    def is_connected(self) -> bool:
        """False while the server is away; `problem` says why."""
        return self._client is not None

    async def aclose(self) -> None:
        """Close the connection and end a stdio server; returns when its process is gone or was given up."""
        self._stopping.set()
        self._lose()
        self._wanted.set()
        if self._task is not None:
            with contextlib.suppress(asyncio.CancelledError, TimeoutError):
                await asyncio.wait_for(self._task, _CLOSE_SECONDS)

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        idempotency_key: str,
        resumption: Resumption | None = None,
        says: SaysInTheMiddle | None = None,
        headers: Mapping[str, str] | None = None,
        progressed: ProgressFnT | None = None,
    ) -> dict[str, Any] | Need:
        """Call a tool, or continue a call; return the JSON form of its `CallToolResult`, or what it needs.

        `headers` are sent over HTTP, and in the call's `_meta`. `progressed` gets progress, total and message. `says`
        answers questions during the call; without it they are declined. Cancelling notifies the server. Raises
        `Unreached` if nothing was sent while the server was away, `Transient` if the connection ended before the
        answer, other `ExecutionFailed`, `StateForgotten`, and errors of `says`.
        """
        options, loop = self.server.planq, asyncio.get_running_loop()
        until = loop.time() + min(options.away_seconds, options.timeout_seconds / 2)
        waits = pauses(_FIRST_RESEND_SECONDS, _LONGEST_RESEND_SECONDS)
        while True:
            try:
                return await self._call_once(tool, arguments, idempotency_key, resumption, says, headers, progressed)
            except Unreached:
                pause = next(waits)
                if self._stopping.is_set() or loop.time() + pause > until:
                    raise
            await asyncio.sleep(pause)

    async def _call_once(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        idempotency_key: str,
        resumption: Resumption | None,
        says: SaysInTheMiddle | None,
        headers: Mapping[str, str] | None,
        progressed: ProgressFnT | None,
    ) -> dict[str, Any] | Need:
        client = await self._connected()
        refusal: deque[int] = deque(maxlen=1)
        token, headers_before = http_refusal.set(refusal), call_headers.set(headers)
        running = _PendingCall(says)
        self._running.add(running)
        try:
            meta = {_IDEMPOTENCY_KEY: idempotency_key, **({_HEADERS: dict(headers)} if headers else {})}
            sent = self._send(client, tool, arguments, meta, resumption, progressed)
            result = await (sent if says is None else _unless_broken(sent, running))
        except (ExecutionFailed, StateForgotten):
            raise
        except Exception as error:
            if resumption is not None and resumption.state is not None and has_forgotten(error):
                raise StateForgotten from error
            if (need := self._elsewhere(error)) is not None:
                return need
            if is_connection_lost(error) and client is self._client:
                self._lose()
            failure = call_failure(error, self.server.name, tool, refusal)
            failure.message = self._hide(failure.message)  # it is stored and shown, and servers repeat what they got
            raise failure from error
        finally:
            self._running.discard(running)
            running.is_over.set()
            http_refusal.reset(token)
            call_headers.reset(headers_before)
        if isinstance(result, types.InputRequiredResult):
            return self._need(tool, result)
        return {
            "content": [self._block(block, is_error=bool(result.is_error)) for block in result.content],
            "structuredContent": result.structured_content,
            "isError": result.is_error,
        }

    async def _send(
        self,
        client: Client,
        tool: str,
        arguments: Mapping[str, Any],
        said_beside: Mapping[str, Any],
        resumption: Resumption | None,
        progressed: ProgressFnT | None,
    ) -> types.CallToolResult | types.InputRequiredResult:
        # The SDK's type is an open map, which mypy cannot yet express (PEP 728).
        meta = cast("types.RequestParamsMeta", dict(said_beside))
        responses = None if resumption is None else resumption.responses
        said: types.InputResponses = {
            name: types.ElicitResult.model_validate(response) for name, response in (responses or {}).items()
        }
        state = None if resumption is None else resumption.state

        async def send() -> types.CallToolResult | types.InputRequiredResult:
            return await client.session.call_tool(
                tool,
                dict(arguments),
                progress_callback=progressed,
                input_responses=said or None,
                request_state=state,
                meta=meta,
                allow_input_required=True,
            )

        try:
            return await send()
        except MCPError as error:
            if error.code != types.HEADER_MISMATCH:
                raise
        await client.list_tools()  # what the SDK knows of the tool's headers is stale
        return await send()

    def _need(self, tool: str, result: types.InputRequiredResult) -> Need:
        requests: dict[str, Mapping[str, Any]] = {}
        for key, request in (result.input_requests or {}).items():
            if not isinstance(request, types.ElicitRequest):
                raise ToolError(
                    f"MCP server {self.server.name!r}, tool {tool!r}, asks for {request.method!r}, which planq does "
                    "not offer to servers"
                )
            requests[key] = self._asked(request.params)
        return Need(requests, result.request_state)

    def _elsewhere(self, error: Exception) -> Need | None:
        """Return what people are to do elsewhere before a call can be made, as the protocol of 2025-11-25 says it."""
        if not isinstance(error, MCPError) or error.code != types.URL_ELICITATION_REQUIRED:
            return None
        try:
            data = types.ElicitationRequiredErrorData.model_validate(error.data)
        except ValueError:
            return None
        requests = {str(number): self._asked(params) for number, params in enumerate(data.elicitations)}
        return Need(requests, calls_anew=True) if requests else None

    def _asked(self, params: types.ElicitRequestParams) -> Mapping[str, Any]:
        if isinstance(params, types.ElicitRequestURLParams):
            return {"mode": "url", "message": self._hide(params.message), "url": params.url}
        return {"mode": "form", "message": self._hide(params.message), "requestedSchema": params.requested_schema}

    async def _elicited(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        """Decline a question during a call (before protocol 2026-07-28) unless the only call is repeatable."""
        running = next(iter(self._running)) if len(self._running) == 1 else None
        if running is None or running.says is None:
            _log.info("mcp_question_declined", extra={"server": self.server.name})
            return types.ElicitResult(action="decline")
        try:
            return types.ElicitResult.model_validate(running.says(self._asked(params)))
        except (AskingPerson, ExecutionFailed) as asking:
            if not running.broken.done():
                running.broken.set_result(asking)
        await running.is_over.wait()
        return types.ErrorData(code=types.INVALID_REQUEST, message="The call was given up; it will be made again.")

    def _block(self, block: types.ContentBlock, *, is_error: bool) -> dict[str, Any]:
        shown: dict[str, Any] = block.model_dump(mode="json", by_alias=True, exclude_none=True)
        if is_error and isinstance(shown.get("text"), str):
            shown["text"] = self._hide(shown["text"])
        return shown

    def _lose(self) -> None:
        """Give the connection up at once; its task closes it later."""
        self._client = None
        self._lost.set()
        self._changed.set()

    async def _connected(self) -> Client:
        if self._task is None or self._task.done():
            raise Unreached(f"MCP server {self.server.name!r}: this worker has closed its connection")
        if self._client is None and asyncio.get_running_loop().time() - self._failed_at >= _QUIET_SECONDS:
            self._attempted.clear()
            self._wanted.set()
            await self._attempted.wait()
        if self._client is None:
            raise Unreached(f"MCP server {self.server.name!r} is not connected: {self.problem}")
        return self._client

    async def _stay_connected(self) -> None:
        failures = 0
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_after(failures, _FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)):
                        await self._wanted.wait()
                if self._stopping.is_set():
                    break
                # A try that a call has asked for makes those that come by themselves no rarer.
                most = max(failures, 1) if self._wanted.is_set() else failures + 1
                self._wanted.clear()
                failures = most if await self._hold_one_connection() else 0
        finally:
            self._attempted.set()

    async def _hold_one_connection(self) -> bool:
        loop = asyncio.get_running_loop()
        connected_at: float | None = None
        reason = _ENDED
        refusal: deque[int] = deque(maxlen=1)
        http_refusal.set(refusal)
        self._lost.clear()
        self._changed.clear()
        try:
            async with asyncio.timeout(self.server.planq.connect_timeout_seconds) as limit:
                reading = Reading(self.server)
                async with self._new_client(reading) as client:
                    client.session.validate_tool_result = _left_to_the_engine  # type: ignore[method-assign]
                    reading.version = client.protocol_version
                    listing = await _list_tools(client, reading)
                    limit.reschedule(None)
                    connected_at = loop.time()
                    self._announce(client, listing)
                    await self._until_lost(client, reading)
                    self._client = None  # it may have been lost before it was announced
                    limit.reschedule(loop.time() + _CLOSE_SECONDS)
        except Exception as error:
            if connected_at is None or not isinstance(error, TimeoutError):  # closing may last too long
                reason = self._hide(_reason(error)) + "".join(f" (HTTP {status})" for status in refusal)
        finally:
            self._client = None
        if self._stopping.is_set():
            return False
        self.problem = reason
        _log.warning("mcp_server_lost", extra={"server": self.server.name, "reason": reason})
        if connected_at is None:
            self._failed_at = loop.time()
        self._attempted.set()
        return connected_at is None or loop.time() - connected_at < _STEADY_SECONDS

    async def _until_lost(self, client: Client, reading: Reading) -> None:
        hearing = asyncio.create_task(self._hear_of_changes(client))
        try:
            while True:
                await self._changed.wait()
                if self._lost.is_set():
                    return
                self._changed.clear()
                async with asyncio.timeout(self.server.planq.connect_timeout_seconds):
                    listing = await _list_tools(client, reading)
                _log.info("mcp_tools_changed", extra={"server": self.server.name, "tools": len(listing.tools)})
                self._on_tools(listing)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._lost.wait(), _LISTED_ANEW_SECONDS)
        finally:
            hearing.cancel()
            await asyncio.wait([hearing])

    async def _hear_of_changes(self, client: Client) -> None:
        """Take note, for ever, of what a server of the protocol of 2026-07-28 says of changes; nothing for others."""
        while True:
            try:
                async with client.listen(tools_list_changed=True) as events:
                    async for _ in events:
                        self._changed.set()
            except (ListenNotSupportedError, MCPError):
                return  # it says nothing, or says it as servers did before (`_noticed`)
            except (SubscriptionLost, TimeoutError):
                pass
            await asyncio.sleep(_HEARD_ANEW_SECONDS)
            self._changed.set()  # changes since then were missed

    async def _noticed(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._changed.set()

    def _new_client(self, reading: Reading) -> Client:
        return Client(
            open_transport(self.server, reading, self._lose, self._egress),
            cache=None,
            mode="legacy" if self.server.planq.asks_in_calls else "auto",
            elicitation_callback=self._elicited,
            message_handler=self._noticed,
            client_info=types.Implementation(name="planq", version="1"),
        )

    def _announce(self, client: Client, listing: Listing) -> None:
        self._client = client
        self.problem = _ENDED
        _log.info(
            "mcp_server_connected",
            extra={"server": self.server.name, "tools": len(listing.tools), "protocol": client.protocol_version},
        )
        self._on_tools(listing)
        self._attempted.set()


async def _unless_broken(
    sent: Coroutine[Any, Any, types.CallToolResult | types.InputRequiredResult], running: _PendingCall
) -> types.CallToolResult | types.InputRequiredResult:
    """Return the result of a call; if it is broken off, notify the server and raise the cause."""
    call = asyncio.create_task(sent)
    try:
        await asyncio.wait([call, cast("asyncio.Future[Any]", running.broken)], return_when=asyncio.FIRST_COMPLETED)
        if not running.broken.done():
            return call.result()
    finally:
        if not call.done():
            call.cancel()
            await asyncio.wait({call})
    raise running.broken.result()


async def _left_to_the_engine(name: str, result: types.CallToolResult) -> None:
    """Replace the SDK's schema check, which runs a server's patterns with Python's engine on this loop, by ours."""


async def _list_tools(client: Client, reading: Reading) -> Listing:
    """Return the tools that the server lists now, page after page; a list without an end is cut."""
    listing = reading.listing = Listing(reading.server.source)
    cursor: str | None = None
    seen: set[str | None] = {None}
    while True:
        page = await client.list_tools(cursor=cursor)
        for tool in page.tools:
            listing.add(_as_listed(tool))
        cursor = page.next_cursor
        if cursor is None:
            return listing
        if cursor in seen or len(seen) >= MAX_PAGES or len(listing.tools) >= MAX_TOOLS:
            listing.left_out.insert(
                0, f"{listing.source}: its list of tools does not end; {len(seen)} pages of it were read"
            )
            return listing
        seen.add(cursor)


def _as_listed(tool: types.Tool) -> dict[str, Any]:
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
