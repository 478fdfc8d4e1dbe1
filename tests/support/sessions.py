"""Two sessions at once: one whose transaction stays open, and one that comes beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import psycopg
from psycopg.rows import DictRow

from planq.shared.platform.database import Database, Rows

A = TypeVar("A")
B = TypeVar("B")

_WAITS = b"SELECT count(*) AS n FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


class OpenTransaction(Database):
    """A database all of whose statements belong to one transaction, until `commit`."""

    _held: psycopg.AsyncConnection[DictRow]

    async def begin(self) -> None:
        """Begin the transaction."""
        self._held = await self._pool.getconn()
        await self._held.execute(b"BEGIN")

    async def commit(self) -> None:
        """Let others see what was done."""
        await self._held.execute(b"COMMIT")
        await self._pool.putconn(self._held)

    async def _run(
        self, statement: bytes, params: Mapping[str, Any] | tuple[Any, ...], *, prepare: bool | None = None
    ) -> Rows:
        cursor = await self._held.execute(statement, params, prepare=prepare)
        rows = Rows(await cursor.fetchall() if cursor.description is not None else ())
        rows.touched = cursor.rowcount
        return rows

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[psycopg.AsyncConnection[DictRow]]:
        yield self._held


async def raced(
    url: str, first: Callable[[Database], Awaitable[A]], second: Callable[[Database], Awaitable[B]]
) -> tuple[A, B, bool]:
    """Let `first` act, and `second` begin before that is committed; return what both gave, and whether it waited."""
    async with (
        OpenTransaction(url, max_connections=1) as held,
        Database(url, max_connections=1) as beside,
        Database(url, max_connections=1) as watch,
        asyncio.timeout(60),
    ):
        await held.begin()
        one = await first(held)
        acting = asyncio.ensure_future(second(beside))
        waits = await waits_for_locks(watch, acting, 1)
        await held.commit()
        return one, await acting, waits


async def crossed(
    url: str,
    held: tuple[str, *tuple[Any, ...]],
    first: Callable[[Database], Awaitable[A]],
    second: Callable[[Database], Awaitable[B]],
) -> tuple[A, B]:
    """Let `first` come as far as the row that `held` locks, then `second` as far as it comes; then both go on.

    Returns what both gave; raises psycopg's error where the server had to undo one of them.
    """
    async with (
        OpenTransaction(url, max_connections=1) as blocker,
        Database(url, max_connections=1) as one,
        Database(url, max_connections=1) as other,
        Database(url, max_connections=1) as watch,
        asyncio.timeout(60),
    ):
        await blocker.begin()
        async with blocker.connection() as connection:
            statement, *values = held
            await connection.execute(statement.encode(), values)
        ahead = asyncio.ensure_future(first(one))
        assert await waits_for_locks(watch, ahead, 1), "it takes the row that is held"
        behind = asyncio.ensure_future(second(other))
        await waits_for_locks(watch, behind, 2)
        await blocker.commit()
        return await ahead, await behind


async def waits_for_locks(watch: Database, acting: asyncio.Future[Any], count: int) -> bool:
    """Return True once so many sessions wait for a lock, False where `acting` has ended before."""
    async with watch.connection() as connection:
        while not acting.done():
            row = await (await connection.execute(_WAITS)).fetchone()
            if row is not None and row["n"] >= count:
                return True
    return False
