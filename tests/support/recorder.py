"""An HTTP server that answers as it is told and keeps what it was asked: the far side of a client under test."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Recorder(ThreadingHTTPServer):
    """Answers each request with the next of `replies` to its path (the last one stays), others with `reply`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.reply: tuple[int, bytes] = (200, b"{}")
        self.replies: dict[str, list[tuple[int, bytes]]] = {}
        self.asked: list[tuple[str, str, dict[str, str], Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self, status: int, body: Any) -> None:
        """Set what every path without replies of its own is answered."""
        self.reply = (status, _encoded(body))

    def answer_in_turn(self, path: str, *bodies: Any, status: int = 200) -> None:
        """Set what one path (without its query) is answered, request after request."""
        self.replies[path] = [(status, _encoded(body)) for body in bodies]

    def next_reply(self, path: str) -> tuple[int, bytes]:
        """Return the answer to a request."""
        waiting = self.replies.get(path.partition("?")[0])
        if not waiting:
            return self.reply
        return waiting.pop(0) if len(waiting) > 1 else waiting[0]


class Handler(BaseHTTPRequestHandler):
    server: Recorder

    def _any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        is_json = headers.get("content-type", "").partition(";")[0] == "application/json"
        self.server.asked.append((self.command, self.path, headers, json.loads(body) if is_json else body or None))
        status, text = self.server.next_reply(self.path)
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _any

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _encoded(body: Any) -> bytes:
    return body if isinstance(body, bytes) else json.dumps(body).encode()


@contextmanager
def recorder() -> Iterator[Recorder]:
    """A running server, stopped at the end."""
    with Recorder() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield running
        finally:
            running.shutdown()
            thread.join()
