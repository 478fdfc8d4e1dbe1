"""B32: counting the totals of `/metrics` on a PostgreSQL of the system, which compiles expensive statements.

`planq_tally` runs in a session as planq opens it, and in one with the server's own settings. Both count the events of
the same jobs, and what they write is rolled back.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from time import perf_counter

import httpx
import psycopg

from planq.deploy.local.postgres import EmbeddedPostgres
from planq.shared.schema.migrate import upgrade
from planq.shared.settings.settings import Settings
from tests.bench.context import Context
from tests.bench.figures import Bound, Figure
from tests.bench.submitting import Planq
from tests.support.servers import FUNCTIONS_FOUND

JOBS, CALLS = 50, 20
MOST_OF_STOCK = 1.1


def measure(context: Context) -> list[Figure]:
    """Measure both on the newest PostgreSQL below /usr/lib/postgresql; raises `RuntimeError` where there is none."""
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda place: int(place.parent.name))
    if not installed:
        raise RuntimeError("expected a PostgreSQL in /usr/lib/postgresql (Debian's package postgresql), found none")
    server = EmbeddedPostgres(
        context.new_folder("stock"), options={"jit": "on", **FUNCTIONS_FOUND}, binaries=installed[-1]
    )
    server.start()
    try:
        settings = Settings(database_url=server.url)
        upgrade(settings.require_server())
        with context.planq(env={"DATABASE_URL": server.url}) as stack:
            Planq(stack.url).run("B2", size=JOBS, times=1)
            httpx.get(f"{stack.url}/metrics").raise_for_status()
        with (
            psycopg.connect(server.url, autocommit=True) as stock,
            psycopg.connect(settings.require_database()) as ours,
        ):
            stock.execute(f"SET search_path = {settings.database_schema}, {settings.functions_schema}")
            stock.execute("ANALYZE")
            found = {name: _times(connection) for name, connection in (("stock", stock), ("planq", ours))}
    finally:
        server.stop()
    return [
        Figure(
            f"B32 counting {JOBS} jobs on PostgreSQL {installed[-1].parent.name} of the system",
            statistics.median(found["planq"]),
            "ms",
            limits={"a session with the server's settings": statistics.median(found["stock"])},
            bounds=[Bound(MOST_OF_STOCK, "a session with the server's settings")],
            samples=found["planq"],
        )
    ]


def _times(connection: psycopg.Connection[tuple[object, ...]]) -> list[float]:
    """Return the milliseconds of each of some calls, all of which count from the log's beginning."""
    times = []
    for _ in range(CALLS):
        with connection.transaction(force_rollback=True):
            connection.execute("UPDATE tally_marks SET xid = '0', sequence = 0")
            begun = perf_counter()
            connection.execute("SELECT planq_tally(1000)")
            times.append(1_000 * (perf_counter() - begun))
    return times
