"""B28: jobs of B2 with planq's statements through PgBouncer in transaction mode, against straight to the server.

Straight and through in turns, a planq of its own each time: statements are not prepared behind a pooler, and each
passes one more process.
"""

from __future__ import annotations

import statistics

import psycopg

from planq.shared.platform.database_url import FOR_SPEED
from tests.bench.context import Context
from tests.bench.figures import Bound, Figure
from tests.bench.submitting import Planq
from tests.support.pgbouncer import PgBouncer, missing

JOBS, QUICK_JOBS = 500, 150
RUNS = 3
LEAST = 0.95


def measure(context: Context) -> list[Figure]:
    """Measure both; raises `RuntimeError` where no PgBouncer is installed."""
    if (lacking := missing()) is not None:
        raise RuntimeError(lacking)
    jobs = context.either(JOBS, QUICK_JOBS)
    straight, through = [], []
    for _ in range(context.repeats):
        straight += _rates(context, jobs, with_pooler=False)
        through += _rates(context, jobs, with_pooler=True)
    return [
        Figure(
            "B28 many jobs at once through PgBouncer",
            statistics.median(through),
            "jobs/s",
            limits={"straight": statistics.median(straight)},
            bounds=[Bound(LEAST, "straight", at_most=False)],
            samples=through,
            more_is_better=True,
        )
    ]


def _rates(context: Context, jobs: int, *, with_pooler: bool) -> list[float]:
    """Return the jobs a second of a planq of its own; its first run does not count."""
    database_url = context.create_migrated()
    with psycopg.connect(database_url, autocommit=True) as connection:
        for name, value in FOR_SPEED.items():  # which a pooler passes on no more than any option of a connection
            role = f"ALTER ROLE planq IN DATABASE {connection.info.dbname}"
            connection.execute(f"{role} SET {name} = {value}".encode())
    pooler = PgBouncer(context.new_folder("pgbouncer"), database_url)
    env = {"DATABASE_URL": database_url}
    if with_pooler:
        pooler.start()
        env = {"DATABASE_URL": pooler.url_of(database_url), "PLANQ_LISTEN_URL": database_url}
    try:
        with context.planq(env=env) as stack:
            planq = Planq(stack.url)
            return [jobs / planq.run("B2", size=jobs, times=1)[0] for _ in range(1 + RUNS)][1:]
    finally:
        pooler.stop()
