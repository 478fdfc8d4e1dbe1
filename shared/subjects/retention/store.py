"""Retention deletes old ended jobs, messages, deliveries, replaced documents and unused payloads.

A job's plans, steps, events and model calls go with it (a trigger), its artifacts too (a foreign key), and its
idempotency key is free again; a fork keeps the artifacts it took over. Unfinished jobs stay, with the job they were
forked from and their parent. A batch is kept as long as its jobs. The database's time decides. Processes take turns,
and locked jobs are skipped. A pass reads each tenant's old rows once.
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
"""What has an own retention time, in addition to job statuses."""

_JOBS = 100
_MOST_STEPS = 2_000
"""A batch takes 0.02 to 0.06 s, with many or with long jobs."""

MOST_COUNTED = 10_000
"""Higher counts would read as many jobs, for minutes."""

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
    """How many of one kind are due (at most `MOST_COUNTED`), and the oldest job's end."""

    count: int
    oldest: datetime | None = None


@dataclass(frozen=True, slots=True)
class _Batch:
    """The result for some jobs: `last` is None at the end; `kept` had to stay, or had child jobs."""

    last: UUID | None
    removed: int
    kept: int


class Collector(Protocol):
    """Collects large values (`PayloadStore`)."""

    async def collect(self, limit: int) -> int:
        """Remove up to `limit` unreferenced values; return how many, 0 at the end."""
        ...

    async def count(self, most: int) -> int:
        """Count what `collect` would remove, up to `most`."""
        ...


class Retention:
    """Deletes what is due in one database."""

    def __init__(self, database: Database, keep: Mapping[str, timedelta], payloads: Collector) -> None:
        """`keep` maps job statuses and `NAMED` to times; missing ones are for ever. Tenants may differ."""
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
        """Delete a tenant's due jobs, oldest first; repeats while deletions free others."""
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
        """Delete old messages, then empty conversations."""
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
        """Delete old replaced versions of agents and skills that are unused."""
        seconds = self._seconds(VERSIONS)
        for tenant in await self._database.fetch_all("tenants_of_versions", seconds=seconds):
            given = {"tenant_id": tenant["id"], "seconds": seconds, "limit": _VERSIONS}
            while (row := await self._database.fetch_one("delete_old_versions", **given)) and row["removed"]:
                yield RemovalBatch(VERSIONS, row["removed"])

    async def due(self) -> Mapping[str, Purgeable]:
        """Count what `remove` would delete now, without what depends on something else, up to `MOST_COUNTED`."""
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
        """Delete one batch of a tenant's jobs, in several statements: later ones see what others committed.

        One process at a time looks for a batch, or all would read the same jobs.
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
