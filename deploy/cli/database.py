"""Commands that speak to the database themselves: what an operator does before any API answers, or any key exists."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from planq.api.cli.connection import database_settings

if TYPE_CHECKING:
    from planq.shared.platform.database import Database

T = TypeVar("T")


def with_database(use: Callable[[Database], Awaitable[T]], *, statement_seconds: float | None = None) -> T:
    """Run `use` on the database, whose statements take no longer than `statement_seconds`, if given.

    Raises `Misconfigured` or `DatabaseUnavailable` when there is none of ours.
    """
    from planq.shared.kernel.schema_version import require_schema
    from planq.shared.platform.database import Database

    settings = database_settings()
    url = settings.require_database()
    require_schema(url, settings.pooled_schema)

    async def run() -> T:
        async with Database(
            url,
            has_pooler=settings.has_pooler,
            functions=settings.functions_schema,
            max_connections=1,
            statement_seconds=statement_seconds,
        ) as database:
            return await use(database)

    return asyncio.run(run())
