"""Two sessions at once: one whose transaction stays open, and one that comes beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import psycopg
from psycopg.rows import DictRow

from shared.store.database import Database

A = TypeVar("A")
B = TypeVar("B")

_WAITS = b"SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


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

    async def _run_on_one(
        self, statement: bytes, params: Mapping[str, Any] | tuple[Any, ...]
    ) -> tuple[list[DictRow], int]:
        cursor = await self._held.execute(statement, params)
        return await cursor.fetchall() if cursor.description is not None else [], cursor.rowcount

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
        waits = False
        async with watch.connection() as connection:
            while not (acting.done() or waits):
                waits = await (await connection.execute(_WAITS)).fetchone() is not None
        await held.commit()
        return one, await acting, waits
