"""The jobs of which a history is made: planq carries each of them out, and `filling` copies the rows that they left.

A family is what hangs together: a job with its children, a conversation with its turns, a batch with the jobs of its
lines. Families of every kind are there: completed, failed, cancelled, and such as wait for a person, a timer or their
pause to end, so that a running planq has nothing to do for them.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import psycopg

from tests.bench import plans
from tests.bench.children import AGENT
from tests.support.stack import Stack
from tests.support.waiting import eventually

ENV = {
    "PLANQ_TOOLS": "tests.bench.tools,tests.bench.children:fan_out",
    "PLANQ_WEBHOOK_ALLOW_HOSTS": "127.0.0.1",
    "PLANQ_SECRET_KEYS": base64.b64encode(bytes(32)).decode(),
    **dict.fromkeys(
        ("PLANQ_PLAN_TIMEOUT_SECONDS", "PLANQ_JOB_TIMEOUT_SECONDS", "PLANQ_HUMAN_WAIT_SECONDS"), str(86_400 * 365)
    ),
}
LONG_SECONDS = 86_400
Json = dict[str, Any]

_ENDED = ("completed", "failed", "cancelled")
_AT_REST = (*_ENDED, "input_required")
_GONE_PATH = "/gone"


class _Receiver(BaseHTTPRequestHandler):
    """Takes every webhook, but for those that it says are of no use to it."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self.send_response(410 if self.path == _GONE_PATH else 204)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def _receiver() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class _Maker:
    def __init__(self, client: httpx.Client, receiver: str) -> None:
        self._client = client
        self._receiver = receiver

    def job(self, body: Json, *, until: tuple[str, ...] = _ENDED) -> str:
        """Submit a job and wait until it has come so far; returns its id."""
        answer = self._client.post("/jobs", json=body)
        if answer.is_error:
            raise RuntimeError(f"expected a job, found {answer.status_code}: {answer.text[:500]}")
        job_id: str = answer.json()["id"]
        eventually(lambda: self._status(job_id) in until, 30, what=f"job {body} to be one of {until}")
        return job_id

    def _status(self, job_id: str) -> str:
        status: str = self._client.get(f"/jobs/{job_id}").json()["status"]
        return status

    def chain(self) -> None:
        self.job(_planned(_call("6*7"), _call("{{ $0.output.result }}+1"), _call("{{ $1.output.result }}+1")))

    def planned_by_model(self) -> None:
        self.job({**plans.asking(3), "metadata": {"source": "history"}})

    def told(self) -> None:
        self.job({**plans.asking(2), "callback_url": f"{self._receiver}/ok"})

    def told_in_vain(self) -> None:
        self.job({**plans.asking(1), "callback_url": f"{self._receiver}{_GONE_PATH}"})

    def turns(self) -> None:
        self.job(plans.turns(2))

    def loop(self) -> None:
        self.job({**plans.asking(2), "strategy": "loop"})

    def failed(self) -> None:
        plan = _planned(_call("1+1"), {"kind": "abort", "reason": "it is of no use"})
        self.job({**plan, "strategy": "plan"})

    def failed_loop(self) -> None:
        """A loop whose model is nowhere: its requests fail at once."""
        self.job({"input": "Say what day it is.", "strategy": "loop", "model": "openai:nowhere"})

    def partial(self) -> None:
        self.job(_planned(_call("1/0"), _call("{{ $0.output.result }}+1")))

    def cancelled(self) -> None:
        job_id = self.job(_waiting(), until=("executing",))
        self._client.post(f"/jobs/{job_id}/cancel").raise_for_status()

    def children(self) -> None:
        self.job(plans.children(3))

    def large(self) -> None:
        self.job(
            {"input": "Write much.", "plan": {"calls": [{"tool_name": "bench_text", "arguments": {"size": 70_000}}]}}
        )

    def artifact(self) -> None:
        arguments = {"title": "A report", "sections": [{"heading": "One", "content": "What is in it."}]}
        self.job(_planned({"tool_name": "write_report", "arguments": arguments}))

    def answered(self) -> None:
        self._answer("accept")

    def declined(self) -> None:
        self._answer("decline")

    def _answer(self, action: str) -> None:
        job_id = self.job(_asking(), until=("input_required",))
        (question,) = self._client.get(f"/jobs/{job_id}/elicitations").json()["items"]
        self._client.post(f"/elicitations/{question['id']}", json={"action": action}).raise_for_status()
        eventually(lambda: self._status(job_id) in _ENDED, 30, what="the answered job to end")

    def asking(self) -> None:
        self.job(_asking(), until=("input_required",))

    def sleeping(self) -> None:
        self.job(_waiting(), until=("executing",))

    def paused(self) -> None:
        job_id = self.job(_waiting(), until=("executing",))
        self._client.post(f"/jobs/{job_id}/pause").raise_for_status()

    def conversation(self) -> None:
        for text in ("Hello.", plans.asking(1)["input"], "Thank you."):
            message = {
                "tenant_id": "default",
                "channel": "web",
                "from": {"external_id": "user-1"},
                "thread": "thread",
                "content": {"text": text},
            }
            answer = self._client.post("/messages/inbound", json=message)
            if answer.status_code != 200:
                raise RuntimeError(f"expected an answer, found {answer.status_code}: {answer.text[:500]}")

    def batch(self) -> None:
        lines = [{"custom_id": f"line-{n}", "body": plans.asking(1)} for n in range(5)]
        content = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        answer = self._client.post("/batches", content=content, headers={"Content-Type": "application/jsonl"})
        path = f"/batches/{answer.raise_for_status().json()['id']}"
        eventually(lambda: self._client.get(path).json()["status"] == "completed", 60, what="the batch to end")


def _call(expression: str) -> Json:
    return {"tool_name": "calculate", "arguments": {"expression": expression}}


def _planned(*calls: Json) -> Json:
    return {"input": "Calculate.", "plan": {"calls": list(calls)}}


def _waiting() -> Json:
    return _planned({"tool_name": "wait", "arguments": {"seconds": LONG_SECONDS}}, _call("1+1"))


def _asking() -> Json:
    ask = {"kind": "elicitation", "message": "Which city?", "requested_schema": {"type": "object", "properties": {}}}
    return _planned(ask, _call("1+1"))


SHARES: dict[Callable[[_Maker], None], int] = {
    _Maker.chain: 300,
    _Maker.planned_by_model: 250,
    _Maker.turns: 60,
    _Maker.loop: 30,
    _Maker.told: 60,
    _Maker.told_in_vain: 3,
    _Maker.failed: 20,
    _Maker.failed_loop: 2,
    _Maker.partial: 40,
    _Maker.cancelled: 20,
    _Maker.children: 20,
    _Maker.large: 25,
    _Maker.artifact: 30,
    _Maker.answered: 10,
    _Maker.declined: 3,
    _Maker.conversation: 40,
    _Maker.batch: 12,
    _Maker.asking: 8,
    _Maker.sleeping: 8,
    _Maker.paused: 5,
}
"""How many of a thousand families, nearly, are of each kind."""

_MARKED = ("jobs", "conversations", "batches")
_MARKS = "INSERT INTO pattern_{what} SELECT %s, id FROM {what} WHERE id NOT IN (SELECT id FROM pattern_{what})"


def make(stack: Stack, database_url: str) -> dict[int, int]:
    """Carry out one family of each kind on an empty planq; returns how many of a thousand are to be of each family.

    The tables `pattern_jobs`, `pattern_conversations` and `pattern_batches` then say what belongs to which family.
    The stack has the settings `ENV`.
    """
    with psycopg.connect(database_url, autocommit=True) as database:
        for what in _MARKED:
            database.execute(f"CREATE TABLE pattern_{what} (family int, id uuid PRIMARY KEY)".encode())
        for family, _ in enumerate(carry_out(stack, database_url)):
            for what in _MARKED:
                statement = _MARKS.format(what=what)
                database.execute(statement.encode(), [family])
    return dict(enumerate(SHARES.values()))


def carry_out(stack: Stack, database_url: str) -> Iterator[None]:
    """Carry out one family of each kind, and yield whenever nothing follows any more from the one that was begun."""
    with (
        _receiver() as receiver,
        httpx.Client(base_url=stack.url, timeout=60, trust_env=False) as client,
        psycopg.connect(database_url, autocommit=True) as database,
    ):
        document = {"name": AGENT, "description": "You say what you are asked to say.", "model": "offline"}
        client.put(f"/agents/{AGENT}", json=document).raise_for_status()
        # A worker is there, and so the API ready, a moment before its tools are.
        eventually(lambda: "calculate" in client.get("/tools").text, 30, what="the tools to be published")
        database.execute("SET enable_seqscan = off")  # who counts those of planq does not want to count these
        maker = _Maker(client, receiver)
        for kind in SHARES:
            kind(maker)
            eventually(lambda: _is_settled(database), 30, what="deliveries and parents to be settled")
            yield


_OPEN = """SELECT FROM deliveries WHERE status IN ('pending', 'sending')
UNION ALL SELECT FROM batches WHERE status IN ('in_progress', 'cancelling')
UNION ALL SELECT FROM batches WHERE status IN ('uploading', 'validating') AND held_until IS NOT NULL
UNION ALL SELECT FROM jobs
WHERE NOT is_joined AND coalesce(parent_job_id, conversation_id, batch_id) IS NOT NULL
  AND status IN ('completed', 'failed', 'cancelled')"""


def _is_settled(database: psycopg.Connection) -> bool:
    """Return whether nothing follows any more from what has ended."""
    return database.execute(f"{_OPEN} LIMIT 1".encode()).fetchone() is None
