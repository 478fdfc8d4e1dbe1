"""B19: a batch of 10 000 lines, each a job of B2, from its start to its end, between two runs of B2 itself.

Beside it the messages in the broker are counted and held against the window of bulk jobs of the same moment. The
API's memory is its resident size, sampled also while results are read, above that before the batch is sent.
"""

from __future__ import annotations

import json
import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import httpx
import psutil
import psycopg

from planq.shared.broker import names
from planq.shared.broker.celery_config import create_celery
from planq.shared.broker.depth import message_count
from planq.shared.kernel.states import OWN_QUEUES
from tests.bench import plans
from tests.bench.context import Context
from tests.bench.figures import Bound, Figure
from tests.bench.submitting import TOOLS, Planq

LINES, QUICK_LINES = 10_000, 1_000
JOBS = 500
LEAST_SHARE = 0.9
MOST_MEMORY = 50.0
MB = 1024 * 1024
PATIENCE_SECONDS = 600.0


@dataclass(slots=True)
class _Watched:
    """The most that was seen: bytes of the API, messages at the broker, and messages for each job of the window."""

    bytes: int = 0
    messages: int = 0
    share: float = 0.0


def measure(context: Context) -> list[Figure]:
    """Run the batch."""
    lines = context.either(LINES, QUICK_LINES)
    body = plans.asking(TOOLS)
    file = b"".join(json.dumps({"custom_id": f"line-{n}", "body": body}).encode() + b"\n" for n in range(lines))
    database_url = context.create_migrated()
    with (
        context.planq(env={"DATABASE_URL": database_url}) as stack,
        httpx.Client(base_url=stack.url, timeout=PATIENCE_SECONDS, trust_env=False) as client,
    ):
        planq = Planq(stack.url)
        single = [JOBS / seconds for seconds in planq.run("B2", size=JOBS, times=3)]
        api = psutil.Process(stack.processes["api"].pid)
        before = api.memory_info().rss
        with _watching(database_url, context.valkey.url, api) as seen:
            rate = _run(client, file, lines)
        single += [JOBS / seconds for seconds in planq.run("B2", size=JOBS, times=3)]
    one_by_one = statistics.median(single)
    return [
        Figure(
            "B19 jobs of a batch",
            rate / one_by_one,
            "× B2",
            bounds=[Bound(LEAST_SHARE, at_most=False)],
            note=f"{lines} lines at {rate:.0f} jobs/s; B2 before and after it {one_by_one:.0f} jobs/s",
        ),
        Figure("B19 memory of the API", (seen.bytes - before) / MB, "MB", bounds=[Bound(MOST_MEMORY)]),
        Figure(
            "B19 messages at the broker",
            seen.share,
            "× window",
            bounds=[Bound(1.0)],
            note=f"at most {seen.messages}",
        ),
    ]


def _run(client: httpx.Client, file: bytes, lines: int) -> float:
    """Send the file, start it once it is validated, read its results; return its jobs a second."""
    answer = client.post("/batches?start=false", content=file, headers={"Content-Type": "application/jsonl"})
    path = f"/batches/{answer.raise_for_status().json()['id']}"
    _until(client, path, "in_progress")
    begun = perf_counter()
    client.post(f"{path}/resume").raise_for_status()
    batch = _until(client, path, "completed")
    seconds = perf_counter() - begun
    if batch["counts"]["completed"] != lines:
        raise RuntimeError(f"expected {lines} completed lines, found {batch['counts']}")
    with client.stream("GET", f"{path}/results") as results:
        read = sum(1 for _ in results.iter_lines())
    if read != lines:
        raise RuntimeError(f"expected {lines} results, found {read}")
    return lines / seconds


def _until(client: httpx.Client, path: str, status: str) -> dict[str, Any]:
    wait = threading.Event()
    while True:
        batch: dict[str, Any] = client.get(path).json()
        if batch["status"] == status:
            return batch
        wait.wait(0.2)


@contextmanager
def _watching(database_url: str, broker_url: str, api: psutil.Process) -> Iterator[_Watched]:
    seen, stop = _Watched(), threading.Event()

    def look() -> None:
        app = create_celery(broker_url)
        with psycopg.connect(database_url, autocommit=True) as database, app.connection_for_write() as broker:
            while not stop.wait(0.1):
                row = database.execute("SELECT planq_window('bulk')").fetchone()
                assert row is not None
                counts = [message_count(broker, broker.default_channel, names.queue(queue)) for queue in OWN_QUEUES]
                messages = sum(count or 0 for count in counts)
                seen.bytes = max(seen.bytes, api.memory_info().rss)
                seen.messages = max(seen.messages, messages)
                seen.share = max(seen.share, messages / max(1, row[0]))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()
