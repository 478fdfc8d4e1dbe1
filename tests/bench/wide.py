"""B5, B6, B7: plans of many steps on one worker process.

B5 a thousand steps that wait a second, all at once: how long, and how much memory. B6 a join over a thousand steps:
from the end of the last of them to the start of the join, by the database's clock. B7 what a step costs in a plan of
ten thousand, against one of a hundred, in time and in CPU seconds of all processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import psutil
import psycopg

from tests.bench import plans
from tests.bench.client import Client

MIB = 1024 * 1024

CHAIN = 10
"""Length of the chains that B7's plans are made of: of ten thousand steps a thousand are ready at a time."""

_JOIN_START = """SELECT extract(epoch FROM max(started_at) FILTER (WHERE index = %(leaves)s)
                      - max(finished_at) FILTER (WHERE index < %(leaves)s))::float8
FROM steps WHERE job_id = %(job)s"""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a plan's steps cost, each: seconds of time and of CPU."""

    wall: float
    cpu: float


async def finished(client: Client, body: Any) -> tuple[str, float]:
    """Submit a job and wait for its end; returns its id and the seconds from the request to the answer's arrival.

    Raises `RuntimeError` unless it is completed and no step has failed.
    """
    begun = perf_counter()
    job = (await client.post("/jobs", body)).json()
    while job.get("status") in ("queued", "planning", "executing", "responding"):
        job = (await client.get(f"/jobs/{job['id']}?wait=60")).json()
    seconds = perf_counter() - begun
    if job.get("status") != "completed" or any(step["status"] != "succeeded" for step in job["steps"]):
        raise RuntimeError(f"expected a completed job, found {str(job)[:500]}")
    return job["id"], seconds


async def waiting_makespan(client: Client, steps: int, seconds: float = 1.0) -> float:
    """Return the seconds from the submission of so many waiting steps to the answer."""
    _, makespan = await finished(client, plans.waiting(steps, seconds))
    return makespan


async def join_delay(client: Client, database_url: str, leaves: int) -> float:
    """Return the seconds from the end of the last of so many steps to the start of the join over all of them."""
    job, _ = await finished(client, plans.fan_in(leaves))
    with psycopg.connect(database_url) as connection:
        row = connection.execute(_JOIN_START, {"job": job, "leaves": leaves}).fetchone()
    assert row is not None
    return float(row[0])


async def step_cost(client: Client, steps: int, cpu_seconds: Callable[[], float], *, jobs: int = 1) -> Cost:
    """Return what a step of a plan of so many costs, over `jobs` such plans one after the other."""
    body = plans.chains(steps, CHAIN)
    before, wall = cpu_seconds(), 0.0
    for _ in range(jobs):
        _, seconds = await finished(client, body)
        wall += seconds
    return Cost(wall / (jobs * steps), (cpu_seconds() - before) / (jobs * steps))


def cpu_seconds(roots: Iterable[int]) -> float:
    """Return the CPU seconds of processes and everything below them, what has ended and was waited for included."""
    total = 0.0
    for root in roots:
        family = [psutil.Process(root), *psutil.Process(root).children(recursive=True)]
        total += sum(sum(one.cpu_times()[:4]) for one in family)
    return total


def peak_memory(pid: int) -> float:
    """Return the most MiB that a process has had resident since it started (VmHWM of proc(5))."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024 / MIB
