"""A database's clock, moved by a test: what lies an hour ahead is there without waiting."""

from __future__ import annotations

from datetime import timedelta

from planq.shared.store.database import Database


async def move_clock(database: Database, by: timedelta) -> None:
    """Let it be later in a database by so much, for all transitions, queries and sweeps.

    What a column has by default, as the time of an event, stays at the server's own time.
    """
    for name, volatility, real in (
        ("planq_now", "STABLE", "now()"),
        ("planq_clock", "VOLATILE", "clock_timestamp()"),
    ):
        later = f"{real} + make_interval(secs => {by.total_seconds()})"
        statement = (
            f"CREATE OR REPLACE FUNCTION {name}() RETURNS timestamptz LANGUAGE sql {volatility} AS 'SELECT {later}'"
        )
        async with database.connection() as connection:
            await connection.execute(statement.encode())
