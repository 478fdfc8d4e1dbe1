"""LISTEN and NOTIFY between processes: hints only. A waiting process polls as well, and fences hold without them.

NOTIFY locks the whole server from the commit until its flush, so commits that carry one wait for each other. A
process therefore notifies after the commit, coalesced: a transaction that only notifies waits for no flush. Rarer
commits carry theirs: a plan that ends its job, a question, children that end with their parent. If the process dies
before it has notified, the waiter finds the end with its next poll (3 s).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from uuid import UUID

import psycopg

from planq.shared.platform.database import KEEPALIVE, Database
from planq.shared.platform.errors import DatabaseUnavailable

ENDED = "planq_ended"
"""Channel: ids of jobs that have ended, or that a person has been asked something for, separated by commas."""

CANCELLED = "planq_cancelled"
"""Channel: ids of jobs that were cancelled, for workers that run their steps. When one gets lost the step runs to its
end, and its result is rejected."""

_IDS_PER_NOTIFY = 200
"""A NOTIFY payload is limited to 8000 bytes; 200 ids of 36 characters and commas need 7400."""

_RECONNECT_SECONDS = 1.0

_log = logging.getLogger("planq.signals")


class Notifier:
    """Sends ids over one channel, coalesced: while one NOTIFY is under way, the next ids gather."""

    def __init__(self, database: Database, channel: str) -> None:
        self._database = database
        self._channel = channel
        self._waiting: list[UUID] = []
        self._sending: asyncio.Task[None] | None = None

    def send(self, job_id: UUID) -> None:
        """Take an id to be sent soon; returns at once. Must be called on the loop that owns the database."""
        self._waiting.append(job_id)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.get_running_loop().create_task(self._drain())

    async def flush(self) -> None:
        """Wait until everything taken so far is sent or given up."""
        while self._sending is not None and not self._sending.done():
            await asyncio.wait([self._sending])

    async def _drain(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:_IDS_PER_NOTIFY], self._waiting[_IDS_PER_NOTIFY:]
            try:
                await self._database.call("pg_notify", self._channel, ",".join(map(str, batch)))
            except DatabaseUnavailable:
                _log.warning("signals_dropped", extra={"channel": self._channel, "count": len(batch)})


async def listen(
    database_url: str, channel: str, heard: Callable[[UUID | None], None], functions: str | None = None
) -> None:
    """Call `heard` for every id announced on a channel, for ever; cancel to stop.

    The connection shows the name of the schema of `functions`, as those of `Database` do.

    `heard(None)` says that anything may have been missed: at the start, and after every lost connection.
    """
    while True:
        with contextlib.suppress(psycopg.Error):
            connection = await psycopg.AsyncConnection.connect(
                database_url, autocommit=True, application_name=f"planq-listen {functions or ''}".strip(), **KEEPALIVE
            )
            async with connection:
                await connection.execute(f"LISTEN {channel}".encode())
                heard(None)
                async for notification in connection.notifies():
                    for text in notification.payload.split(","):
                        with contextlib.suppress(ValueError):
                            heard(UUID(text))
        await asyncio.sleep(_RECONNECT_SECONDS)
