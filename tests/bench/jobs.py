"""Whole jobs through the API, and what the processes behind it used for them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from time import perf_counter
from typing import Any

import psutil

from tests.bench.client import Client
from tests.bench.context import Context
from tests.support.stack import Stack

_UNFINISHED = ("queued", "planning", "executing", "responding")


async def finished(client: Client, body: Any) -> tuple[dict[str, Any], float]:
    """Submit a job and wait for its end; returns it and the seconds from the request to the answer's arrival.

    Raises `RuntimeError` unless it is completed and every step has succeeded.
    """
    begun = perf_counter()
    job = (await client.post("/jobs", body)).json()
    while job.get("status") in _UNFINISHED:
        job = (await client.get(f"/jobs/{job['id']}?wait=60")).json()
    seconds = perf_counter() - begun
    if job.get("status") != "completed" or any(step["status"] != "succeeded" for step in job["steps"]):
        raise RuntimeError(f"expected a completed job, found {str(job)[:500]}")
    return job, seconds


def processes(context: Context, stack: Stack) -> list[int]:
    """Return the processes that a stack stands on: API, workers, database, broker."""
    servers = (context.postgres.pid, context.valkey.pid)
    return [*(process.pid for process in stack.processes.values()), *(pid for pid in servers if pid is not None)]


def cpu_seconds(roots: Iterable[int]) -> float:
    """Return the CPU seconds of processes and everything below them, what has ended and was waited for included."""
    total = 0.0
    for root in roots:
        family = [psutil.Process(root), *psutil.Process(root).children(recursive=True)]
        total += sum(sum(one.cpu_times()[:4]) for one in family)
    return total


def peak_memory(pid: int) -> float:
    """Return the most MB that a process has had resident since it started (VmHWM of proc(5))."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024 / 1_000_000
