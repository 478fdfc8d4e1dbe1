"""The tools that are kept for a moment: asked for once, and again when it is over or somebody has to know."""

from __future__ import annotations

import asyncio

import pytest

from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.limits import Limits
from planq.shared.subjects.tenants.config import Tenant, TenantConfig
from planq.shared.subjects.tools import catalogue
from planq.shared.subjects.tools.catalogue import FRESH_SECONDS, Catalogue, ToolsByName

TENANT = "default"


def tool(name: str) -> ToolDefinition:
    return ToolDefinition(name=name, input_schema={"type": "object"})


class Configured:
    """Tenants by their configuration; one that is not named has none."""

    def __init__(self, **configs: TenantConfig) -> None:
        self.configs = configs

    async def of(self, tenant_id: str) -> Tenant:
        return Tenant(tenant_id, "", False, self.configs.get(tenant_id, TenantConfig()), Limits(), Limits())


class Published:
    """Answers differently each time; the first answer may be held back."""

    def __init__(self) -> None:
        self.asked = 0
        self.first = asyncio.Event()
        self.first.set()

    async def ask(self) -> ToolsByName:
        self.asked += 1
        found: ToolsByName = {"calc": tool("calc"), "late": tool(f"late_{self.asked}")}
        if self.asked == 1:
            await self.first.wait()
        return found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, as its only element."""
    now = [1_000.0]
    monkeypatch.setattr(catalogue, "monotonic", lambda: now[0])
    return now


def test_tools_are_asked_for_once_while_they_are_fresh(clock: list[float]) -> None:
    async def run() -> None:
        published = Published()
        kept = Catalogue(published.ask, Configured())
        first = await kept.tools(TENANT)
        clock[0] += FRESH_SECONDS - 0.01
        assert await kept.tools(TENANT) is first
        clock[0] += 0.01
        assert await kept.tools(TENANT) is not first
        assert published.asked == 2

    asyncio.run(run())


def test_who_asks_anew_gets_the_tools_of_now_and_so_do_those_after(clock: list[float]) -> None:
    async def run() -> None:
        kept = Catalogue(Published().ask, Configured())
        first = await kept.tools(TENANT)
        renewed = await kept.renewed(TENANT)
        assert renewed is not first
        assert await kept.tools(TENANT) is renewed

    asyncio.run(run())


def test_those_who_ask_meanwhile_share_the_next_answer(clock: list[float]) -> None:
    async def run() -> None:
        published = Published()
        published.first.clear()
        kept = Catalogue(published.ask, Configured())
        first = asyncio.ensure_future(kept.tools(TENANT))
        await asyncio.sleep(0)
        meanwhile = [asyncio.ensure_future(ask(TENANT)) for ask in (*[kept.tools] * 70, kept.renewed)]
        await asyncio.sleep(0)
        published.first.set()
        later = await asyncio.gather(*meanwhile)
        assert await first is not later[0]
        assert all(found is later[0] for found in later)
        assert await kept.tools(TENANT) is later[0]
        assert published.asked == 2

    asyncio.run(run())


def test_tools_are_asked_for_once_for_all_tenants_and_each_is_offered_its_own(clock: list[float]) -> None:
    async def run() -> None:
        published = Published()
        kept = Catalogue(published.ask, Configured(other=TenantConfig(tools=["c*"])))
        everything = await kept.tools(TENANT)
        narrowed = await kept.tools("other")
        assert (set(everything), set(narrowed)) == ({"calc", "late"}, {"calc"})
        assert narrowed["calc"] is everything["calc"]
        assert await kept.tools("other") is narrowed
        assert published.asked == 1

    asyncio.run(run())


def test_what_an_operator_changes_for_a_tenant_counts_at_once(clock: list[float]) -> None:
    async def run() -> None:
        tenants = Configured(other=TenantConfig(tools=["c*"]))
        kept = Catalogue(Published().ask, tenants)
        await kept.tools("other")
        tenants.configs["other"] = TenantConfig(tools=[])
        assert await kept.tools("other") == {}

    asyncio.run(run())


def test_a_tool_that_has_not_changed_stays_the_same_object(clock: list[float]) -> None:
    published = {"a": "old", "b": "old"}

    async def ask() -> ToolsByName:
        return {
            name: ToolDefinition(name=name, description=text, input_schema={"type": "object"})
            for name, text in published.items()
        }

    async def run() -> None:
        kept = Catalogue(ask, Configured())
        first = await kept.tools(TENANT)
        published["b"] = "new"
        second = await kept.renewed(TENANT)
        assert second["a"] is first["a"]
        assert second["b"].description == "new"
        del published["a"]
        clock[0] += FRESH_SECONDS
        third = await kept.tools(TENANT)
        assert list(third) == ["b"]
        assert third["b"] is second["b"]

    asyncio.run(run())
