"""B20: a file of 50 000 requests, each a job of B2, from its first byte until the last line is validated.

Nothing runs (`start=false`), and no worker is there. Beside it another client looks at the API's health, one request
after the other: its longest wait is what the intake costs others. Memory is the resident size of the API's process,
sampled, above that of before.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic, perf_counter
from typing import Any

import httpx
import psutil

from tests.bench import plans
from tests.bench.context import Context
from tests.bench.figures import Bound, Figure
from tests.bench.submitting import TOOLS
from tests.support.stack import Stack

LINES, QUICK_LINES = 50_000, 5_000
MOST_SECONDS = 90.0
MOST_MEMORY = 150.0
MB = 1024 * 1024
MS = 1_000


@dataclass(slots=True)
class _Watched:
    """What was seen of the API's process meanwhile: its largest size, and the waits of another client."""

    bytes: int = 0
    waits: list[float] = field(default_factory=list)


def measure(context: Context) -> list[Figure]:
    """Send one file to a new API process."""
    lines = context.either(LINES, QUICK_LINES)
    body = plans.asking(TOOLS)
    file = b"".join(json.dumps({"custom_id": f"line-{n}", "body": body}).encode() + b"\n" for n in range(lines))
    stack = Stack(context.new_folder("api"), context.create_migrated(), context.valkey.url, fresh=True)
    try:
        process = psutil.Process(stack.run("api", "-m", "planq.api").pid)
        with httpx.Client(base_url=stack.url, timeout=MOST_SECONDS, trust_env=False) as client:
            _answering(client)
            before = process.memory_info().rss
            with _watching(stack.url, process) as seen:
                stored, validated = _sent(client, file)
    finally:
        stack.stop()
    waits = sorted(seen.waits)
    p95, longest = (MS * waits[int(share * (len(waits) - 1))] for share in (0.95, 1.0))
    note = (
        f"a file of {lines} lines, {len(file) / MB:.0f} MB. Another client's requests meanwhile, ms: "
        f"p95 {p95:.0f}, longest {longest:.0f}"
    )
    share = lines / LINES
    return [
        Figure("B20 a batch stored", stored, "s", note=note),
        Figure("B20 a batch validated", validated, "s", bounds=[Bound(MOST_SECONDS * share)]),
        Figure("B20 memory of the API", (seen.bytes - before) / MB, "MB", bounds=[Bound(MOST_MEMORY)]),
    ]


def _answering(client: httpx.Client) -> None:
    until = monotonic() + MOST_SECONDS
    while True:
        try:
            if client.get("/batches").is_success:
                return
        except httpx.TransportError:
            if monotonic() > until:
                raise


def _sent(client: httpx.Client, file: bytes) -> tuple[float, float]:
    """Send a file; return the seconds until it is stored, and until its lines are validated."""
    begun = perf_counter()
    answer = client.post("/batches?start=false", content=file, headers={"Content-Type": "application/jsonl"})
    stored = perf_counter() - begun
    batch: dict[str, Any] = answer.raise_for_status().json()
    wait = threading.Event()
    while batch["status"] == "validating":
        wait.wait(0.1)
        batch = client.get(f"/batches/{batch['id']}").json()
    validated = perf_counter() - begun
    if batch["status"] != "in_progress" or batch["counts"]["invalid"]:
        raise RuntimeError(f"expected every line to be valid, found {batch['counts']}")
    return stored, validated


@contextmanager
def _watching(url: str, process: psutil.Process) -> Iterator[_Watched]:
    seen, stop = _Watched(), threading.Event()

    def look() -> None:
        with httpx.Client(base_url=url, timeout=MOST_SECONDS, trust_env=False) as client:
            while not stop.wait(0.02):
                begun = perf_counter()
                client.get("/healthz")
                seen.waits.append(perf_counter() - begun)
                seen.bytes = max(seen.bytes, process.memory_info().rss)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()
