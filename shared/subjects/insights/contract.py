"""Insights as the engine needs them: what fits a job that is to be planned, and a note of what was chosen."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from planq.shared.subjects.insights.offering import Candidate, InsightGroup


@dataclass(frozen=True, slots=True)
class FoundInsights:
    """What fits a job, the best first; `origin` is the request that it goes back to.

    Where something was chosen for it before, that is what fits, and `side` says what became of it.
    """

    origin: UUID
    side: InsightGroup | None
    found: Sequence[Candidate]


class InsightOffers(Protocol):
    """What was learned, for who plans."""

    async def find(self, tenant_id: str, job_id: UUID, text: str, tools: Collection[str]) -> FoundInsights:
        """Return what fits a tenant's job that asks `text` and may call `tools`; raises `DatabaseUnavailable`."""
        ...

    async def note(
        self,
        tenant_id: str,
        job_id: UUID,
        origin: UUID,
        conversation_id: UUID | None,
        side: InsightGroup,
        chosen: Sequence[UUID],
        tokens: int,
    ) -> bool:
        """Note what was chosen for a job; False where something was noted before. Raises `DatabaseUnavailable`."""
        ...
