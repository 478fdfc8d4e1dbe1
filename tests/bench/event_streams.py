"""B17: thousands of clients that each follow events through one API process.

First all follow the tenant, and every event goes to all of them; then each follows a job of its own, and all jobs end
at once. No worker runs: this process writes the events as workers do. A delay is the time from the event, as the
database dates it, to its frame at the client: both clocks are the machine's own.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import quantiles
from time import time
from urllib.parse import urlsplit

from planq.shared.agentic.references.resolution import as_called
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import JobStatus
from planq.shared.kernel.store.transitions import PostgresJobStore
from planq.shared.platform.database import Database
from tests.bench.client import Client, run
from tests.bench.context import Context
from tests.bench.figures import Bound, Figure
from tests.bench.poll_storm import AT_ONCE, MIB, allow_connections, claimed, gauge_reaches, peak_bytes, submitted
from tests.support.stack import Stack

CLIENTS, QUICK_CLIENTS = 2_000, 500
EVENTS, QUICK_EVENTS = 20, 5
MOST_SECONDS, LAST_SECONDS, MOST_MB = 1.0, 1.5, 300.0
_PATIENCE_SECONDS = 120.0

_NEWS = "job_paused"
"""The kind of the events that are sent to all; nothing here pauses a job."""

_CREATED = re.compile(rb'"created_at":"([^"]+)"')


@dataclass(frozen=True, slots=True)
class Taken:
    """Delays in seconds: of one event at all clients, and of each client's own; the most memory of the process."""

    of_all: list[float]
    of_one: list[float]
    peak_bytes: int


def measure(context: Context) -> list[Figure]:
    """Hold the streams and send what they follow."""
    clients = context.either(CLIENTS, QUICK_CLIENTS)
    allow_connections(clients + 100)
    taken = _taken(context, clients)
    told = f"B17 {clients:,} streams on one API process"
    return [
        Figure(f"{told}: an event to all of them, p95", _p95(taken.of_all), "s", MOST_SECONDS),
        Figure(f"{told}: the ends of their jobs at once, p95", _p95(taken.of_one), "s", hopes=[Bound(MOST_SECONDS)]),
        Figure(f"{told}: the last of these ends", max(taken.of_one), "s", LAST_SECONDS),
        Figure(f"{told}: memory, peak", taken.peak_bytes / MIB, "MB", MOST_MB),
    ]


def _taken(context: Context, clients: int) -> Taken:
    database_url = context.create_migrated()
    stack = Stack(context.new_folder("api"), database_url, context.valkey.url, fresh=True)
    try:
        process = stack.run("api", "-m", "planq.api")
        events = context.either(EVENTS, QUICK_EVENTS)
        of_all, of_one = run(_both(stack.url, database_url, clients, events))
        return Taken(of_all, of_one, peak_bytes(process.pid))
    finally:
        stack.stop()


async def _both(url: str, database_url: str, clients: int, events: int) -> tuple[list[float], list[float]]:
    database = Database(database_url, max_connections=4)
    async with database, Client(url, connections=AT_ONCE) as client, asyncio.timeout(3 * _PATIENCE_SECONDS):
        await client.answering()
        of_all = await _to_all(client, url, database, clients, events)
        await gauge_reaches(client, "planq_open_streams", 0)
        return of_all, await _to_each(client, url, database, clients)


async def _to_all(client: Client, url: str, database: Database, clients: int, events: int) -> list[float]:
    """Send events that all clients follow; return the delays."""
    (job,) = await submitted(client, 1)
    streams = [asyncio.ensure_future(_follow(url, "/events", _NEWS, events)) for _ in range(clients)]
    await gauge_reaches(client, "planq_open_streams", clients, within=streams)
    for _ in range(events):
        await database.call("planq_append_event", "default", job, _NEWS, None)
        await asyncio.sleep(0.5)
    return [delay for found in await asyncio.gather(*streams) for delay in found]


async def _to_each(client: Client, url: str, database: Database, clients: int) -> list[float]:
    """End all jobs at once, each of which a client follows; return the delays."""
    jobs = await submitted(client, clients)
    store = PostgresJobStore(database, new_id(), as_called)
    claims = await claimed(store, jobs)
    streams = [asyncio.ensure_future(_follow(url, f"/jobs/{job}/events", "job_completed", 1)) for job in jobs]
    await gauge_reaches(client, "planq_open_streams", clients, within=streams)
    ended = await asyncio.gather(*(store.end_job(c, JobStatus.COMPLETED, "done", None, []) for c in claims))
    if len(claims) != clients or not all(ended):
        raise RuntimeError(f"expected {clients} jobs to end, found {len(claims)} claimed")
    return [delay for found in await asyncio.gather(*streams) for delay in found]


async def _follow(url: str, path: str, kind: str, count: int) -> list[float]:
    """Follow events until so many of a kind have come; return how long each has taken."""
    delays: list[float] = []
    async for name, data in _frames(url, path):
        if name == kind:
            created = _CREATED.search(data)
            assert created is not None
            delays.append(time() - datetime.fromisoformat(created[1].decode()).timestamp())
            if len(delays) == count:
                return delays
    raise RuntimeError(f"expected {count} events {kind}, found {len(delays)} when the stream of {path} ended")


async def _frames(url: str, path: str) -> AsyncIterator[tuple[str, bytes]]:
    """Yield the name and the data of each frame."""
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        name = ""
        async for line in reader:
            if line.startswith(b"event: "):
                name = line[7:].decode().strip()
            elif line.startswith(b"data: "):
                yield name, line
    finally:
        writer.close()


def _p95(delays: Sequence[float]) -> float:
    return quantiles(delays, n=20)[-1]
