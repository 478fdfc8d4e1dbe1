"""Foreign exceptions of tools become ours here, in one table (`as_execution_failed`).

Whatever a tool's code raises, the engine sees an `ExecutionFailed`, whose class says whether a retry can help.
`ToolError` is for tool authors: a failure in their own words.
"""

from __future__ import annotations

import errno
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from planq.shared.platform.errors import (
    AuthFailed,
    ExecutionFailed,
    InternalFault,
    InvalidArguments,
    PlanqError,
    RateLimited,
    TimedOut,
    ToolFailed,
    Transient,
    capped,
    storable,
)
from planq.shared.platform.lacking import LackedHere, as_failure
from planq.shared.platform.logs import redaction
from planq.worker.egress import retry_after, words_of

if TYPE_CHECKING:
    from httpx2 import Response

MAX_QUOTE_CHARS = 500
"""Longest quotation of a foreign exception's text in a message."""

MAX_TRACEBACK_CHARS = 8_000

_NETWORK_ERRNOS = frozenset(
    {errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETRESET, errno.ENOBUFS}
)
"""`OSError` numbers of passing network faults that Python gives no class of their own."""


_AUTH_STATUSES = (401, 403, 407)


class ToolError(ToolFailed):
    """A tool's own failure: `message` is for the model and the user, `retryable` says if a retry may succeed."""

    def __init__(self, message: str, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


def as_execution_failed(error: BaseException, tool_name: str) -> ExecutionFailed:
    """Return `error` of a tool as our failure; ours pass unchanged, a group of one is read as that one."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if isinstance(error, ExecutionFailed):
        return error
    if isinstance(error, LackedHere):
        return as_failure(error)
    for kind, translate in _rows():
        if isinstance(error, kind):
            return translate(error, tool_name)
    if isinstance(error, OSError) and error.errno in _NETWORK_ERRNOS:
        return _transient(error, tool_name)
    # Not `tool_error`, which says that nothing happened: this may have been raised after the effect.
    return InternalFault(f"{tool_name} raised {quoted(error)}")


async def from_response(response: Response, tool_name: str) -> ExecutionFailed:
    """Return the failure that an HTTP answer outside 2xx means, with the beginning of its body, which is read."""
    return _refusal(response, tool_name, await words_of(response))


def _refusal(response: Response, tool_name: str, said: str = "") -> ExecutionFailed:
    status = response.status_code
    what = f"{tool_name}: {response.request.url.host} answered {status} {response.reason_phrase}".rstrip()
    if status in _AUTH_STATUSES:
        what = f"{what}; the address needs a credential that was not accepted"
    if said:
        what = f"{what}: {said}"
    return from_status(status, what, retry_after(response))


def from_status(status: int, message: str, wait: timedelta | None = None) -> ExecutionFailed:
    """Return the failure that an HTTP status stands for: 408, 429 and 5xx are retryable, 429 and 503 after `wait`."""
    if status in _AUTH_STATUSES:
        return AuthFailed(message, status=status)
    if status == 429:
        return RateLimited(message, retry_after=wait, status=status)
    if status >= 500 or status == 408:
        failure = Transient(message, status=status)
        failure.retry_after = wait if status == 503 else None
        return failure
    return ToolFailed(message, status=status)


def traceback_text(error: BaseException) -> str:
    """Return the traceback of an exception, without known secrets: its end, for that says where it came from."""
    text = storable(redaction("".join(traceback.format_exception(error))))
    return text if len(text) <= MAX_TRACEBACK_CHARS else f"…{text[1 - MAX_TRACEBACK_CHARS :]}"


def quoted(error: BaseException) -> str:
    """Return `Type: text` of an exception, capped and redacted as a line of the log is."""
    name = type(error).__name__
    try:
        text = str(error).strip()
    except Exception:  # foreign code, which may be broken as well
        return name
    return f"{name}: {capped(redaction(text), MAX_QUOTE_CHARS)}" if text else name


def _timed_out(error: BaseException, tool_name: str) -> ExecutionFailed:
    return TimedOut(f"{tool_name}: a time limit inside the tool ran out ({quoted(error)})")


def _transient(error: BaseException, tool_name: str) -> ExecutionFailed:
    return Transient(f"{tool_name} could not be carried out now ({quoted(error)})")


def _invalid(error: BaseException, tool_name: str) -> ExecutionFailed:
    return InvalidArguments(f"{tool_name} cannot use this address ({quoted(error)})")


def _ours(error: BaseException, tool_name: str) -> ExecutionFailed:
    assert isinstance(error, PlanqError)
    if error.retryable:
        return Transient(f"{tool_name}: {error.message}", cause=error.code)
    return ToolFailed(f"{tool_name}: {error.message}", cause=error.code)


_Translate = Callable[[Any, str], ExecutionFailed]

_OF_HTTP: tuple[tuple[str, _Translate], ...] = (
    ("HTTPStatusError", lambda error, tool_name: _refusal(error.response, tool_name)),
    ("UnsupportedProtocol", _invalid),
    ("InvalidURL", _invalid),
    ("TimeoutException", _timed_out),
    ("TransportError", _transient),
)
"""Exceptions of `httpx` and `httpx2` by name: only a tool that sends requests has loaded one of them."""

_OF_PYTHON: tuple[tuple[type[BaseException], _Translate], ...] = (
    (TimeoutError, _timed_out),
    (ConnectionError, _transient),
    (socket.gaierror, _transient),
)


def _rows() -> Iterator[tuple[type[BaseException], _Translate]]:
    yield PlanqError, _ours
    for client in filter(None, map(sys.modules.get, ("httpx", "httpx2"))):
        yield from ((getattr(client, name), translate) for name, translate in _OF_HTTP)
    yield from _OF_PYTHON
