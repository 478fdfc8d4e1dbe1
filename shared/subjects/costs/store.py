"""Costs by day, agent, model or tenant, from the tally."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planq.shared.platform.database import Database, Row
from planq.shared.subjects.costs.rules import CostQuery

SUMS = (
    "calls",
    "unpriced_calls",
    "input_tokens",
    "output_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "cost_usd",
)
"""Summed fields of model calls."""


class CostStore:
    """The costs of all tenants; raises `DatabaseUnavailable`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def sums(
        self, tenant_id: str | None, wanted: CostQuery, limit: int
    ) -> tuple[Sequence[Row], Mapping[str, int]]:
        """Return a tenant's (None: all) highest costs, and the sums; the last seconds may be missing."""
        asked = {"by": str(wanted.by), "first": wanted.first, "last": wanted.last, "limit": limit}
        asked |= {"agent": wanted.agent, "model": wanted.model}
        if tenant_id is None:
            rows = await self._database.fetch_page("costs_of_all", **asked)
        else:
            rows = await self._database.fetch_page("costs_of_tenant", tenant_id=tenant_id, **asked)
        return rows, {name: rows[0][f"all_{name}"] if rows else 0 for name in SUMS}
