"""Maps the SDK's errors to ours: one table for both transports. Imported only with the SDK."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import mcp_types as types
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from planq.shared.platform.errors import (
    ExecutionFailed,
    InternalFault,
    InvalidArguments,
    InvalidOutput,
    TimedOut,
    ToolFailed,
    Transient,
    Unreached,
    capped,
)
from planq.worker.tools.errors import MAX_QUOTE_CHARS, from_status, quoted
from planq.worker.tools.mcp.reading import TOO_MUCH
from planq.worker.tools.mcp.transport import NOT_SENT

_SESSION_ENDED = "Session terminated"
"""The SDK's text for HTTP 404 in a session: the server has lost it, for example by a restart."""

_STATE_REFUSED = "invalid_request_state"
"""The SDK's reason for a state that its server did not make, or made too long ago."""

_CLOSED = "Connection closed"
_LEFT = "Client must be used within an async context manager"
_STREAM_ENDED = "SSE stream"
_SDK_LIMIT = "byte limit"
_NO_BACK_CHANNEL = "no back-channel"


def is_connection_lost(error: Exception) -> bool:
    """True when the connection that a call used can serve no further call."""
    if isinstance(error, MCPError):
        return (error.code == types.CONNECTION_CLOSED and error.message == _CLOSED) or error.message == _SESSION_ENDED
    if isinstance(error, RuntimeError) and str(error) == _LEFT:
        return True
    return isinstance(error, (anyio.ClosedResourceError, anyio.BrokenResourceError))


def has_forgotten(error: Exception) -> bool:
    """True when a server refused the state with which a call went on: it is unknown to it, or too old."""
    if not isinstance(error, MCPError) or error.code != types.INVALID_PARAMS:
        return False
    reason = error.data.get("reason") if isinstance(error.data, dict) else None
    return reason == _STATE_REFUSED or "requeststate" in error.message.lower().replace(" ", "").replace("_", "")


def call_failure(error: Exception, server: str, tool: str, refusal: Sequence[int]) -> ExecutionFailed:
    """Return an error of `Client.call_tool` as ours; `refusal` has the HTTP status of the call, or `NOT_SENT`."""
    what = f"MCP server {server!r}, tool {tool!r}"
    if refusal and refusal[-1] == NOT_SENT:
        return Unreached(f"{what}: no connection could be opened ({quoted(error)})")
    if isinstance(error, RuntimeError) and str(error) == _LEFT:
        return Unreached(f"{what}: the connection had ended before the call")
    if is_connection_lost(error):
        return Transient(f"{what}: the connection ended before the answer came")
    if isinstance(error, MCPError):
        return _from_protocol(error, what, refusal)
    if isinstance(error, TimeoutError):
        return TimedOut(f"{what}: no answer in time")
    if isinstance(error, ValidationError):
        return InvalidOutput(f"{what}: the answer is no valid MCP result ({error.error_count()} faults)")
    return InternalFault(f"{what}: {quoted(error)}")


def _from_protocol(error: MCPError, what: str, refusal: Sequence[int]) -> ExecutionFailed:
    message = f"{what}: {capped(error.message, MAX_QUOTE_CHARS)}"
    if _NO_BACK_CHANNEL in error.message:
        return ToolFailed(f'{message}; set "planq": {{"asks_in_calls": true}} for this server in mcp.json')
    if error.code == types.REQUEST_TIMEOUT:
        return TimedOut(message)
    if error.code == types.PARSE_ERROR or TOO_MUCH in error.message or _SDK_LIMIT in error.message:
        return InvalidOutput(message)  # the call was made, and its answer cannot be read
    if error.code == types.CONNECTION_CLOSED and error.message.startswith(_STREAM_ENDED):
        return Transient(message)
    if refusal and error.code == types.INTERNAL_ERROR:
        return from_status(refusal[-1], f"{message} (HTTP {refusal[-1]})")
    if error.code == types.INVALID_PARAMS:
        return InvalidArguments(message)
    if error.code == types.INTERNAL_ERROR:
        # A server's own fault may come after the effect; `tool_error` would say that nothing happened.
        return InternalFault(message)
    return ToolFailed(message)
