"""Insights for callers: list, measure and forget them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from planq.shared.platform.database import Database, Row
from planq.shared.subjects.insights.offering import InsightGroup
from planq.shared.subjects.insights.report import Block
from planq.shared.subjects.insights.rules import InsightKind

_MOST_JOBS = 100_000
"""Maximum jobs of a report, the newest."""


@dataclass(frozen=True, slots=True)
class InsightMeasures:
    """Outcomes of jobs with chosen insights, by side in blocks, and by insight."""

    blocks: dict[InsightGroup, list[Block]]
    insights: Sequence[Row]


class InsightStore:
    """The insights of all tenants."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(
        self,
        tenant_id: str,
        *,
        with_retired: bool = False,
        kind: InsightKind | None = None,
        tool: str | None = None,
        below: UUID | None = None,
        limit: int,
    ) -> Sequence[Row]:
        """Return at most `limit` insights, newest first, filtered, older than `below`."""
        given = {"retired": with_retired, "kind": kind and str(kind), "tool": tool, "below": below}
        return await self._database.fetch_page("list_insights", tenant_id=tenant_id, limit=limit, **given)

    async def get(self, tenant_id: str, id: UUID) -> Row:
        """Return an insight with its newest jobs as `sources`; raises `NotFound`."""
        return await self._database.fetch_existing("get_insight", f"insight {id}", tenant_id=tenant_id, id=id)

    async def change(
        self, tenant_id: str, id: UUID, *, is_pinned: bool | None = None, is_retired: bool | None = None
    ) -> None:
        """Pin or retire an insight, or undo that; raises `NotFound`."""
        await self._database.fetch_existing(
            "change_insight", f"insight {id}", tenant_id=tenant_id, id=id, is_pinned=is_pinned, is_retired=is_retired
        )

    async def forget(self, tenant_id: str) -> int:
        """Remove all insights and choices of a tenant; return the count of insights."""
        return int(await self._database.call("planq_forget_insights", tenant_id, None))

    async def of_job(self, tenant_id: str, job_id: UUID) -> Row:
        """Return the choice for a job, `side` None without one; raises `NotFound`."""
        return await self._database.fetch_existing(
            "insights_of_job", f"job {job_id}", tenant_id=tenant_id, job_id=job_id
        )

    async def measured(self, tenant_id: str, days: float) -> InsightMeasures:
        """Return the outcomes of jobs of the last `days`."""
        given = {"tenant_id": tenant_id, "days": days, "limit": _MOST_JOBS}
        blocks: dict[InsightGroup, list[Block]] = {side: [] for side in InsightGroup}
        for row in await self._database.fetch_all("offers_by_side", **given):
            sums = {name: value for name, value in row.items() if name not in ("side", "block")}
            blocks[InsightGroup(row["side"])].append(Block(**sums))
        return InsightMeasures(blocks, await self._database.fetch_all("offers_by_insight", **given))
