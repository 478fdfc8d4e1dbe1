"""uvicorn's HTTP with bounds: no client can fill or hold a process before its request is looked at.

uvicorn (0.54) collects header fields of any size and waits for them without end; its one limit (`limit_concurrency`)
looks at complete heads only. Here the bytes of a head, the seconds of a head and of a body, and the connections of a
process are bounded. The guard bounds the size of bodies.
"""

from __future__ import annotations

import logging
from asyncio import TimerHandle, Transport
from dataclasses import dataclass
from enum import Enum
from time import monotonic
from typing import Any, Final

import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from planq.api.http.exchange import GUARDING_FIELDS, PROBLEM_TYPE, problem

_log = logging.getLogger("planq.api")

ABORT_CONNECTION = "planq.abort"
"""Key of the scope: ends the connection at once, also one whose client does not read what it is sent."""

_TOLD_EVERY_SECONDS = 60.0
_FRAMING = 8
"""Bytes beside a byte of a body: one of its own chunk has five."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a connection may take: bytes of a request line with its header fields, and seconds; how many may be.

    A body may go on after its seconds if so many of its bytes came in them: a long file over a slow line.
    """

    head_bytes: int = 64 * 1024
    head_seconds: float = 20.0
    body_seconds: float = 120.0
    body_bytes: int = 1024 * 1024
    linger_seconds: float = 2.0
    connections: int = 12_000


class _Phase(Enum):
    """What is awaited from the client; nothing more while its request is carried out."""

    NEXT = "the next request"
    HEAD = "the request line and header fields"
    BODY = "the body"


class _HeadTooLarge(Exception):
    """A head has more bytes than it may have."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection of a client."""

    _told_at: float = float("-inf")

    def __init__(self, *args: Any, bounds: Bounds, **options: Any) -> None:
        super().__init__(*args, **options)
        self._bounds: Final = bounds
        self._phase = _Phase.NEXT
        self._requests = 0
        self._head_bytes = 0
        self._unfinished_bytes = 0
        self._body_bytes = 0
        self._body_bytes_before = 0
        self._framing_bytes = 0
        self._is_refused = False
        self._deadline: TimerHandle | None = None
        self._awaited: tuple[int, _Phase] | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._bounds.connections:
            self._tell_of_too_many()
            message = f"this process serves {self._bounds.connections} connections already; try again in a moment"
            self._refuse(503, "too_many_connections", message, linger=0.0)
            return
        self._await(_Phase.NEXT)

    def connection_lost(self, exc: Exception | None) -> None:
        self._give_up_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        was, requests, body_bytes = self._phase, self._requests, self._body_bytes
        super().data_received(data)
        begun = self._requests - requests
        if not self._is_refused and self._phase is not _Phase.NEXT:
            self._count(len(data), was, begun, self._body_bytes - body_bytes)
        if self._is_refused or self.transport.is_closing():
            return
        if self._phase is _Phase.NEXT and (begun or was is not _Phase.NEXT):
            self._give_up_waiting()  # the request is whole: it is our turn
        else:
            self._await(self._phase)

    def _count(self, received: int, was: _Phase, begun: int, of_body: int) -> None:
        """Count what the parser says nothing of: fields that are not whole yet, and what frames a body.

        `received` bytes came, `of_body` of them the body's (if no request began), and `begun` requests began in them.
        """
        if self._phase is _Phase.HEAD:
            if not begun:
                self._unfinished_bytes += received
            else:  # after the rest of another request, only whole fields are known to be this one's
                self._unfinished_bytes = received if begun == 1 and was is _Phase.NEXT else 0
            if self._unfinished_bytes > self._bounds.head_bytes:
                self._refuse_head()
        elif self._phase is was is _Phase.BODY and not begun:
            self._framing_bytes += received - of_body
            if self._framing_bytes > self._bounds.head_bytes + _FRAMING * self._body_bytes:
                self._refuse_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[ABORT_CONNECTION] = self.transport.abort  # type: ignore[literal-required]
        self._phase = _Phase.HEAD
        self._requests += 1
        self._head_bytes = self._body_bytes = self._body_bytes_before = self._framing_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._head_bytes += len(url)
        if self._head_bytes > self._bounds.head_bytes:
            raise _HeadTooLarge
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header field; trailers are dropped, nothing here reads them."""
        if self._phase is _Phase.HEAD:
            self._head_bytes += len(name) + len(value) + 4
            if self._head_bytes > self._bounds.head_bytes:
                raise _HeadTooLarge
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._phase = _Phase.BODY
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._phase = _Phase.NEXT
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        if self._head_bytes > self._bounds.head_bytes:
            self._refuse_head()
        else:
            self._refuse(400, "malformed_request", "expected a request of HTTP/1.1 (RFC 9112), found something else")

    def _refuse_head(self) -> None:
        most = self._bounds.head_bytes
        message = f"expected at most {most} bytes of request line, header fields and framing, found more"
        self._refuse(431, "header_too_large", message)

    def _await(self, phase: _Phase) -> None:
        """Let the time run for what the client has to send now, unless it runs already."""
        awaited = (self._requests, phase)
        if self._awaited == awaited and self._deadline is not None:
            return
        self._give_up_waiting()
        self._awaited = awaited
        seconds = self._bounds.body_seconds if phase is _Phase.BODY else self._bounds.head_seconds
        self._deadline = self.loop.call_later(seconds, self._on_deadline)

    def _give_up_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _on_deadline(self) -> None:
        self._deadline = None
        if self.transport.is_closing():
            return
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if self.flow.read_paused or (is_answering and self._phase is not _Phase.BODY):
            self._await(self._phase)  # the client does not keep us waiting
        elif is_answering and self._body_bytes - self._body_bytes_before >= self._bounds.body_bytes:
            self._body_bytes_before = self._body_bytes
            self._await(self._phase)
        elif self._phase is _Phase.NEXT or (self._phase is _Phase.BODY and not is_answering):
            self.transport.close()  # it has not begun, or has its answer
        else:
            seconds = self._bounds.body_seconds if self._phase is _Phase.BODY else self._bounds.head_seconds
            self._refuse(408, "request_timeout", f"expected {self._phase.value} within {seconds:g} s, found a part")

    def _refuse(self, status: int, code: str, detail: str, *, linger: float | None = None) -> None:
        """Answer with a problem and close, once the client has had the time to read it."""
        self._is_refused = True
        self._give_up_waiting()
        self._unset_keepalive_if_required()
        cycle = self.cycle
        is_answering = cycle is not None and not cycle.response_complete
        if is_answering:
            cycle.disconnected = True
            cycle.message_event.set()
        if is_answering and cycle.response_started:
            self.transport.close()
            return
        self.transport.write(_answer(status, code, detail))
        linger = self._bounds.linger_seconds if linger is None else linger
        if not linger or not self.transport.can_write_eof():
            self.transport.close()
            return
        # Closed while something is left to be read, the connection would be reset, and the answer lost.
        self.transport.write_eof()
        self.flow.resume_reading()
        self._deadline = self.loop.call_later(linger, self.transport.close)

    def _tell_of_too_many(self) -> None:
        if monotonic() - BoundedProtocol._told_at > _TOLD_EVERY_SECONDS:
            BoundedProtocol._told_at = monotonic()
            _log.warning("too_many_connections", extra={"limit": self._bounds.connections})


def _answer(status: int, code: str, detail: str) -> bytes:
    body = orjson.dumps(problem(status, code, detail))
    fields = {
        b"content-type": PROBLEM_TYPE.encode(),
        b"content-length": str(len(body)).encode(),
        b"connection": b"close",
        **dict(GUARDING_FIELDS),
        **({b"retry-after": b"1"} if status == 503 else {}),
    }
    lines = [name + b": " + value + b"\r\n" for name, value in fields.items()]
    return b"".join([STATUS_LINE[status], *lines, b"\r\n", body])
