"""Retention: deletes jobs and deliveries that ended long enough ago, then payloads that nobody refers to any more.

With a job go its plans, steps, events, artifacts and model calls (foreign keys that cascade), and its idempotency key
is free again; an artifact that a fork took over goes to the fork. What is unfinished is never touched, nor what it
still needs: the job that it was forked from, its parent. A batch is kept after its end for as long as a job that
ended like it, and its jobs stay until it is removed. Database time decides. Many may do this at once: a job that
somebody holds is passed over.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from shared.domain.jobs.states import TERMINAL_JOB, JobStatus
from shared.ports import Removed
from shared.store.database import Database, query

PAYLOADS = "payloads"
BATCHES = "batches"
DELIVERIES = "deliveries"

_JOBS = 100
_MOST_STEPS = 2_000
"""A batch takes 0.02 to 0.06 s on the two-core test machine (11/2026), whether its jobs are many or long."""

_PAYLOADS = 100
_DELIVERIES = 1_000


@dataclass(frozen=True, slots=True)
class Purgeable:
    """What is due in one status: how many jobs, and when the oldest of them ended (None when there are none)."""

    jobs: int
    oldest: datetime | None


class Collector(Protocol):
    """What removes large values (`PayloadStore`)."""

    async def collect(self, limit: int) -> int:
        """Remove up to so many that nobody refers to; return how many, 0 when none is left for now."""
        ...


class Retention:
    """The port `RetentionStore`."""

    def __init__(
        self,
        database: Database,
        keep: Mapping[JobStatus, timedelta],
        payloads: Collector,
        deliveries: timedelta | None = None,
    ) -> None:
        """`keep` says how long after their end jobs are kept; a status that is missing is kept for ever.

        `deliveries` says the same of deliveries, None for ever.
        A tenant whose configuration names days of its own has those in their place.
        """
        if unfinished := [status for status in keep if not status.is_terminal]:
            raise ValueError(f"expected statuses of ended jobs, found {', '.join(unfinished)}")
        self._database = database
        self._keep = keep
        self._statuses = [*keep, *sorted(TERMINAL_JOB - keep.keys())]
        self._payloads = payloads
        self._deliveries = deliveries

    async def remove(self) -> AsyncIterator[Removed]:
        for status in self._statuses:
            given = {"status": status.value, "seconds": self._seconds(status)}
            while await self._database.execute("delete_purgeable_batch", **given):
                yield Removed(BATCHES, 1)
        for status in self._statuses:
            while count := await self._delete(status):
                yield Removed(status.value, count)
        while count := await self._delete_deliveries():
            yield Removed(DELIVERIES, count)
        while count := await self._payloads.collect(_PAYLOADS):
            yield Removed(PAYLOADS, count)

    async def _delete_deliveries(self) -> int:
        """Delete one batch of deliveries that ended long enough ago; return how many."""
        if self._deliveries is None:
            return 0
        return await self._database.execute("delete_old_deliveries", before=self._deliveries, limit=_DELIVERIES)

    async def due(self) -> Mapping[JobStatus, Purgeable]:
        """Return what `remove` would delete now; child jobs, which follow their parents, are not counted."""
        found = {}
        for status in self._statuses:
            row = await self._database.fetch_one(
                "count_purgeable_jobs", status=status.value, seconds=self._seconds(status)
            )
            found[status] = Purgeable(row["jobs"], row["oldest"]) if row else Purgeable(0, None)
        return found

    def _seconds(self, status: JobStatus) -> float | None:
        kept = self._keep.get(status)
        return None if kept is None else kept.total_seconds()

    async def _delete(self, status: JobStatus) -> int:
        """Delete one batch of jobs and return how many; 0 when none is due that nobody else holds.

        Several statements in one transaction: the later ones see what was committed before the first one's locks.
        """
        chosen = {
            "status": status.value,
            "seconds": self._seconds(status),
            "limit": _JOBS,
            "most_steps": _MOST_STEPS,
        }
        async with self._database.connection() as connection, connection.transaction():
            locked = await connection.execute(query("lock_purgeable_jobs"), chosen)
            ids = [row["id"] for row in await locked.fetchall()]
            if not ids:
                return 0
            await connection.execute(query("charge_schedules"), {"ids": ids})
            deleted = await connection.execute(query("delete_purgeable_jobs"), {"ids": ids})
            return deleted.rowcount
