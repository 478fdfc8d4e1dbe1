"""A receiver of webhooks: a real HTTP server that answers as the test says and remembers what came."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CHUNK = b"x" * 65_536
ENDLESS_CHUNKS = 16_384
"""1 GB in all."""


@dataclass(frozen=True)
class Answer:
    """How a request is answered; without a `status` nothing is said, and an `endless` body is 1 GB."""

    status: int | None = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    endless: bool = False


OK = Answer(204)
SILENT = Answer(None)


@dataclass(frozen=True)
class Seen:
    """A request that came."""

    path: str
    headers: dict[str, str]
    body: bytes


class Receiver(ThreadingHTTPServer):
    """Answers with one after the other of `answers`, and with the last one from then on."""

    daemon_threads = True

    def __init__(self, answers: Sequence[Answer]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self._answers = list(answers)
        self._lock = threading.Lock()
        self.seen: list[Seen] = []
        self.chunks_sent = 0
        self.stopping = threading.Event()

    @property
    def host(self) -> str:
        """Its host and port."""
        return f"127.0.0.1:{self.server_address[1]}"

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://{self.host}/hook"

    def take(self, seen: Seen) -> Answer:
        """Remember a request; return how to answer it."""
        with self._lock:
            self.seen.append(seen)
            return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        named = {name.lower(): value for name, value in self.headers.items()}
        answer = self.server.take(Seen(self.path, named, body))
        if answer.status is None:
            self.server.stopping.wait()
            return
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(ENDLESS_CHUNKS * len(CHUNK) if answer.endless else 0))
        self.end_headers()
        if answer.endless:
            self._send_endlessly()

    def _send_endlessly(self) -> None:
        try:
            for _ in range(ENDLESS_CHUNKS):
                self.wfile.write(CHUNK)
                self.server.chunks_sent += 1
        except OSError:  # whoever asked has gone
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def receiving(*answers: Answer) -> Iterator[Receiver]:
    """Run a receiver; without `answers` it takes everything."""
    with Receiver(answers or (OK,)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.stopping.set()
            server.shutdown()
            thread.join()
