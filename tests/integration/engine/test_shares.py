"""What one tenant's wide and slow jobs leave of a process to another's lone job."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from planq.shared.platform.database import Database
from planq.shared.subjects.tenants.config import TenantConfig
from planq.shared.subjects.tenants.directory import TenantStore
from planq.worker.tools import tool
from tests.support.harness import Harness, ScriptedModel, make_tool

SLOTS = 16


class Dripping:
    """A tool whose calls go on until they may end."""

    def __init__(self) -> None:
        self.running = 0
        self.is_full = asyncio.Event()
        self.may_end = asyncio.Event()

    def tool(self) -> Any:
        @tool(name="fetch", effect="read")
        async def fetch(n: int) -> dict[str, int]:
            """Wait for a page that drips."""
            self.running += 1
            if self.running == SLOTS:
                self.is_full.set()
            await self.may_end.wait()
            return {"n": n}

        return make_tool(fetch)


@tool(effect="pure")
async def add(n: int) -> dict[str, int]:
    """Add one."""
    return {"n": n + 1}


def calls(name: str, count: int) -> dict[str, Any]:
    return {"calls": [{"tool_name": name, "arguments": {"n": n}} for n in range(count)]}


@pytest.mark.parametrize("tenant", ["other", "flooding"])
def test_a_lone_job_runs_while_another_tenants_slow_calls_fill_the_process(database_url: str, tenant: str) -> None:
    """It was queued for over 150 s behind 2 × 350 fetches from a host that drips; so was one of the same tenant."""

    async def scenario() -> None:
        database = Database(database_url, max_connections=5)
        await database.open()
        dripping = Dripping()
        harness = Harness(database, ScriptedModel(), [dripping.tool(), make_tool(add)], slots=SLOTS)
        await harness.open()
        for name in ("flooding", "other"):
            await TenantStore(database).create(name, "", TenantConfig())
        for _ in range(2):
            await harness.submit("", plan=calls("fetch", 30), tenant="flooding")
        flood = asyncio.ensure_future(harness.drain())
        async with asyncio.timeout(60):
            await dripping.is_full.wait()
            job_id = await harness.submit("", plan=calls("add", 1), tenant=tenant)
            await harness.dispatcher.run(harness.published.pop())
            job, steps = await harness.requests.job(tenant, job_id)
            assert (job["status"], [step["output"] for step in steps]) == ("completed", [{"n": 1}])
            assert dripping.running == SLOTS, "nobody's slow calls take the reserve"
            dripping.may_end.set()
            await flood
        async with database.connection() as connection:
            rows = await (await connection.execute(b"SELECT id, status, tenant_id FROM jobs")).fetchall()
        ids: set[UUID] = {row["id"] for row in rows if row["status"] != "completed"}
        assert ids == set()
        await database.close()

    asyncio.run(scenario())
