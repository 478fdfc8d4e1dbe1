"""What the run asks the database directly, with a connection a question: the database may have been restarted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import tuple_row

from planq.shared.kernel.store.worker_registry import WorkerRegistry
from planq.shared.platform.database import Database
from tests.chaos.recovery import Happened

_RETRY_SECONDS = 0.05

_RUNNING_ON = """
    SELECT s.job_id::text, s.index, s.attempt FROM steps s JOIN workers w ON w.id = s.worker_id
    WHERE s.status = 'running' AND w.name LIKE %(name)s
    UNION ALL
    SELECT j.id::text, NULL, j.stage_attempt FROM jobs j JOIN workers w ON w.id = j.stage_worker
    WHERE w.name LIKE %(name)s
"""

_RUNNING_KEYS = """
    SELECT s.job_id::text, s.index, s.attempt FROM steps s
    JOIN unnest(%(jobs)s::uuid[], %(indices)s::int[]) AS k (job_id, index) USING (job_id, index)
    WHERE s.status = 'running'
"""

_EVENTS = """
    SELECT sequence, job_id::text, kind, data, extract(epoch FROM created_at)::float8 FROM events
    WHERE job_id = ANY (%(jobs)s::uuid[]) ORDER BY job_id, sequence
"""


class Observer:
    """Questions about the run's database, at `url`."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def ask(self, query: str, patience: float = 60.0, **params: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a query, asking again while the database is away."""
        until = time.monotonic() + patience
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(
                    self._url, autocommit=True, application_name="planq-chaos", row_factory=tuple_row
                ) as connection:
                    cursor = await connection.execute(query.encode(), params)
                    return await cursor.fetchall()
            except psycopg.OperationalError:
                if time.monotonic() > until:
                    raise
            await asyncio.sleep(_RETRY_SECONDS)

    async def running_on(self, pid: int) -> list[tuple[str, int | None, int]]:
        """Return (job, step or None for a stage, attempt) of what runs on the worker process `pid`."""
        rows = await self.ask(_RUNNING_ON, name=f"planq-%-{pid}@%")
        return [(job, index, attempt) for job, index, attempt in rows]

    async def running_among(self, keys: Iterable[str]) -> list[tuple[str, int, int]]:
        """Return (job, step, attempt) of those steps, given by idempotency key, that are running."""
        split = [key.split("/") for key in keys]
        if not split:
            return []
        rows = await self.ask(_RUNNING_KEYS, jobs=[job for job, _ in split], indices=[int(i) for _, i in split])
        return [(job, index, attempt) for job, index, attempt in rows]

    async def live_workers(self, lease: float) -> set[int]:
        """Return the pids of the workers whose lease is alive."""
        fresh = "SELECT name FROM workers WHERE heartbeat_at > now() - make_interval(secs => %(lease)s)"
        rows = await self.ask(fresh, lease=lease)
        return {int(name.split("@")[0].rsplit("-", 1)[1]) for (name,) in rows}

    async def histories(self, jobs: Iterable[str]) -> dict[str, list[Happened]]:
        """Return the events of each job, in order."""
        wanted = list(jobs)
        found: dict[str, list[Happened]] = {job: [] for job in wanted}
        for sequence, job, kind, data, at in await self.ask(_EVENTS, jobs=wanted):
            found[job].append(Happened(sequence, job, kind, data or {}, at))
        return found

    async def count_jobs(self) -> int:
        """Return how many jobs there are."""
        return int((await self.ask("SELECT count(*) FROM jobs"))[0][0])

    async def broken_invariants(self, lease: float) -> Sequence[str]:
        """Return what must never be, as `WorkerRegistry.broken_invariants` finds it."""
        database = Database(self._url, max_connections=1)
        await database.open()
        try:
            rows = await WorkerRegistry(database, timedelta(seconds=lease)).broken_invariants()
        finally:
            await database.close()
        return [f"{row['invariant']} {_place(row['job_id'], row['step_index'])}" for row in rows]


def _place(job: UUID | None, step: int | None) -> str:
    return f"{job}" if step is None else f"{job}/{step}"
