"""A database's clock, moved by a test: what lies an hour ahead is there without waiting."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from planq.shared.platform.database import Database
from tests.support.servers import FUNCTIONS


async def move_clock(database: Database, by: timedelta) -> None:
    """Let it be later in a database by so much, for all transitions, queries and sweeps.

    What a column has by default, as the time of an event, stays at the server's own time.
    """
    later = f"make_interval(secs => {by.total_seconds()})"
    await _set(database, now=f"now() + {later}", clock=f"clock_timestamp() + {later}")


async def stop_clock(database: Database, after: timedelta) -> None:
    """Let it be later in a database by so much, as `move_clock` does, and stay so however long a test takes."""
    stopped = f"timestamptz ''{(datetime.now(UTC) + after).isoformat()}''"
    await _set(database, now=stopped, clock=stopped)


async def _set(database: Database, *, now: str, clock: str) -> None:
    for name, volatility, told in (("planq_now", "STABLE", now), ("planq_clock", "VOLATILE", clock)):
        statement = (
            f"CREATE OR REPLACE FUNCTION {FUNCTIONS}.{name}() RETURNS timestamptz LANGUAGE sql {volatility} "
            f"AS 'SELECT {told}'"
        )
        async with database.connection() as connection:
            await connection.execute(statement.encode())
