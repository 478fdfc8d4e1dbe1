"""What tenants' days cost, by day, agent, model or tenant, as the tally has written it down."""

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
"""What is added up of model calls."""


class CostStore:
    """The costs of all tenants. Every method raises `DatabaseUnavailable`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def sums(
        self, tenant_id: str | None, wanted: CostQuery, limit: int
    ) -> tuple[Sequence[Row], Mapping[str, int]]:
        """Return at most `limit` rows of a tenant's costs, the dearest first, and the sums over all there are.

        None for the tenant asks for all of them. What was used a few seconds ago may be missing: workers add it up.
        """
        asked = {"by": str(wanted.by), "first": wanted.first, "last": wanted.last, "limit": limit}
        asked |= {"agent": wanted.agent, "model": wanted.model}
        if tenant_id is None:
            rows = await self._database.fetch_page("costs_of_all", **asked)
        else:
            rows = await self._database.fetch_page("costs_of_tenant", tenant_id=tenant_id, **asked)
        return rows, {name: rows[0][f"all_{name}"] if rows else 0 for name in SUMS}
