"""A provider with a batch API: OpenAI's or Anthropic's, with as much of it as is asked for.

Each batch is run when `run` is called, or at the first look at it with `runs_at_once`. `paid` counts how often each
request was run, over all batches.
"""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import time
from typing import Any
from urllib.parse import urlsplit

from tests.integration.llm.dialects import ANTHROPIC, OPENAI_RESPONSES

Json = dict[str, Any]
Answer = Callable[[str, Json], Json]
"""Returns the reply to a request, by its custom id and body; `{"error": …}` fails it, `{}` leaves it unrun."""


def _text(dialect: str, body: Json) -> str:
    return json.dumps(body["messages" if dialect == "anthropic" else "input"])


class BatchServer:
    """Knows what it was sent: `batches` by id, `files` by id, and the bodies of `live` calls."""

    def __init__(self, answer: Answer, *, dialect: str = "openai", runs_at_once: bool = True) -> None:
        self.answer = answer
        self.dialect = dialect
        self.runs_at_once = runs_at_once
        self.refusal: tuple[int, str] | None = None
        self.batches: dict[str, Json] = {}
        self.files: dict[str, bytes] = {}
        self.live: list[Json] = []
        self.paid = Counter[str]()
        self._lock = threading.RLock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                outer.handle(self)

            def do_GET(self) -> None:
                outer.handle(self)

            def log_message(self, *_: Any) -> None:
                """Keep the test's output clean."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    @property
    def url(self) -> str:
        """The address of the server."""
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def close(self) -> None:
        """Stop the server."""
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(60)

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        raw = handler.rfile.read(int(handler.headers.get("content-length", "0")))
        path = urlsplit(handler.path).path.removeprefix("/v1")
        with self._lock:
            status, body = self._answered(handler.command, path, raw)
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        handler.send_response(status)
        handler.send_header("content-type", "application/json")
        handler.send_header("content-length", str(len(payload)))
        handler.send_header("connection", "close")
        handler.close_connection = True
        handler.end_headers()
        handler.wfile.write(payload)

    def _answered(self, method: str, path: str, raw: bytes) -> tuple[int, Any]:
        if method == "POST" and path in ("/responses", "/messages", "/chat/completions"):
            body = json.loads(raw)
            self.live.append(body)
            dialect = ANTHROPIC if self.dialect == "anthropic" else OPENAI_RESPONSES
            return 200, self.answer("live", body) or dialect.reply("live", None)
        if path == "/files":
            file_id = f"file-{len(self.files)}"
            part = re.search(rb'filename="[^"]*".*?\r\n\r\n(.*?)\r\n--', raw, re.DOTALL)
            assert part is not None
            self.files[file_id] = part.group(1)
            return 200, {
                "id": file_id,
                "object": "file",
                "bytes": len(raw),
                "created_at": int(time()),
                "filename": "x",
            }
        if found := re.fullmatch(r"/files/([\w-]+)/content", path):
            return 200, self.files[found.group(1)]
        if found := re.fullmatch(r"(?:/messages)?/batches(?:/([\w-]+)(/cancel|/results)?)?", path):
            return self._of_batches(method, found.group(1), found.group(2), raw)
        return 404, {"error": {"message": f"no {method} {path}"}}

    def _of_batches(self, method: str, batch_id: str | None, what: str | None, raw: bytes) -> tuple[int, Any]:
        if batch_id is None and method == "POST":
            if self.refusal is not None:
                return self.refusal[0], {"error": {"message": self.refusal[1], "type": "invalid_request_error"}}
            made = self._made(json.loads(raw))
            return 200, self._shown(made)
        if batch_id is None:
            listed = [self._shown(one) for one in reversed(self.batches.values())]
            return 200, {"object": "list", "data": listed, "has_more": False, "first_id": None, "last_id": None}
        batch = self.batches[batch_id]
        if what == "/cancel":
            batch["cancelled"] = True
            self.run(batch_id)
        elif what == "/results":
            return 200, "\n".join(map(json.dumps, batch["results"])).encode()
        elif self.runs_at_once and not batch["ended"]:
            self.run(batch_id)
        return 200, self._shown(batch)

    def _made(self, sent: Json) -> Json:
        number = len(self.batches)
        if self.dialect == "anthropic":
            requests = {one["custom_id"]: one["params"] for one in sent["requests"]}
        else:
            lines = map(json.loads, self.files[sent["input_file_id"]].decode().split("\n"))
            requests = {one["custom_id"]: one["body"] for one in lines}
        made = {"id": f"batch_{number}", "requests": requests, "sent": sent, "ended": False, "cancelled": False}
        self.batches[f"batch_{number}"] = made | {"results": [], "created": time()}
        return self.batches[f"batch_{number}"]

    def run(self, batch_id: str) -> None:
        """Run the requests of a batch, those of a cancelled one excepted."""
        batch = self.batches[batch_id]
        if batch["ended"]:
            return
        batch["ended"] = True
        for custom_id, body in batch["requests"].items():
            reply = {} if batch["cancelled"] else self.answer(custom_id, body)
            if reply:
                self.paid[_text(self.dialect, body)] += 1
            batch["results"].append(self._result(custom_id, reply, is_cancelled=batch["cancelled"]))
        if self.dialect != "anthropic":
            ran = [one for one in batch["results"] if one is not None]
            self.files[f"out-{batch_id}"] = "\n".join(map(json.dumps, ran)).encode()

    def _result(self, custom_id: str, reply: Json, *, is_cancelled: bool) -> Any:
        if self.dialect == "anthropic":
            kind = "errored" if "error" in reply else "succeeded"
            value: Json = {"type": kind, "error": {"type": "error", "error": reply.get("error")}}
            if kind == "succeeded":
                value = {"type": kind, "message": reply}
            if not reply:
                value = {"type": "canceled" if is_cancelled else "expired"}
            return {"custom_id": custom_id, "result": value}
        if not reply:
            return None
        status = 400 if "error" in reply and reply.get("object") != "response" else 200
        return {"id": "r", "custom_id": custom_id, "response": {"status_code": status, "body": reply}, "error": None}

    def _shown(self, batch: Json) -> Json:
        if self.dialect == "anthropic":
            when = "2026-01-01T00:00:00Z" if not batch["created"] else _iso(batch["created"])
            counts = dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0)
            counts["succeeded" if batch["ended"] else "processing"] = len(batch["requests"])
            return {
                "id": batch["id"],
                "type": "message_batch",
                "processing_status": "ended" if batch["ended"] else "in_progress",
                "request_counts": counts,
                "created_at": when,
                "expires_at": when,
                "ended_at": when if batch["ended"] else None,
                "results_url": f"{self.url}/v1/messages/batches/{batch['id']}/results" if batch["ended"] else None,
            }
        is_whole = all(one is not None for one in batch["results"])
        ended = "cancelled" if batch["cancelled"] else "completed" if is_whole else "expired"
        return {
            "id": batch["id"],
            "object": "batch",
            "endpoint": "/v1/responses",
            "input_file_id": batch["sent"]["input_file_id"],
            "completion_window": "24h",
            "status": ended if batch["ended"] else "in_progress",
            "output_file_id": f"out-{batch['id']}" if batch["ended"] else None,
            "created_at": int(batch["created"]),
            "metadata": batch["sent"].get("metadata"),
        }


def _iso(seconds: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).isoformat()


@contextmanager
def batch_server(answer: Answer, **options: Any) -> Iterator[BatchServer]:
    """A provider that runs as long as the block."""
    running = BatchServer(answer, **options)
    try:
        yield running
    finally:
        running.close()
