"""The invariants find what they name, and nothing in a healthy database."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from shared.domain.plan import Plan
from shared.store.database import Database
from shared.store.fleet import Fleet
from tests.integration.store.test_advance_equals_sql import StoredJob
from tests.support.plans import compiled

DAMAGE = {
    "running_without_lease": "UPDATE steps SET status = 'running' WHERE index = 0",
    "stage_without_cause": "UPDATE jobs SET status = 'responding', wake_at = NULL, stage_worker = NULL",
    "executing_without_cause": "UPDATE steps SET status = 'pending'",
    "step_without_cause": "UPDATE steps SET wake_at = NULL WHERE status = 'ready'",
    "counter_differs": "UPDATE jobs SET open_steps = open_steps + 1",
    "questions_differ": "UPDATE jobs SET open_questions = 1",
    "pending_differs": "UPDATE steps SET pending = 7 WHERE status = 'pending'",
    "ended_with_open_steps": "UPDATE jobs SET status = 'completed'",
    "model_calls_differ": "UPDATE jobs SET model_calls = 9",
    "succeeded_twice": "INSERT INTO events (tenant_id, job_id, kind, data) SELECT 'default', id, 'step_succeeded', "
    '\'{"round": 0, "index": 0}\' FROM jobs, generate_series(1, 2)',
}


@pytest.mark.parametrize("invariant", [None, *DAMAGE], ids=str)
def test_each_invariant_finds_its_damage(database_url: str, invariant: str | None) -> None:
    async def scenario() -> list[Any]:
        calls: list[dict[str, Any]] = [
            {"tool_name": "sim_pure", "arguments": {}},
            {"tool_name": "sim_unsafe", "arguments": {}},
        ]
        database = Database(database_url, max_connections=1)
        await database.open()
        try:
            stored = StoredJob(database, compiled(Plan.model_validate({"calls": calls})))
            await stored.begin()
            if invariant is not None:
                async with database.connection() as connection:
                    await connection.execute(DAMAGE[invariant].encode())
            return list(await Fleet(database, timedelta(seconds=15)).broken_invariants())
        finally:
            await database.close()

    found = {row["invariant"] for row in asyncio.run(scenario())}
    assert found == set() if invariant is None else invariant in found
