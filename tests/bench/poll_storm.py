"""B10: thousands of clients that each hold a long poll on one API process, whose jobs then all end at once.

No worker runs: this process ends the jobs through the store that workers use, many in a commit, each commit telling
whoever listens. A delay is the time from the end of a job, as the database dates it, to the last byte of the answer
at the client: both clocks are the machine's own.
"""

from __future__ import annotations

import asyncio
import re
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from time import time
from typing import Any
from uuid import UUID

from planq.shared.agentic.references.resolution import as_called
from planq.shared.kernel.claims import StageClaim
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import JobStatus
from planq.shared.kernel.store.transitions import PostgresJobStore
from planq.shared.platform.database import Database
from tests.bench.client import Answer, Client, run
from tests.bench.context import Context
from tests.bench.figures import Bound, Figure
from tests.support.claiming import claim_stage
from tests.support.stack import Stack

CLIENTS, QUICK_CLIENTS, HOPED_CLIENTS = 2_000, 2_000, 10_000
MOST_SECONDS, MOST_MB = 1.0, 300.0
WAIT_SECONDS = 60
AT_ONCE = 100
"""Requests under way while the jobs are made and the clients come; they come one by one, they only end together."""

MIB = 1024 * 1024
_PEAK = re.compile(r"VmHWM:\s*([0-9]+) kB")


@dataclass(frozen=True, slots=True)
class Storm:
    """What one storm came to: the longest delay of a client, and the most memory that the process ever held."""

    worst_seconds: float
    peak_bytes: int


def measure(context: Context) -> list[Figure]:
    """Hold the storm with the clients that must be borne, and in a full run with those that are hoped for."""
    allow_connections(HOPED_CLIENTS + 100)
    storms = [storm(context, CLIENTS) for _ in range(context.repeats)]
    figures = list(_figures(CLIENTS, storms, must=True))
    if not context.quick:
        figures += _figures(HOPED_CLIENTS, [storm(context, HOPED_CLIENTS)], must=False)
    return figures


def storm(context: Context, clients: int) -> Storm:
    """Let so many clients wait on an API process of their own, each for its own job, and end all jobs."""
    database_url = context.create_migrated()
    stack = Stack(context.new_folder("api"), database_url, context.valkey.url, fresh=True)
    try:
        process = stack.run("api", "-m", "planq.api")
        worst = run(_storm(stack.url, database_url, clients))
        return Storm(worst, peak_bytes(process.pid))
    finally:
        stack.stop()


async def _storm(url: str, database_url: str, clients: int) -> float:
    database = Database(database_url, max_connections=4)
    await database.open()
    try:
        async with Client(url, connections=clients + 1) as client:
            await client.answering()
            jobs = await submitted(client, clients)
            store = PostgresJobStore(database, new_id(), as_called)
            claims = await claimed(store, jobs)
            polls = [asyncio.ensure_future(_poll(client, job)) for job in jobs]
            await gauge_reaches(client, "planq_waiting_clients", len(polls), within=polls)
            ended = await asyncio.gather(*(store.end_job(c, JobStatus.COMPLETED, "done", None, []) for c in claims))
            delays = await asyncio.gather(*polls)
    finally:
        await database.close()
    if len(claims) != clients or not all(ended):
        raise RuntimeError(f"expected {clients} jobs to end, found {len(claims)} claimed")
    return max(delays)


async def submitted(client: Client, jobs: int) -> Sequence[str]:
    """Submit so many jobs and return their ids."""
    left = iter(range(jobs))
    found: list[str] = []

    async def submit() -> None:
        for _ in left:
            found.append((await client.post("/jobs", {"input": "Say hello."})).json()["id"])

    await asyncio.gather(*(submit() for _ in range(AT_ONCE)))
    return found


async def claimed(store: PostgresJobStore, jobs: Sequence[str]) -> Sequence[StageClaim]:
    """Claim the first stage of each job."""
    found = await asyncio.gather(*(claim_stage(store, UUID(job), [JobStatus.QUEUED]) for job in jobs))
    return [claim for claim in found if claim]


async def _poll(client: Client, job: str) -> float:
    """Wait for a job as a client does; return the seconds from its end to the answer."""
    answer = await client.get(f"/jobs/{job}?wait={WAIT_SECONDS}")
    return time() - _ended_at(answer).timestamp()


def _ended_at(answer: Answer) -> datetime:
    job = answer.json()
    if answer.status != 200 or job["status"] != JobStatus.COMPLETED:
        raise RuntimeError(f"expected a completed job, found {answer.status} {answer.body[:300]!r}")
    return datetime.fromisoformat(job["finished_at"])


async def gauge_reaches(
    client: Client, gauge: str, count: int, *, within: Sequence[asyncio.Future[Any]] = ()
) -> None:
    """Return once a gauge of the API says so; raises `RuntimeError` when one of `within` has ended before."""
    async with asyncio.timeout(WAIT_SECONDS / 2):
        while True:
            lines = (await client.get("/metrics")).body.decode().splitlines()
            if next(float(line.split()[1]) for line in lines if line.startswith(f"{gauge} ")) == count:
                return
            if over := [one for one in within if one.done()]:
                raise RuntimeError(f"{len(over)} ended before their jobs: {over[0]!r}")
            await asyncio.sleep(0.05)


def peak_bytes(pid: int) -> int:
    """Return the largest resident size that a process ever had (proc_pid_status(5), VmHWM)."""
    found = _PEAK.search(Path(f"/proc/{pid}/status").read_text())
    if found is None:
        raise RuntimeError(f"process {pid} does not tell how much memory it had")
    return int(found[1]) * 1024


def allow_connections(wanted: int) -> None:
    """Let this process have so many files open, where it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else hard, hard))


def _figures(clients: int, storms: Sequence[Storm], *, must: bool) -> Sequence[Figure]:
    """Return the figures of several storms, the worst of each: nobody may wait longer, in none of them."""
    told = f"B10 {clients:,} clients wait on one API process"
    seconds, bytes_ = [one.worst_seconds for one in storms], [one.peak_bytes / MIB for one in storms]
    return [
        _figure(f"{told}: longest delay", max(seconds), "s", MOST_SECONDS, seconds, must=must),
        _figure(f"{told}: memory, peak", max(bytes_), "MB", MOST_MB, bytes_, must=must),
    ]


def _figure(name: str, value: float, unit: str, most: float, samples: Sequence[float], *, must: bool) -> Figure:
    bound = [Bound(most)]
    return Figure(name, value, unit, bounds=bound if must else (), hopes=() if must else bound, samples=samples)
