"""Retention deletes what ended long enough ago: jobs, messages, deliveries, replaced documents, unused payloads.

With a job go its plans, steps, events and model calls (a trigger) and its artifacts (a foreign key), and its
idempotency key is free again; an artifact that a fork took over goes to the fork. What is unfinished is never
touched, nor what it still needs: the job that it was forked from, its parent. A batch is kept after its end for as
long as a job that ended like it, and its jobs stay until it is removed. Database time decides.

Many may do this at once: they take turns, and a job that somebody holds is passed over. A pass goes through what is
old of each tenant once, so that what has to stay is looked at once, too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

from planq.shared.kernel.states import TERMINAL_JOB, JobStatus, Strategy
from planq.shared.kernel.sweep import RemovalBatch
from planq.shared.platform.database import Database, Row, query

PAYLOADS = "payloads"
BATCHES = "batches"
DELIVERIES = "deliveries"
MESSAGES = "messages"
CONVERSATIONS = "conversations"
VERSIONS = "versions"
NAMED = frozenset({DELIVERIES, CONVERSATIONS, VERSIONS})
"""What is kept for a time of its own, beside jobs in a status."""

_JOBS = 100
_MOST_STEPS = 2_000
"""A batch takes 0.02 to 0.06 s on the two-core test machine (11/2026), whether its jobs are many or long."""

MOST_COUNTED = 10_000
"""A count of more would read as many jobs, for minutes."""

_COUNTS = {
    DELIVERIES: "count_old_deliveries",
    MESSAGES: "count_old_messages",
    CONVERSATIONS: "count_old_conversations",
    VERSIONS: "count_old_versions",
}
_STRATEGIES = [str(strategy) for strategy in Strategy]
_BEFORE_ALL = UUID(int=0)
_PAYLOADS = 100
_DELIVERIES = 1_000
_MESSAGES = 500
_VERSIONS = 500


@dataclass(frozen=True, slots=True)
class Purgeable:
    """How much of one kind is due, and of jobs when the oldest ended (None when there are none).

    `MOST_COUNTED` are that many or more.
    """

    count: int
    oldest: datetime | None = None


@dataclass(frozen=True, slots=True)
class _Batch:
    """What became of some jobs: `last` is the last one that was looked at, None where there are no others behind it.

    `kept` counts those that had to stay, and those that went and have child jobs, which stayed for them.
    """

    last: UUID | None
    removed: int
    kept: int


class Collector(Protocol):
    """What removes large values (`PayloadStore`)."""

    async def collect(self, limit: int) -> int:
        """Remove up to so many that nobody refers to; return how many, 0 when none is left for now."""
        ...

    async def count(self, most: int) -> int:
        """Return how many `collect` would remove, at most so many."""
        ...


class Retention:
    """The port `RetentionStore`."""

    def __init__(self, database: Database, keep: Mapping[str, timedelta], payloads: Collector) -> None:
        """`keep` says how long jobs are kept after their end, by their status, and the rest, by the names `NAMED`.

        What is missing is kept for ever. A tenant whose configuration names days of its own has those in their place.
        """
        if unknown := sorted(keep.keys() - TERMINAL_JOB - NAMED):
            raise ValueError(f"expected statuses of ended jobs, found {', '.join(unknown)}")
        self._database = database
        self._keep = keep
        self._statuses = [
            *(JobStatus(kind) for kind in keep if kind not in NAMED),
            *sorted(TERMINAL_JOB - keep.keys()),
        ]
        self._payloads = payloads

    async def remove(self) -> AsyncIterator[RemovalBatch]:
        for status in self._statuses:
            while await self._database.execute(
                "delete_purgeable_batch", status=status.value, seconds=self._seconds(status)
            ):
                yield RemovalBatch(BATCHES, 1)
        for status in self._statuses:
            for tenant in await self._database.fetch_all("tenants_with_purgeable_jobs", **self._asked(status)):
                async for count in self._delete_all(status, tenant["id"]):
                    yield RemovalBatch(status.value, count)
        async for removed in self._remove_conversations():
            yield removed
        while count := await self._database.execute(
            "delete_old_deliveries", seconds=self._seconds(DELIVERIES), limit=_DELIVERIES
        ):
            yield RemovalBatch(DELIVERIES, count)
        async for removed in self._remove_versions():
            yield removed
        while count := await self._payloads.collect(_PAYLOADS):
            yield RemovalBatch(PAYLOADS, count)

    async def _delete_all(self, status: JobStatus, tenant_id: str) -> AsyncIterator[int]:
        """Delete what is due of a tenant, from the oldest to the newest; yield how many went with each batch.

        What was kept by others that went with it, as its parent or the maker of an artifact, goes in another round.
        """
        is_over = False
        while not is_over:
            last: UUID | None = _BEFORE_ALL
            removed = kept = 0
            while last is not None:
                batch = await self._delete(status, tenant_id, last)
                last, removed, kept = batch.last, removed + batch.removed, kept + batch.kept
                if batch.removed:
                    yield batch.removed
            is_over = not (removed and kept)

    async def _remove_conversations(self) -> AsyncIterator[RemovalBatch]:
        """Delete messages that came long enough ago, then conversations without any."""
        seconds = self._seconds(CONVERSATIONS)
        for tenant in await self._database.fetch_all("tenants_of_conversations", seconds=seconds):
            for kind, statement in ((MESSAGES, "delete_old_messages"), (CONVERSATIONS, "delete_old_conversations")):
                given = {"tenant_id": tenant["id"], "seconds": seconds, "limit": _MESSAGES}
                last: UUID | None = _BEFORE_ALL
                while (row := await self._database.fetch_one(statement, **given, after=last)) is not None:
                    last = row["id"]
                    if row["removed"]:
                        yield RemovalBatch(kind, row["removed"])

    async def _remove_versions(self) -> AsyncIterator[RemovalBatch]:
        """Delete versions of agents and skills that others replaced long enough ago, and that nobody needs."""
        seconds = self._seconds(VERSIONS)
        for tenant in await self._database.fetch_all("tenants_of_versions", seconds=seconds):
            given = {"tenant_id": tenant["id"], "seconds": seconds, "limit": _VERSIONS}
            while (row := await self._database.fetch_one("delete_old_versions", **given)) and row["removed"]:
                yield RemovalBatch(VERSIONS, row["removed"])

    async def due(self) -> Mapping[str, Purgeable]:
        """Return what `remove` would delete now, of each kind that it names, but for what hangs on something else.

        A child job follows its parent, messages their jobs, a conversation its messages: those that wait for that are
        not counted. Of one kind no more than `MOST_COUNTED` are.
        """
        found: dict[str, Purgeable] = {}
        batches = 0
        for status in self._statuses:
            row = await self._count("count_purgeable_jobs", **self._asked(status), after=_BEFORE_ALL)
            found[status] = Purgeable(row["count"], row["oldest"])
            row = await self._count("count_purgeable_batches", status=status.value, seconds=self._seconds(status))
            batches += row["count"]
        found[BATCHES] = Purgeable(min(batches, MOST_COUNTED))
        for kind, statement in _COUNTS.items():
            row = await self._count(statement, seconds=self._seconds(CONVERSATIONS if kind == MESSAGES else kind))
            found[kind] = Purgeable(row["count"])
        return {**found, PAYLOADS: Purgeable(await self._payloads.count(MOST_COUNTED))}

    async def _count(self, statement: str, **given: Any) -> Row:
        return await self._database.fetch_one(statement, **given, most=MOST_COUNTED) or {"count": 0, "oldest": None}

    def _asked(self, status: JobStatus) -> dict[str, Any]:
        return {"status": status.value, "seconds": self._seconds(status), "strategies": _STRATEGIES}

    def _seconds(self, kind: str) -> float | None:
        kept = self._keep.get(kind)
        return None if kept is None else kept.total_seconds()

    async def _delete(self, status: JobStatus, tenant_id: str, after: UUID) -> _Batch:
        """Delete one batch of a tenant's jobs behind one.

        Several statements in one transaction: the later ones see what was committed before
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
            ids = [row["id"] for row in found if row["is_held"]]
            gone = []
            if ids:
                await connection.execute(query("charge_schedules"), {"ids": ids})
                gone = await (await connection.execute(query("delete_purgeable_jobs"), {"ids": ids})).fetchall()
        kept = len(found) - len(gone) + sum(row["has_children"] for row in gone)
        return _Batch(found[-1]["id"] if found and found[0]["has_more"] else None, len(gone), kept)
