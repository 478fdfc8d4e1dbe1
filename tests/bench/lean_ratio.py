"""B30: the CPU of a job of B2, against that of a lean version of the same job (`lean.py`), in turns."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from time import process_time

import httpx
import psycopg

from tests.bench import lean
from tests.bench.context import Context
from tests.bench.figures import Bound, Figure
from tests.bench.jobs import cpu_seconds, processes
from tests.bench.submitting import Planq
from tests.support.stack import Stack
from tests.support.waiting import eventually

LEAN = "lean"
JOBS, QUICK_JOBS = 500, 300
WORKERS = 2
MS = 1_000.0


def measure(context: Context) -> Iterator[Figure]:
    """Let both do the jobs in turns; a first turn of each does not count."""
    jobs = context.either(JOBS, QUICK_JOBS)
    with context.planq(io=WORKERS) as stack, lean_stack(context) as other:
        subjects = [_subject(context, one) for one in (stack, other)]
        for turn in range(context.repeats + 1):
            for subject in subjects if turn % 2 else reversed(subjects):
                subject.run("B2", size=jobs, times=1)
    planq, least = (subject.cpu_of_jobs[1:] for subject in subjects)
    yield Figure(
        "B30 CPU of a job of B2",
        statistics.median(planq) * MS,
        "ms",
        limits={LEAN: statistics.median(least) * MS},
        bounds=(Bound(4.0, LEAN),),
        hopes=(Bound(3.0, LEAN),),
        samples=[seconds * MS for seconds in planq],
        note="API, two workers, PostgreSQL, Valkey and the client; lean (tests/bench/lean.py): the same commits and "
        "flushes, without broker, tenants, limits, retries, leases and sweep.",
    )


def _subject(context: Context, stack: Stack) -> Planq:
    roots = processes(context, stack)
    return Planq(stack.url, lambda: cpu_seconds(roots) + process_time())


def _serves(stack: Stack) -> bool:
    try:
        return httpx.get(f"{stack.url}/healthz").is_success
    except httpx.TransportError:
        return False


@contextmanager
def lean_stack(context: Context) -> Iterator[Stack]:
    """Run the lean version's API and workers on a database of its own."""
    database_url = context.create_database()
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(lean.TABLES)
    stack = Stack(context.new_folder("lean"), database_url, context.valkey.url, fresh=True)
    try:
        stack.run("api", "-m", "tests.bench.lean", "api")
        for number in range(WORKERS):
            stack.run(f"worker-{number}", "-m", "tests.bench.lean", "worker")
        eventually(lambda: _serves(stack), what="the lean API serves")
        yield stack
    finally:
        stack.stop()
