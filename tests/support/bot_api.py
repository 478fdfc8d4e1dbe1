"""A local server that speaks the Bot API's wire: what it is sent is kept, and answered as the test says."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "42:AAGsecretSecretSecretSecretSecretSecre"


@dataclass(frozen=True)
class Reply:
    """How one call is answered; a `cut` one is taken, and its connection closed without a word."""

    status: int = 200
    document: Mapping[str, Any] | None = None
    cut: bool = False
    silent: bool = False


def refused(status: int, description: str, **parameters: Any) -> Reply:
    """An error as the Bot API has it."""
    document = {"ok": False, "error_code": status, "description": description}
    return Reply(status, {**document, **({"parameters": parameters} if parameters else {})})


CUT, SILENT = Reply(cut=True), Reply(silent=True)


class BotServer(ThreadingHTTPServer):
    """Answers each call of `sendMessage` with the next of the replies, and when they are over as the Bot API does."""

    daemon_threads = True

    def __init__(self, replies: tuple[Reply, ...]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self._replies = list(replies)
        self._lock = threading.Lock()
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.updates: list[dict[str, Any]] = []
        self.tokens = {TOKEN}
        self.files: dict[str, bytes] = {}
        self.stopping = threading.Event()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def sent(self) -> list[dict[str, Any]]:
        """What `sendMessage` was given, in the order in which it came."""
        with self._lock:
            return [given for method, given in self.calls if method == "sendMessage"]

    def take(self, token: str, method: str, given: dict[str, Any]) -> Reply:
        """Keep a call; return how to answer it."""
        with self._lock:
            if token not in self.tokens:
                return refused(401, "Unauthorized")
            self.calls.append((method, given))
            if method == "getFile" and given.get("file_id") not in self.files:
                return refused(400, "Bad Request: wrong file_id or the file is temporarily unavailable")
            if method == "sendMessage" and self._replies:
                reply = self._replies.pop(0)
                if reply.status != 200 or reply.cut or reply.silent:
                    return reply
            return Reply(200, {"ok": True, "result": self._result(method, given)})

    def _result(self, method: str, given: dict[str, Any]) -> Any:
        if method == "getMe":
            return {"id": 42, "is_bot": True, "first_name": "Bot", "username": "planq_bot"}
        if method == "getFile":
            name = given["file_id"]
            return {"file_id": name, "file_unique_id": "u", "file_size": len(self.files[name]), "file_path": name}
        if method == "getUpdates":
            return [one for one in self.updates if one["update_id"] >= given.get("offset", 0)]
        if method == "getWebhookInfo":
            return {"url": "https://planq.example/webhooks/telegram", "pending_update_count": 0}
        if method == "sendMessage":
            chat = {"id": given["chat_id"], "type": "private"}
            number = 100 + len(self.calls)
            return {"message_id": number, "date": 1_764_000_000, "chat": chat, "text": given["text"]}
        return True


class _Handler(BaseHTTPRequestHandler):
    server: BotServer

    def do_POST(self) -> None:
        given = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        _, bot, method = self.path.split("/")
        reply = self.server.take(bot.removeprefix("bot"), method, given)
        if reply.silent:
            self.server.stopping.wait()
            return
        if reply.cut:
            self.close_connection = True
            self.connection.close()
            return
        body = json.dumps(reply.document or {}).encode()
        self.send_response(reply.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        _, kind, bot, name = self.path.split("/", 3)
        is_known = kind == "file" and bot.removeprefix("bot") in self.server.tokens
        body = self.server.files.get(name) if is_known else None
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def finish(self) -> None:
        with suppress(OSError, ValueError):  # the connection was closed on purpose
            super().finish()


@contextmanager
def bot_server(*replies: Reply) -> Iterator[BotServer]:
    """Run a server of the Bot API."""
    with BotServer(replies) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.stopping.set()
            server.shutdown()
            thread.join()
