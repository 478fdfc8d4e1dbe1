"""The door to PostgreSQL: one connection pool a process, named SQL, foreign errors turned into ours.

Every statement is its own transaction (autocommit); what must commit together is one statement or one SQL function.
Named SQL lives in `queries/*.sql`; its first line says what it is for.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from importlib import resources
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import DictRow, dict_row
from psycopg.types.json import Json
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from shared.domain.errors import DatabaseUnavailable, Misconfigured

Row = Mapping[str, Any]


KEEPALIVE: dict[str, Any] = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}
"""libpq's defaults leave a connection whose other end vanished without a word for a quarter of an hour; here it is
given up after some 15 s (tcp_user_timeout in ms, the others in s). Without meaning on a Unix socket."""


def as_json(value: Any) -> Json | None:
    """Wrap a value as a `json` parameter; None stays SQL null.

    NUL characters are kept as escapes, which the `json` type stores as they are; NaN and infinities raise ValueError.
    """
    return None if value is None else Json(value, dumps=json_text)


def json_text(value: Any) -> str:
    """Return JSON text in ASCII, what UTF-8 cannot carry as escapes; NaN and infinities raise ValueError."""
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)


@cache
def query(name: str) -> bytes:
    """Return the text of `queries/<name>.sql`."""
    return resources.files("shared.store").joinpath("queries", f"{name}.sql").read_bytes()


class Database:
    """A pool of autocommit connections, opened inside the event loop that uses it."""

    def __init__(self, database_url: str, *, max_connections: int, timeout_seconds: float = 10.0) -> None:
        """Open no connection yet; raises `Misconfigured` when libpq cannot read the URL."""
        try:
            psycopg.conninfo.conninfo_to_dict(database_url)
        except psycopg.ProgrammingError as error:
            raise Misconfigured(f"DATABASE_URL: expected a URL that libpq can read, found {error}") from error
        self._pool: AsyncConnectionPool[psycopg.AsyncConnection[DictRow]] = AsyncConnectionPool(
            database_url,
            connection_class=psycopg.AsyncConnection[DictRow],
            kwargs={"autocommit": True, "row_factory": dict_row, "application_name": "planq", **KEEPALIVE},
            min_size=1,
            max_size=max_connections,
            timeout=timeout_seconds,
            # A connection that the server closed while it lay idle is replaced before it is handed out.
            check=AsyncConnectionPool.check_connection,
            # The pause between attempts doubles until this is over; a later request then tries afresh, at once.
            reconnect_timeout=3.0,
            open=False,
        )

    async def open(self, *, wait: bool = True) -> None:
        """Open the pool and wait for a first connection; raises `DatabaseUnavailable` when none comes.

        Without `wait` it returns at once, and whoever needs a connection waits for it.
        """
        if not wait:
            await self._pool.open(wait=False)
            return
        try:
            await self._pool.open(wait=True, timeout=self._pool.timeout)
        except PoolTimeout as error:
            await self._pool.close()
            raise DatabaseUnavailable(
                "the database does not answer; check DATABASE_URL and that the server runs"
            ) from error

    async def close(self) -> None:
        """Close every connection; idempotent."""
        await self._pool.close()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[psycopg.AsyncConnection[DictRow]]:
        """Lend a connection; a database failure comes out as `DatabaseUnavailable`, a defect of SQL as it is."""
        try:
            async with self._pool.connection() as connection:
                yield connection
        except (PoolTimeout, psycopg.OperationalError, psycopg.InterfaceError) as error:
            raise DatabaseUnavailable(f"the database does not answer: {type(error).__name__}") from error

    async def fetch_all(self, name: str, /, **params: Any) -> list[DictRow]:
        """Run a named query and return its rows."""
        async with self.connection() as connection:
            cursor = await connection.execute(query(name), params)
            return await cursor.fetchall()

    async def fetch_one(self, name: str, /, **params: Any) -> DictRow | None:
        """Run a named query and return its first row, None when there is none."""
        async with self.connection() as connection:
            cursor = await connection.execute(query(name), params)
            return await cursor.fetchone()

    async def execute(self, name: str, /, **params: Any) -> int:
        """Run a named statement and return how many rows it touched."""
        async with self.connection() as connection:
            cursor = await connection.execute(query(name), params)
            return cursor.rowcount

    async def call(self, function: str, *arguments: Any) -> Any:
        """Call one of our SQL functions and return its single value; `function` is a name of ours, never input."""
        rows = await self.call_table(function, *arguments)
        return rows[0][function]

    async def call_table(self, function: str, *arguments: Any) -> list[DictRow]:
        """Call one of our SQL functions that returns rows."""
        async with self.connection() as connection:
            cursor = await connection.execute(_call(function, len(arguments)), arguments)
            return await cursor.fetchall()


@cache
def _call(function: str, arguments: int) -> sql.Composed:
    marks = sql.SQL(", ").join([sql.Placeholder()] * arguments)
    return sql.SQL("SELECT * FROM {}({})").format(sql.Identifier(function), marks)
