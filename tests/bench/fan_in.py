"""B6: a join over a thousand steps: from the end of the last of them to its start, by the database's clock."""

from __future__ import annotations

import statistics

import psycopg

from tests.bench import plans
from tests.bench.client import Client, run
from tests.bench.context import Context
from tests.bench.figures import Figure
from tests.bench.jobs import finished
from tests.support.stack import Stack

LEAVES = 1000
DELAY_MS = 100.0

_DELAY = """SELECT extract(epoch FROM max(started_at) FILTER (WHERE index = %(leaves)s)
                 - max(finished_at) FILTER (WHERE index < %(leaves)s))::float8 * 1000
FROM steps WHERE job_id = %(job)s"""


def measure(context: Context) -> list[Figure]:
    """Run plans whose last step takes a value from each of a thousand others."""
    database_url = context.create_migrated()
    with context.planq(env={"DATABASE_URL": database_url}) as stack:
        delays = run(_delays(stack, database_url, context.repeats))
    name = f"B6 fan-in of {LEAVES}: last leaf's end to the join's start"
    return [Figure(name, statistics.median(delays), "ms", DELAY_MS, samples=delays)]


async def _delays(stack: Stack, database_url: str, times: int) -> list[float]:
    delays = []
    async with Client(stack.url) as client:
        await finished(client, plans.fan_in(LEAVES))
        for _ in range(times):
            job, _ = await finished(client, plans.fan_in(LEAVES))
            delays.append(_delay(database_url, job["id"]))
    return delays


def _delay(database_url: str, job_id: str) -> float:
    with psycopg.connect(database_url) as connection:
        row = connection.execute(_DELAY, {"job": job_id, "leaves": LEAVES}).fetchone()
    assert row is not None
    return float(row[0])
