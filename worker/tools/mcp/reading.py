"""What one connection to a server has sent and reads: which requests are open, and the bounds of what comes.

A server may send anything: more than fits into memory, half a message, an answer that was not asked for, thousands of
notifications. A message that cannot be read ends the call that it answers at once, with a reason.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from contextlib import suppress
from typing import Any

import mcp_types as types
from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.message import SessionMessage
from mcp_types import methods
from pydantic import ValidationError

from planq.shared.platform.errors import capped
from planq.shared.platform.values.describe import MAX_DEPTH, is_deeper_than
from planq.worker.tools.mcp.config import McpServer
from planq.worker.tools.mcp.listing import MAX_TOOLS, Listing

_log = logging.getLogger("planq.tools")

TOO_MUCH = "is larger than the allowed"
"""Part of each message about an answer that has too many bytes or parts."""

MAX_PARTS = 500_000
"""Maximum number of values in one message: each takes a hundred bytes or more once it is read."""

UNASKED_BYTES = 16 * 1024 * 1024
UNASKED_BYTES_PER_SECOND = 1024 * 1024
_UNASKED_MESSAGE_BYTES = 4 * 1024
"""A notification counts as this many bytes at least, since each one costs a task."""

_OLDEST_VERSION = "2025-11-25"
_QUOTED_CHARS = 200
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"')
_ID_FIRST = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*"?(\d{1,18})"?\s*[,}]')
_ID_LAST = re.compile(rb'"id"\s*:\s*"?(\d{1,18})"?\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')


class Reading:
    """The open requests of one connection, and what its server may still send unasked."""

    def __init__(self, server: McpServer) -> None:
        self.server = server
        self.most = server.planq.max_answer_bytes
        self.version: str | None = None
        self.listing = Listing(server.source)
        self._open: dict[types.RequestId, str] = {}
        self._allowance = float(UNASKED_BYTES)
        self._counted_at = asyncio.get_running_loop().time()
        self._has_noted_noise = False

    def sent(self, message: types.JSONRPCMessage) -> None:
        if isinstance(message, types.JSONRPCRequest):
            self._open[coerce_request_id(message.id)] = message.method
        elif isinstance(message, types.JSONRPCNotification) and message.method == "notifications/cancelled":
            self._open.pop(coerce_request_id((message.params or {}).get("requestId", "")), None)

    async def received(self, item: SessionMessage | Exception) -> bool:
        """Return whether a message is passed on; answers that were not asked for are dropped."""
        if isinstance(item, Exception):
            await self.pace(0)
            return False
        message = item.message
        if not isinstance(message, (types.JSONRPCResponse, types.JSONRPCError)):
            await self.pace(0)
            return True
        method = None if message.id is None else self._open.pop(coerce_request_id(message.id), None)
        if method is None:
            await self.pace(0)
            return False
        if method == "tools/list" and isinstance(message, types.JSONRPCResponse):
            self._leave_out_unreadable(message.result)
        return True

    async def pace(self, size: int) -> None:
        """Wait until the server may send so much unasked: a flood is read slowly, and backs up to its sender."""
        loop = asyncio.get_running_loop()
        gained = (loop.time() - self._counted_at) * UNASKED_BYTES_PER_SECOND
        self._counted_at = loop.time()
        self._allowance = min(UNASKED_BYTES, self._allowance + gained) - max(size, _UNASKED_MESSAGE_BYTES)
        if self._allowance < 0:
            await asyncio.sleep(-self._allowance / UNASKED_BYTES_PER_SECOND)

    def read_line(self, line: bytes) -> SessionMessage | None:
        """Return the message of a line, None for noise; an unreadable answer becomes its request's error."""
        if not line.strip():
            return None
        if has_too_many_parts(line):
            return self._failure(line, line, f"the answer {TOO_MUCH} {MAX_PARTS} values")
        try:
            return SessionMessage(types.jsonrpc_message_adapter.validate_json(line, by_name=False))
        except ValidationError as error:
            fault = error.errors(include_url=False, include_input=False)[0]["msg"]
        if (listing := self._mended_listing(line)) is not None:
            return listing
        return self._failure(line, line, f"the answer cannot be read: {fault}")

    def too_long(self, head: bytes, tail: bytes) -> SessionMessage | None:
        """Return the error of the request that a line answers which has more bytes than are read."""
        return self._failure(head, tail, too_many_bytes(self.most))

    def _failure(self, head: bytes, tail: bytes, reason: str) -> SessionMessage | None:
        request = self._answered(head, tail)
        if request is None:
            if not self._has_noted_noise:
                self._has_noted_noise = True
                shown = capped(repr(head[:_QUOTED_CHARS].decode("utf-8", "replace")), _QUOTED_CHARS)
                _log.warning("mcp_server_noise", extra={"server": self.server.name, "line": shown})
            return None
        error = types.ErrorData(code=types.PARSE_ERROR, message=reason)
        return SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=request, error=error))

    def _answered(self, head: bytes, tail: bytes) -> types.RequestId | None:
        """Return the open request that an unreadable line answers; the only one where the line does not say."""
        if head.lstrip()[:1] != b"{":
            return None
        for found in (_ID_FIRST.match(head), _ID_LAST.search(tail)):
            if found is not None and int(found[1]) in self._open:
                return int(found[1])
        is_anonymous = b'"jsonrpc"' in head and b'"id"' not in head + tail
        return next(iter(self._open)) if is_anonymous and len(self._open) == 1 else None

    def _mended_listing(self, line: bytes) -> SessionMessage | None:
        """Return an unreadable answer to `tools/list` without the tools that make it unreadable."""
        try:
            said: Any = json.loads(line)
            known = isinstance(said, dict) and self._open.get(coerce_request_id(said.get("id") or "")) == "tools/list"
            tools = said["result"]["tools"] if known else None
        except (ValueError, TypeError, KeyError, RecursionError):
            return None
        if not isinstance(tools, list):
            return None
        said["result"]["tools"] = [tool for tool in tools if self._is_text(tool)]
        try:
            mended = json.dumps(said).encode()
            return SessionMessage(types.jsonrpc_message_adapter.validate_json(mended, by_name=False))
        except (ValueError, RecursionError):
            return None

    def _is_text(self, tool: Any) -> bool:
        try:
            if is_deeper_than(tool, MAX_DEPTH):
                fault = f"a schema is nested more than {MAX_DEPTH} levels deep"
            else:
                json.dumps(tool, ensure_ascii=False, allow_nan=False).encode()
                return True
        except ValueError:
            fault = "its definition holds half a character, or a number that is none"
        self.listing.leave_out(_name_of(tool), fault)
        return False

    def _leave_out_unreadable(self, result: dict[str, Any]) -> None:
        """Take the tools out of a page of `tools/list` that would make the SDK refuse all of it."""
        tools = result.get("tools")
        if not isinstance(tools, list):
            return
        if len(tools) > MAX_TOOLS:
            self.listing.leave_out(
                None, f"the server lists {len(tools)} tools at once; the first {MAX_TOOLS} are read"
            )
            tools = result["tools"] = tools[:MAX_TOOLS]
        if self._fault_of(result) is None:
            return
        if self._fault_of({**result, "tools": []}) is not None:
            return  # the fault is not that of a tool, so the SDK says what it is
        readable = []
        for tool in tools:
            fault = self._fault_of({**result, "tools": [tool]})
            if fault is None:
                readable.append(tool)
            else:
                self.listing.leave_out(_name_of(tool), fault)
        result["tools"] = readable

    def _fault_of(self, result: dict[str, Any]) -> str | None:
        try:
            with suppress(KeyError):  # a version that has no rules of its own
                methods.validate_server_result("tools/list", self.version or _OLDEST_VERSION, result)
            types.ListToolsResult.model_validate(result, by_name=False)
        except ValidationError as error:
            fault = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(part) for part in fault["loc"] if part not in ("tools", 0))
            return capped(f"it is no valid tool at {place or 'the top'}: {fault['msg']}", _QUOTED_CHARS)
        except RecursionError:
            return "it is nested too deeply"
        return None


def has_too_many_parts(text: bytes) -> bool:
    """True when JSON consists of more values than are read; what its strings hold does not count."""
    if text.count(b",") + text.count(b"[") + text.count(b"{") <= MAX_PARTS:
        return False
    bare = _STRINGS.sub(b"", text)
    return bare.count(b",") + bare.count(b"[") + bare.count(b"{") > MAX_PARTS


def too_many_bytes(most: int) -> str:
    return f"the answer {TOO_MUCH} {most} bytes (max_answer_bytes of the server in mcp.json)"


def _name_of(tool: Any) -> Any:
    return tool.get("name") if isinstance(tool, dict) else None
