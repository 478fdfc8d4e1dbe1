"""The published tools of each tenant: read from the database, and kept for a moment.

Every plan is checked against them, by the API when it is submitted and by a worker when it is accepted; both would
else ask for all of them each time. A plan over a newer tool waits at most as long as they are kept.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from typing import TypeAlias

from shared.domain.tools.definition import ToolDefinition
from shared.store.database import Database

FRESH_SECONDS = 2.0

ToolsByName: TypeAlias = Mapping[str, ToolDefinition]
"""By name."""


async def list_tools(database: Database, tenant_id: str) -> ToolsByName:
    """Return the tools that workers have published for a tenant."""
    rows = await database.fetch_all("list_tools", tenant_id=tenant_id)
    definitions = (ToolDefinition.model_validate(row["definition"]) for row in rows)
    return {definition.name: definition for definition in definitions}


class Catalogue:
    """What `ask` returns for a tenant; lives on one event loop."""

    def __init__(self, ask: Callable[[str], Awaitable[ToolsByName]]) -> None:
        self._ask = ask
        self._kept: dict[str, tuple[float, ToolsByName]] = {}

    async def tools(self, tenant_id: str) -> ToolsByName:
        """Return the tools as they are, or were at most `FRESH_SECONDS` ago."""
        kept = self._kept.get(tenant_id)
        if kept is None or monotonic() >= kept[0]:
            return await self.renewed(tenant_id)
        return kept[1]

    async def renewed(self, tenant_id: str) -> ToolsByName:
        """Return the tools as they are."""
        fresh_until = monotonic() + FRESH_SECONDS
        found = await self._ask(tenant_id)
        kept = self._kept.get(tenant_id)
        if kept is not None:
            found = _as_before(found, kept[1])
        # Of two that ask at once the one that began later knows better.
        if kept is None or fresh_until >= kept[0]:
            self._kept[tenant_id] = fresh_until, found
        return found


def _as_before(found: ToolsByName, kept: ToolsByName) -> ToolsByName:
    """Return `found` with the definitions of `kept` where they are equal.

    What has been made of a schema is found by its identity (`shared.domain.schema.schemas.compile_schema`): read anew
    every two seconds, the same tools would fill that memory with copies, 1800 an hour for each schema.
    """
    return {name: kept[name] if kept.get(name) == definition else definition for name, definition in found.items()}
