"""A sweep right after the database was away takes back nothing whose outcome only waits to be stored."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from planq.shared.agentic.references.resolution import as_called
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import Pool
from planq.shared.kernel.store.transitions import PostgresJobStore
from planq.shared.kernel.store.worker_registry import WorkerRegistry
from planq.shared.platform.database import Database
from tests.integration.store.test_control import Rows

GRACE = timedelta(seconds=10)


def run(database_url: str, scenario: Callable[[Rows], Awaitable[Any]]) -> Any:
    async def inside() -> Any:
        database = Database(database_url, max_connections=1)
        await database.open()
        try:
            return await scenario(Rows(database))
        finally:
            await database.close()

    return asyncio.run(inside())


def test_a_worker_that_has_just_begun_gives_those_who_live_time_to_beat(database_url: str) -> None:
    """The database was away for a minute, and a new worker is the first to reach it."""

    async def scenario(rows: Rows) -> list[int]:
        now, other = [1000.0], new_id()
        newcomer = WorkerRegistry(rows.database, timedelta(seconds=15), clock=lambda: now[0])
        await rows.worker_registry.register(other, "w", [Pool.IO], [], 1, "1")
        rows.store = PostgresJobStore(rows.database, other, as_called)
        await rows.claim(await rows.executing("unsafe"), 0)
        await rows.run("UPDATE workers SET heartbeat_at = now() - interval '60 s'")
        await newcomer.heartbeat(new_id(), timedelta(0))
        found = [len(await newcomer.lost_steps(10, GRACE))]
        now[0] += 2.5
        return [*found, len(await newcomer.lost_steps(10, GRACE))]

    assert run(database_url, scenario) == [0, 1]


@pytest.mark.parametrize(("away", "found"), [(5, 1), (120, 0)], ids=["never away", "away for two minutes"])
def test_a_deadline_that_passed_during_an_outage_is_enforced_after_its_worker_had_its_say(
    database_url: str, away: int, found: int
) -> None:
    now = [1000.0]

    async def scenario(rows: Rows) -> Any:
        worker = new_id()
        worker_registry = WorkerRegistry(rows.database, timedelta(seconds=15), clock=lambda: now[0])
        await worker_registry.register(worker, "w", [Pool.IO], [], 1, "1")
        await worker_registry.heartbeat(worker, timedelta(0))
        rows.store = PostgresJobStore(rows.database, worker, as_called)
        job = await rows.executing("unsafe")
        await rows.claim(job, 0)
        await rows.run("UPDATE steps SET deadline = now() - interval '60 s'")
        now[0] += away
        await worker_registry.heartbeat(worker, timedelta(0))
        lost = await worker_registry.lost_steps(10, GRACE)
        now[0] += 5
        await worker_registry.heartbeat(worker, timedelta(0))
        now[0] += 11
        await worker_registry.heartbeat(worker, timedelta(0))
        return len(lost), len(await worker_registry.lost_steps(10, GRACE))

    assert run(database_url, scenario) == (found, 1), "a worker that is there and does nothing is found a lease later"
