"""The invariants find what they name, and nothing in a healthy database."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from typing import Any

import pytest

from shared.domain.plan import Plan
from shared.domain.states import JoinPolicy
from shared.store.database import Database, query
from shared.store.worker_registry import WorkerRegistry
from tests.model.events import StepClaimed, StepDelegated
from tests.support.plans import compiled
from tests.support.stored import StoredJob

DAMAGE = {
    "running_without_lease": "UPDATE steps SET status = 'running' WHERE index = 0",
    "stage_without_cause": "UPDATE jobs SET status = 'responding', wake_at = NULL, stage_worker = NULL",
    "executing_without_cause": "UPDATE steps SET status = 'pending'",
    "stage_waits_in_vain": "UPDATE jobs SET status = 'planning', stage_retry = '{}', "
    "run_at = expires_at + interval '1 s'",
    "stage_held_in_vain": "UPDATE jobs SET stage_worker = id",
    "woken_too_late": "UPDATE steps SET wake_at = now() + interval '1 h' WHERE status = 'ready'",
    "stage_woken_too_late": "UPDATE jobs SET status = 'responding', wake_at = now() + interval '1 h'",
    "without_deadline": "UPDATE jobs SET deadline = NULL",
    "step_without_deadline": "UPDATE steps SET status = 'running' WHERE index = 0",
    "paused_after_its_end": "UPDATE jobs SET status = 'failed', paused_at = now()",
    "halt_differs": "UPDATE jobs SET halt_index = 1",
    "open_after_a_failure": "UPDATE jobs SET halt_index = 0",
    "question_without_wait": "UPDATE steps SET question = '{}'",
    "in_doubt_in_vain": "UPDATE steps SET in_doubt = true",
    "pending_on_nothing": "UPDATE steps SET status = 'pending', pending = 0",
    "pending_for_ever": "UPDATE steps SET status = 'skipped' WHERE index = 0",
    "open_in_another_round": "UPDATE jobs SET round = 1",
    "reused_and_run": "UPDATE steps SET reused_job = job_id",
    "payload_missing": "UPDATE steps SET payload_hash = '\\x00'",
    "artifact_payload_missing": "INSERT INTO artifacts (tenant_id, id, job_id, step_index, tool_name, payload_hash) "
    "SELECT 'default', 'a', id, 0, 'x', '\\x00' FROM jobs",
    "begun_after_success": "INSERT INTO events (tenant_id, job_id, kind, data) SELECT 'default', id, k, "
    "'{\"round\": 0, \"index\": 0}' FROM jobs, unnest(ARRAY['step_succeeded', 'step_started']) AS k",
    "step_without_cause": "UPDATE steps SET wake_at = NULL WHERE status = 'ready'",
    "counter_differs": "UPDATE jobs SET open_steps = open_steps + 1",
    "questions_differ": "UPDATE jobs SET open_questions = 1",
    "pending_differs": "UPDATE steps SET pending = 7 WHERE status = 'pending'",
    "ended_with_open_steps": "UPDATE jobs SET status = 'completed'",
    "model_calls_differ": "UPDATE jobs SET model_calls = 9",
    "usage_differs": "UPDATE jobs SET cost_usd = 0.5",
    "recorded_twice": "INSERT INTO model_calls (tenant_id, job_id, purpose, model, call_id) "
    "SELECT 'default', id, 'plan', 'm', id FROM jobs, generate_series(1, 2)",
    "suspected_too_long": "INSERT INTO suspects (tenant_id, job_id, round, index, attempt, lane, group_id, company, "
    "delays, due_at) SELECT tenant_id, job_id, round, index, attempt, lane, job_id, 1, false, now() - interval '1 h' "
    "FROM steps WHERE status = 'ready'",
    "succeeded_twice": "INSERT INTO events (tenant_id, job_id, kind, data) SELECT 'default', id, 'step_succeeded', "
    '\'{"round": 0, "index": 0}\' FROM jobs, generate_series(1, 2)',
}

FAMILY_DAMAGE = {
    "waiting_for_no_child": "UPDATE jobs SET status = 'completed', is_joined = true, finished_at = now() "
    "WHERE parent_job_id IS NOT NULL",
    "open_children_differ": "UPDATE steps SET open_children = 9 WHERE children IS NOT NULL",
    "too_many_children": "UPDATE steps SET max_parallel = 1 WHERE children IS NOT NULL",
    "child_held_in_vain": "UPDATE steps SET max_parallel = 3 WHERE children IS NOT NULL",
    "child_untold": "UPDATE jobs SET status = 'completed', finished_at = now() - interval '1 h' "
    "WHERE parent_job_id IS NOT NULL",
    "child_without_parent": "UPDATE steps SET status = 'succeeded' WHERE children IS NOT NULL",
    "family_differs": "UPDATE jobs SET depth = 7 WHERE parent_job_id IS NOT NULL",
    "gathered_in_vain": "UPDATE steps SET joined = true WHERE children IS NULL",
}
"""Damage to a job whose first step waits for three child jobs, two of which may be begun."""

SHOWN_AS = {
    "stage_woken_too_late": "woken_too_late",
    "step_without_deadline": "without_deadline",
    "pending_on_nothing": "pending_differs",
    "open_in_another_round": "ended_with_open_steps",
    "artifact_payload_missing": "payload_missing",
}
"""Other damage that the same invariant finds."""


@pytest.mark.parametrize("invariant", [None, *FAMILY_DAMAGE], ids=str)
def test_each_invariant_of_a_family_finds_its_damage(database_url: str, invariant: str | None) -> None:
    async def scenario() -> list[Any]:
        calls: list[dict[str, Any]] = [{"tool_name": "sim_idempotent", "arguments": {}}] * 2
        database = Database(database_url, max_connections=1)
        await database.open()
        try:
            stored = StoredJob(database, compiled(Plan.model_validate({"calls": calls})))
            stored.most = 2
            await stored.begin()
            assert await stored.apply(StepClaimed(), 0)
            assert await stored.apply(StepDelegated(1, 3, JoinPolicy.ALL), 0)
            if invariant is not None:
                async with database.connection() as connection:
                    await connection.execute(FAMILY_DAMAGE[invariant].encode())
            return list(await WorkerRegistry(database, timedelta(seconds=15)).broken_invariants())
        finally:
            await database.close()

    found = {row["invariant"] for row in asyncio.run(scenario())}
    assert found == set() if invariant is None else invariant in found


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
            return list(await WorkerRegistry(database, timedelta(seconds=15)).broken_invariants())
        finally:
            await database.close()

    found = {row["invariant"] for row in asyncio.run(scenario())}
    assert found == set() if invariant is None else SHOWN_AS.get(invariant, invariant) in found


def test_every_invariant_has_its_damage() -> None:
    named = set(re.findall(r"^SELECT '(\w+)'", query("broken_invariants").decode(), re.MULTILINE))
    assert named == {SHOWN_AS.get(damage, damage) for damage in DAMAGE} | set(FAMILY_DAMAGE)
