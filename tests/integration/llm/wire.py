"""A provider on the wire: a local HTTP server that answers as it is told and keeps what it was sent."""

from __future__ import annotations

import contextlib
import json
import threading
from collections import deque
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Reply:
    """One HTTP answer; a dict is sent as JSON, bytes as they are.

    `hang`: read the request, answer nothing until the test ends.
    """

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    hang: bool = False
    drop: bool = False


@dataclass
class Received:
    """One HTTP request as it arrived; header names are in lower case."""

    path: str
    headers: dict[str, str]
    body: Any


class WireServer:
    """Gives its scripted replies in order, the last one again and again."""

    def __init__(self) -> None:
        self.replies: deque[Reply] = deque()
        self.requests: list[Received] = []
        self.released = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
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

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        raw = handler.rfile.read(int(handler.headers.get("content-length", "0")))
        headers = {name.lower(): value for name, value in handler.headers.items()}
        self.requests.append(Received(handler.path, headers, json.loads(raw) if raw else None))
        reply = self.replies.popleft() if len(self.replies) > 1 else self.replies[0]
        if reply.hang:
            self.released.wait(30)
        if reply.hang or reply.drop:
            handler.close_connection = True
            return
        text = isinstance(reply.body, str)
        raw_body = isinstance(reply.body, bytes)
        payload = reply.body if raw_body else (reply.body if text else json.dumps(reply.body)).encode()
        handler.send_response(reply.status)
        kind = "text/html" if text else "application/json"
        for name, value in {"content-type": kind, "content-length": str(len(payload)), **reply.headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        with contextlib.suppress(ConnectionError):  # a client may refuse to read it all
            handler.wfile.write(payload)

    def close(self) -> None:
        self.released.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(10)
