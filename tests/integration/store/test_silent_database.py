"""Connections that lead nowhere are given up for new ones, by whoever says how long an answer may take."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row

from planq.shared.platform.database import Database, _shut_down
from planq.shared.platform.errors import DatabaseUnavailable
from tests.support.proxy import TcpProxy

PATIENCE = 120.0


@pytest.fixture
def proxy(database_url: str) -> Iterator[TcpProxy]:
    """A proxy before the database."""
    server = conninfo_to_dict(database_url)
    with TcpProxy(Path(str(server["host"]), f".s.PGSQL.{server['port']}")) as running:
        yield running


def through(proxy: TcpProxy, database_url: str) -> str:
    """Return the URL of a database by way of a proxy."""
    server = conninfo_to_dict(database_url)
    return f"postgresql://{server['user']}@127.0.0.1:{proxy.port}/{server['dbname']}"


def test_after_one_silence_all_connections_are_new(proxy: TcpProxy, database_url: str) -> None:
    async def scenario() -> None:
        database = Database(through(proxy, database_url), max_connections=3, silent_seconds=2.0)
        await database.open()
        try:
            async with asyncio.timeout(PATIENCE):
                async with database.connection(), database.connection(), database.connection():
                    pass  # all three are open
                assert proxy.freeze() == 3
                with pytest.raises(DatabaseUnavailable):
                    await database.call("pg_backend_pid")
                # The old ones stay frozen here: whoever got one would hear of its silence, too.
                await asyncio.gather(*(database.call("pg_backend_pid") for _ in range(3)))
        finally:
            await database.close()

    asyncio.run(scenario())


def test_a_server_that_takes_too_long_is_taken_for_silent(database_url: str) -> None:
    async def scenario() -> None:
        database = Database(database_url, max_connections=1, silent_seconds=1.0)
        await database.open()
        try:
            async with asyncio.timeout(PATIENCE):
                with pytest.raises(DatabaseUnavailable):
                    await database.call("pg_sleep", 2 * PATIENCE)
                assert await database.call("pg_backend_pid")
        finally:
            await database.close()

    asyncio.run(scenario())


def test_an_answer_in_time_leaves_its_connection_alone(database_url: str) -> None:
    async def scenario() -> set[int]:
        database = Database(database_url, max_connections=1, silent_seconds=0.5)
        await database.open()
        try:
            pids = {await database.call("pg_backend_pid")}
            # Several times as long as one answer may take, in all.
            for _ in range(4):
                await database.call("pg_sleep", 0.2)
            return pids | {await database.call("pg_backend_pid")}
        finally:
            await database.close()

    assert len(asyncio.run(scenario())) == 1


def test_a_connection_that_was_lost_by_itself_need_not_be_ended(database_url: str) -> None:
    # Pins: it raised in the loop where a connection was lost just before its time, and the others were being renewed.
    async def scenario() -> None:
        connection = await psycopg.AsyncConnection.connect(database_url, row_factory=dict_row)
        await connection.close()
        _shut_down(connection)

    asyncio.run(scenario())
