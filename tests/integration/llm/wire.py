"""A provider on the wire: a local HTTP server that answers as it is told and keeps what it was sent.

Asked for a stream, it streams the whole replies of its script, as a provider would, and can misbehave in the middle.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import monotonic
from typing import Any, Literal

from tests.integration.llm.events import Event, events_of

After = Literal["end", "break", "hang", "rest"]


@dataclass
class Reply:
    """One HTTP answer; a dict is sent as JSON, bytes as they are, a list of events as a stream.

    `hang`: read the request, answer nothing until the test ends. `drop`: close the connection instead of an answer.
    `whole`: answer with JSON although a stream was asked for. Of a stream, `count` events are sent (all by default),
    one every `pause` seconds. Once the `gate` is open its body ends in order (`end`), its connection breaks
    (`break`), nothing more comes until the client goes (`hang`), or the `rest` of the events comes.
    """

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    hang: bool = False
    drop: bool = False
    whole: bool = False
    count: int | None = None
    then: After = "end"
    pause: float = 0.0
    gate: threading.Event | None = None


@dataclass
class WireRequest:
    """One HTTP request as it arrived; header names are in lower case."""

    path: str
    headers: dict[str, str]
    body: Any


class WireServer:
    """Gives its scripted replies in order, the last one again and again.

    `left_at` tells when (monotonic seconds) a client left a reply that had not ended.
    """

    def __init__(self) -> None:
        self.replies: deque[Reply] = deque()
        self.requests: list[WireRequest] = []
        self.released = threading.Event()
        self.streaming = threading.Event()
        self.left_at: list[float] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                outer.answer(self)

            def log_message(self, *_: Any) -> None:
                """Keep the test's output clean."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = False
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def script(self, *replies: Reply) -> None:
        self.replies = deque(replies)

    def next_reply(self, asked: Any) -> Reply:
        """Return the answer to a request whose body is `asked`."""
        return self.replies.popleft() if len(self.replies) > 1 else self.replies[0]

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        raw = handler.rfile.read(int(handler.headers.get("content-length", "0")))
        headers = {name.lower(): value for name, value in handler.headers.items()}
        asked = json.loads(raw) if raw else {}
        self.requests.append(WireRequest(handler.path, headers, asked))
        reply = self.next_reply(asked)
        handler.close_connection = True
        if reply.hang:
            self._wait_until_left(handler.connection)
        if reply.hang or reply.drop:
            return
        events = self._events(handler.path, asked, reply)
        try:
            if events is None:
                self._send_whole(handler, reply)
            else:
                self._send_stream(handler, reply, events)
        except ConnectionError:  # it left while it was written to: no wait comes that would notice
            self.left_at.append(monotonic())

    def _events(self, path: str, asked: Any, reply: Reply) -> list[Event] | None:
        if isinstance(reply.body, list) and all(isinstance(event, Event) for event in reply.body) and reply.body:
            return list(reply.body)
        if reply.status != 200 or reply.whole or not isinstance(reply.body, dict):
            return None
        try:
            return events_of(path, asked, reply.body)
        except KeyError:
            return None

    def _send_whole(self, handler: BaseHTTPRequestHandler, reply: Reply) -> None:
        text = isinstance(reply.body, str)
        raw_body = isinstance(reply.body, bytes)
        payload = reply.body if raw_body else (reply.body if text else json.dumps(reply.body)).encode()
        kind = "text/html" if text else "application/json"
        self._begin(handler, reply, {"content-type": kind, "content-length": str(len(payload))})
        handler.wfile.write(payload)

    def _send_stream(self, handler: BaseHTTPRequestHandler, reply: Reply, events: list[Event]) -> None:
        self._begin(handler, reply, {"content-type": "text/event-stream", "transfer-encoding": "chunked"})
        for event in events[: reply.count]:
            if reply.pause and self._has_left(handler.connection, reply.pause):
                return
            self._send_chunk(handler, event.wire)
        self.streaming.set()
        if reply.gate is not None:
            self._wait_until_left(handler.connection, reply.gate)
        if reply.then == "hang":
            self._wait_until_left(handler.connection)
        if reply.then == "rest":
            for event in events[reply.count or 0 :]:
                self._send_chunk(handler, event.wire)
        if reply.then in ("end", "rest"):
            with contextlib.suppress(ConnectionError):  # a client may go after the last event: its reply had ended
                self._send_chunk(handler, b"")

    def _begin(self, handler: BaseHTTPRequestHandler, reply: Reply, headers: dict[str, str]) -> None:
        handler.send_response(reply.status)
        for name, value in {"connection": "close", **headers, **reply.headers}.items():
            handler.send_header(name, value)
        handler.end_headers()

    def _send_chunk(self, handler: BaseHTTPRequestHandler, data: bytes) -> None:
        handler.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        handler.wfile.flush()

    def _wait_until_left(self, connection: socket.socket, gate: threading.Event | None = None) -> None:
        give_up = monotonic() + (30 if gate is None else 120)
        while not self.released.is_set() and not (gate and gate.is_set()) and monotonic() < give_up:
            if self._has_left(connection, 0.02):
                return

    def _has_left(self, connection: socket.socket, seconds: float) -> bool:
        """Wait so long, or until the client has closed its end."""
        readable, _, _ = select.select([connection], [], [], seconds)
        if not readable:
            return False
        with contextlib.suppress(ConnectionError):
            if connection.recv(1, socket.MSG_PEEK):
                return False
        self.left_at.append(monotonic())
        return True

    def close(self) -> None:
        self.released.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(60)


@contextlib.contextmanager
def wire_server() -> Iterator[WireServer]:
    """A server that runs as long as the block."""
    running = WireServer()
    try:
        yield running
    finally:
        running.close()
