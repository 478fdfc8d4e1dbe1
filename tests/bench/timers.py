"""B21: by how much a step's wait ends late, of 0, 0.3 and 2 seconds: timers of processes that live."""

from __future__ import annotations

import asyncio
import statistics

import psycopg

from tests.bench import plans
from tests.bench.client import Client, run
from tests.bench.context import Context
from tests.bench.figures import Bound, Figure
from tests.bench.jobs import finished

SECONDS = (0.0, 0.3, 2.0)
JOBS, QUICK_JOBS = 200, 40
AT_ONCE = 4
MEDIAN_MS, P95_MS = 50.0, 150.0
MS = 1_000.0

_LATE = "SELECT extract(epoch FROM finished_at - started_at)::float8 - %s FROM steps WHERE job_id = %s"


def measure(context: Context) -> list[Figure]:
    """Run jobs of one waiting step, some of them at once, and read when the step began and ended."""
    figures: list[Figure] = []
    database_url = context.create_migrated()
    with context.planq(env={"DATABASE_URL": database_url}) as stack, psycopg.connect(database_url) as connection:
        for seconds in SECONDS:
            jobs = run(_jobs(stack.url, seconds, context.either(JOBS, QUICK_JOBS)))
            late = [MS * row[0] for job in jobs for row in connection.execute(_LATE, [seconds, job])]
            connection.rollback()
            p95 = statistics.quantiles(late, n=20)[-1]
            median = statistics.median(late)
            name = f"B21 a wait of {seconds:g} s ends late"
            figures += [
                Figure(f"{name}: p50", median, "ms", bounds=[Bound(MEDIAN_MS)], samples=late),
                Figure(f"{name}: p95", p95, "ms", bounds=[Bound(P95_MS)]),
            ]
    return figures


async def _jobs(url: str, seconds: float, count: int) -> list[str]:
    """Run so many jobs, `AT_ONCE` at a time, and return their ids."""
    async with Client(url, connections=AT_ONCE) as client:
        await finished(client, plans.sleeping(0.0))
        left = iter(range(count))

        async def some() -> list[str]:
            return [str((await finished(client, plans.sleeping(seconds)))[0]["id"]) for _ in left]

        return [job for jobs in await asyncio.gather(*(some() for _ in range(AT_ONCE))) for job in jobs]
