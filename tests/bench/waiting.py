"""B5: a thousand steps that wait a second, all at once on one worker process: how long, and how much memory."""

from __future__ import annotations

import statistics
from typing import NamedTuple

import psycopg

from tests.bench import plans
from tests.bench.client import Client, run
from tests.bench.context import Context
from tests.bench.figures import Bound, Figure
from tests.bench.jobs import finished, peak_memory
from tests.support.stack import Stack

SECONDS = 1.0
STEPS, MANY_STEPS = 1000, 5000
MAKESPAN, MEMORY_MB, MANY_MAKESPAN = 1.3, 250.0, 2.0
SPARE = 100
"""Places of the worker beyond the steps, so that none of them waits for a place."""

_NOTE = "one `io` worker with a place for every step; from the request to the answer seen by long-poll"
_INNER_NOTE = "by the database's clock: without the request, the acceptance of the plan and the answer"

_INNER = "SELECT extract(epoch FROM max(finished_at) - min(started_at))::float8 FROM steps WHERE job_id = %s"


class Taken(NamedTuple):
    """Of each run the seconds, all and from the first step's start to the last one's end; the worker's most MB."""

    seconds: list[float]
    inner: list[float]
    memory: float


def measure(context: Context) -> list[Figure]:
    """Run plans of waiting steps one after the other; the moonshot's size is measured in full runs only."""
    taken = _taken(context, STEPS)
    figures = [
        _makespan(taken, STEPS, Bound(MAKESPAN)),
        _inner(taken, STEPS),
        Figure("B5 memory of that worker (RSS)", taken.memory, "MB", MEMORY_MB),
    ]
    if not context.quick:
        many = _taken(context, MANY_STEPS)
        figures += [_makespan(many, MANY_STEPS), _inner(many, MANY_STEPS)]
    return figures


def _makespan(taken: Taken, steps: int, *bounds: Bound) -> Figure:
    return Figure(
        f"B5 {steps} steps waiting 1 s: makespan",
        statistics.median(taken.seconds),
        "s",
        limits={"the wait": SECONDS},
        bounds=bounds,
        samples=taken.seconds,
        note=_NOTE,
    )


def _inner(taken: Taken, steps: int) -> Figure:
    return Figure(
        f"B5 {steps} steps waiting 1 s: first start to last end",
        statistics.median(taken.inner),
        "s",
        limits={"the wait": SECONDS},
        samples=taken.inner,
        note=_INNER_NOTE,
    )


def _taken(context: Context, steps: int) -> Taken:
    database_url = context.create_migrated()
    env = {"DATABASE_URL": database_url, "PLANQ_IO_CONCURRENCY": str(steps + SPARE)}
    with context.planq(io=1, env=env) as stack:
        jobs = run(_jobs(stack, steps, context.repeats))
        memory = peak_memory(stack.processes["io-1"].pid)
    with psycopg.connect(database_url) as connection:
        inner = [row[0] for job, _ in jobs for row in connection.execute(_INNER, [job])]
    return Taken([seconds for _, seconds in jobs], inner, memory)


async def _jobs(stack: Stack, steps: int, times: int) -> list[tuple[str, float]]:
    """Return the id of each job, and how long it took."""
    async with Client(stack.url) as client:
        await finished(client, plans.waiting(steps, 0.0))
        done = [await finished(client, plans.waiting(steps, SECONDS)) for _ in range(times)]
    return [(job["id"], seconds) for job, seconds in done]
