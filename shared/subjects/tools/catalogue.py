"""The published tools, and those that a tenant may use, cached for seconds.

API and workers check every plan against them. A plan with a newer tool waits at most that long.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TypeAlias

from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.platform.batching import Batcher
from planq.shared.platform.database import Database
from planq.shared.subjects.tenants.config import TenantConfig, Tenants, narrowed_tools

FRESH_SECONDS = 2.0
_MOST_OFFERS = 10_000

ToolsByName: TypeAlias = Mapping[str, ToolDefinition]


async def list_tools(database: Database) -> ToolsByName:
    """Return all published tools."""
    rows = await database.fetch_all("list_tools")
    definitions = (ToolDefinition.model_validate(row["definition"]) for row in rows)
    return {definition.name: definition for definition in definitions}


class PublishedTools:
    """Lists published tools, and reads definitions only after a change."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: tuple[str, ToolsByName] = "", {}

    async def list(self) -> ToolsByName:
        """Do `list_tools`; the same object while nothing changes."""
        row = await self._database.fetch_one("version_of_tools")
        version = "" if row is None else row["version"]
        if version != self._known[0]:
            # The version comes first: what is published in between is read now, and once more the next time.
            self._known = version, await list_tools(self._database)
        return self._known[1]


class Catalogue:
    """Implements `ToolCatalogue` over `ask`, narrowed by tenant; lives on one event loop."""

    def __init__(self, ask: Callable[[], Awaitable[ToolsByName]], tenants: Tenants) -> None:
        self._ask = ask
        self._asking = Batcher(self._looked, weigh=lambda _: 0)
        self._tenants = tenants
        self._kept: tuple[float, ToolsByName] = 0.0, {}
        self._offered: dict[str, _Offer] = {}

    async def tools(self, tenant_id: str) -> ToolsByName:
        """Return a tenant's tools, at most `FRESH_SECONDS` old; raises `NotFound`."""
        fresh_until, known = self._kept
        if monotonic() >= fresh_until:
            return await self.renewed(tenant_id)
        return await self._of(tenant_id, known)

    async def renewed(self, tenant_id: str) -> ToolsByName:
        return await self._of(tenant_id, await self._asking.do(tenant_id))

    async def _looked(self, asked: Sequence[str]) -> Sequence[ToolsByName]:
        fresh_until = monotonic() + FRESH_SECONDS
        found = _as_before(await self._ask(), self._kept[1])
        self._kept = fresh_until, found
        return [found] * len(asked)

    async def _of(self, tenant_id: str, published: ToolsByName) -> ToolsByName:
        config = (await self._tenants.of(tenant_id)).config
        offer = self._offered.get(tenant_id)
        if offer is None or offer.published is not published or offer.config != config:
            if len(self._offered) >= _MOST_OFFERS:
                self._offered.clear()
            offer = self._offered[tenant_id] = _Offer(published, config, narrowed_tools(config, published))
        return offer.tools


@dataclass(frozen=True, slots=True)
class _Offer:
    """A tenant's tools, and what they were made from."""

    published: ToolsByName
    config: TenantConfig
    tools: ToolsByName


def _as_before(found: ToolsByName, kept: ToolsByName) -> ToolsByName:
    """Return `found` with equal definitions of `kept`: compiled schemas are cached by identity."""
    if found == kept:
        return kept
    return {name: kept[name] if kept.get(name) == definition else definition for name, definition in found.items()}
