"""Retention: deletes what ended long enough ago: jobs, messages, deliveries, then payloads that nobody refers to.

With a job go its plans, steps, events, artifacts and model calls (foreign keys that cascade), and its idempotency key
is free again; an artifact that a fork took over goes to the fork. What is unfinished is never touched, nor what it
still needs: the job that it was forked from, its parent. A batch is kept after its end for as long as a job that
ended like it, and its jobs stay until it is removed. Database time decides.

Many may do this at once: they take turns, and a job that somebody holds is passed over. A pass goes through what is
old of each tenant once, so that what has to stay is looked at once, too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

from shared.domain.jobs.states import TERMINAL_JOB, JobStatus, Strategy
from shared.ports import Removed
from shared.store.database import Database, query

PAYLOADS = "payloads"
BATCHES = "batches"
DELIVERIES = "deliveries"
MESSAGES = "messages"
CONVERSATIONS = "conversations"

_JOBS = 100
_MOST_STEPS = 2_000
"""A batch takes 0.02 to 0.06 s on the two-core test machine (11/2026), whether its jobs are many or long."""

MOST_COUNTED = 10_000
"""A count of more would read as many jobs, for minutes."""

_STRATEGIES = [str(strategy) for strategy in Strategy]
_BEFORE_ALL = UUID(int=0)
_PAYLOADS = 100
_DELIVERIES = 1_000
_MESSAGES = 500


@dataclass(frozen=True, slots=True)
class Purgeable:
    """What is due in one status: how many jobs, and when the oldest of these ended (None when there are none).

    `MOST_COUNTED` jobs are that many or more.
    """

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
        conversations: timedelta | None = None,
    ) -> None:
        """`keep` says how long after their end jobs are kept; a status that is missing is kept for ever.

        `deliveries` says the same of deliveries, `conversations` of messages and then of their conversations, None
        for ever.
        A tenant whose configuration names days of its own has those in their place.
        """
        if unfinished := [status for status in keep if not status.is_terminal]:
            raise ValueError(f"expected statuses of ended jobs, found {', '.join(unfinished)}")
        self._database = database
        self._keep = keep
        self._statuses = [*keep, *sorted(TERMINAL_JOB - keep.keys())]
        self._payloads = payloads
        self._deliveries = deliveries
        self._conversations = conversations

    async def remove(self) -> AsyncIterator[Removed]:
        for status in self._statuses:
            given = {"status": status.value, "seconds": self._seconds(status)}
            while await self._database.execute("delete_purgeable_batch", **given):
                yield Removed(BATCHES, 1)
        for status in self._statuses:
            for tenant in await self._database.fetch_all("tenants_with_purgeable_jobs", **self._asked(status)):
                async for count in self._delete_all(status, tenant["id"]):
                    yield Removed(status.value, count)
        async for removed in self._remove_conversations():
            yield removed
        while count := await self._delete_deliveries():
            yield Removed(DELIVERIES, count)
        while count := await self._payloads.collect(_PAYLOADS):
            yield Removed(PAYLOADS, count)

    async def _delete_all(self, status: JobStatus, tenant_id: str) -> AsyncIterator[int]:
        """Delete what is due of a tenant, from the oldest to the newest; yield how many went with each batch.

        What was kept by others that went with it, as the maker of their artifact, goes in another round.
        """
        is_over = False
        while not is_over:
            is_over, last = True, _BEFORE_ALL
            while (removed := await self._delete(status, tenant_id, last)) is not None:
                last, count = removed
                if count:
                    is_over = False
                    yield count

    async def _remove_conversations(self) -> AsyncIterator[Removed]:
        """Delete messages that came long enough ago, then conversations without any."""
        kept = self._conversations
        seconds = None if kept is None else kept.total_seconds()
        for tenant in await self._database.fetch_all("tenants_of_conversations", seconds=seconds):
            for kind, statement in ((MESSAGES, "delete_old_messages"), (CONVERSATIONS, "delete_old_conversations")):
                given = {"tenant_id": tenant["id"], "seconds": seconds, "limit": _MESSAGES}
                last: UUID | None = _BEFORE_ALL
                while (row := await self._database.fetch_one(statement, **given, after=last)) is not None:
                    last = row["id"]
                    if row["removed"]:
                        yield Removed(kind, row["removed"])

    async def _delete_deliveries(self) -> int:
        """Delete one batch of deliveries that ended long enough ago; return how many."""
        if self._deliveries is None:
            return 0
        return await self._database.execute("delete_old_deliveries", before=self._deliveries, limit=_DELIVERIES)

    async def due(self) -> Mapping[JobStatus, Purgeable]:
        """Return what `remove` would delete now; child jobs, which follow their parents, are not counted.

        Of one status no more than `MOST_COUNTED` are.
        """
        found = {}
        for status in self._statuses:
            row = await self._database.fetch_one("count_purgeable_jobs", **self._asked(status), most=MOST_COUNTED)
            found[status] = Purgeable(row["jobs"], row["oldest"]) if row else Purgeable(0, None)
        return found

    def _asked(self, status: JobStatus) -> dict[str, Any]:
        return {"status": status.value, "seconds": self._seconds(status), "strategies": _STRATEGIES}

    def _seconds(self, status: JobStatus) -> float | None:
        kept = self._keep.get(status)
        return None if kept is None else kept.total_seconds()

    async def _delete(self, status: JobStatus, tenant_id: str, after: UUID) -> tuple[UUID, int] | None:
        """Delete one batch of a tenant's jobs behind one; return the last that was looked at, and how many went.

        None when no more is due. Several statements in one transaction: the later ones see what was committed before
        the first one's locks. One process at a time looks for a batch, or all would look at the same jobs.
        """
        chosen = {
            **self._asked(status),
            "tenant_id": tenant_id,
            "after": after,
            "limit": _JOBS,
            "most_steps": _MOST_STEPS,
        }
        async with self._database.connection() as connection, connection.transaction():
            await connection.execute(query("lock_retention"))
            found = await (await connection.execute(query("lock_purgeable_jobs"), chosen)).fetchall()
            if not found:
                return None
            ids = [row["id"] for row in found if row["is_held"]]
            await connection.execute(query("charge_schedules"), {"ids": ids})
            deleted = await connection.execute(query("delete_purgeable_jobs"), {"ids": ids})
            return found[-1]["id"], deleted.rowcount
