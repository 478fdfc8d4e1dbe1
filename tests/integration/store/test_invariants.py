"""Invariants: what one row breaks is refused, what several rows break is found; nothing in a healthy database."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from planq.shared.agentic.plan.document import Plan
from planq.shared.kernel import schema_version as schema
from planq.shared.kernel.states import JoinPolicy
from planq.shared.kernel.store.worker_registry import WorkerRegistry
from planq.shared.platform.database import Database, query
from planq.testing.model.events import StepClaimed, StepDelegated, StepSucceeded
from tests.support.batches import admitted, item, stored_batch
from tests.support.conversations import Thread
from tests.support.plans import compiled
from tests.support.stored import StoredJob

PLANNING = "UPDATE jobs SET status = 'planning', open_steps = 0"

DAMAGE = {
    "running_without_lease": "UPDATE steps SET status = 'running', attempt = 1, deadline = now() WHERE index = 0",
    "executing_without_cause": "UPDATE steps SET status = 'pending', pending = 1",
    "stage_waits_in_vain": f"{PLANNING}, wake_at = now(), stage_retry = '{{}}', run_at = expires_at + interval '1 s'",
    "woken_too_late": "UPDATE steps SET wake_at = now() + interval '1 h' WHERE status = 'ready'",
    "stage_woken_too_late": f"{PLANNING}, wake_at = now() + interval '1 h'",
    "halt_differs": "UPDATE jobs SET halt_index = 1",
    "open_after_a_failure": "UPDATE jobs SET halt_index = 0",
    "pending_for_ever": "UPDATE steps SET status = 'skipped', finished_at = now() WHERE index = 0",
    "open_in_another_round": "UPDATE jobs SET round = 1",
    "payload_missing": "UPDATE steps SET payload_hash = '\\x00'",
    "artifact_payload_missing": "INSERT INTO artifacts (tenant_id, id, job_id, step_index, tool_name, payload_hash) "
    "SELECT 'default', 'a', id, 0, 'x', '\\x00' FROM jobs",
    "begun_after_success": "INSERT INTO events (tenant_id, job_id, kind, data) SELECT 'default', id, k, "
    "'{\"round\": 0, \"index\": 0}' FROM jobs, unnest(ARRAY['step_succeeded', 'step_started']) AS k",
    "part_of_no_job": "INSERT INTO events (tenant_id, job_id, kind) VALUES ('default', gen_random_uuid(), 'late')",
    "counter_differs": "UPDATE jobs SET open_steps = open_steps + 1",
    "window_differs": "UPDATE jobs SET places = 1, out_steps = 0, held_steps = 1",
    "held_and_not_counted": "UPDATE steps SET wake_at = NULL WHERE status = 'ready'",
    "questions_differ": "UPDATE jobs SET open_questions = 1",
    "question_open_in_vain": "INSERT INTO questions (id, tenant_id, job_id, root_job_id, round, step_index, "
    "attempt, kind, message) SELECT id, tenant_id, id, id, 0, 0, 1, 'form', 'why?' FROM jobs",
    "question_closed_too_soon": "UPDATE steps SET status = 'waiting', wake_at = now(), question_id = job_id "
    "WHERE index = 0",
    "pending_differs": "UPDATE steps SET pending = 7 WHERE status = 'pending'",
    "ended_with_open_steps": "UPDATE jobs SET status = 'completed', open_steps = 0, finished_at = now()",
    "model_calls_differ": "UPDATE jobs SET model_calls = 9",
    "usage_differs": "UPDATE jobs SET cost_usd = 0.5",
    "recorded_twice": "INSERT INTO model_calls (tenant_id, job_id, purpose, model, call_id) "
    "SELECT 'default', id, 'plan', 'm', id FROM jobs, generate_series(1, 2)",
    "suspected_too_long": "INSERT INTO suspects (tenant_id, job_id, round, index, attempt, pool, group_id, company, "
    "delays, due_at) SELECT tenant_id, job_id, round, index, attempt, pool, job_id, 1, false, now() - interval '3 h' "
    "FROM steps WHERE status = 'ready'",
    "succeeded_twice": "INSERT INTO events (tenant_id, job_id, kind, data) SELECT 'default', id, 'step_succeeded', "
    '\'{"round": 0, "index": 0}\' FROM jobs, generate_series(1, 2)',
}
"""What several rows or the time show, in a job whose first step is ready and whose second one waits for it."""

REFUSED = {
    "stage_with_open_steps": [
        "UPDATE jobs SET status = 'responding', wake_at = now()",
        f"{PLANNING}, wake_at = now(), held_steps = 1",
    ],
    "stage_without_cause": [f"{PLANNING}, wake_at = NULL"],
    "stage_held_in_vain": [
        "UPDATE jobs SET stage_worker = id",
        "UPDATE jobs SET status = 'queued', open_steps = 0, stage_worker = id",
        "UPDATE jobs SET status = 'failed', open_steps = 0, finished_at = now(), stage_worker = id",
    ],
    "without_deadline": [
        "UPDATE jobs SET deadline = NULL",
        f"{PLANNING}, stage_worker = id, deadline = NULL",
        "UPDATE steps SET status = 'running', attempt = 1 WHERE index = 0",
    ],
    "executing_without_steps": ["UPDATE jobs SET open_steps = 0", "UPDATE jobs SET open_steps = -1"],
    "window_differs": [
        "UPDATE jobs SET held_steps = 1",
        "UPDATE jobs SET out_steps = -1",
        "UPDATE jobs SET out_steps = 1, held_steps = -1",
    ],
    "questions_differ": ["UPDATE jobs SET open_questions = -1"],
    "ended_with_open_steps": [
        "UPDATE jobs SET status = 'completed', finished_at = now()",
        "UPDATE jobs SET status = 'failed', open_steps = 0, held_steps = 1, finished_at = now()",
    ],
    "paused_after_its_end": [
        "UPDATE jobs SET status = 'failed', open_steps = 0, finished_at = now(), paused_at = now()"
    ],
    "end_without_time": [
        "UPDATE jobs SET status = 'failed', open_steps = 0",
        "UPDATE jobs SET finished_at = now()",
        "UPDATE steps SET status = 'skipped'",
    ],
    "pending_differs": [
        "UPDATE steps SET pending = 0 WHERE status = 'pending'",
        "UPDATE steps SET pending = 1 WHERE status = 'ready'",
        "UPDATE steps SET pending = 1, status = 'running', attempt = 1, deadline = now()",
    ],
    "step_without_cause": ["UPDATE steps SET status = 'waiting', wake_at = NULL"],
    "running_without_attempt": ["UPDATE steps SET status = 'running', deadline = now() WHERE index = 0"],
    "open_children_differ": [
        "UPDATE steps SET status = 'waiting', wake_at = now(), children = '{}', open_children = 1"
    ],
    "question_without_wait": ["UPDATE steps SET question_id = job_id"],
    "joined_without_children": ["UPDATE steps SET joined = true"],
    "in_doubt_in_vain": ["UPDATE steps SET in_doubt = true"],
    "reused_and_run": ["UPDATE steps SET reused_job = job_id"],
}
"""What one row shows: each of these statements fails."""

FAMILY_DAMAGE = {
    "waiting_for_no_child": "UPDATE jobs SET status = 'completed', is_joined = true, finished_at = now() "
    "WHERE parent_job_id IS NOT NULL",
    "open_children_differ": "UPDATE steps SET open_children = 1 WHERE children IS NOT NULL",
    "too_many_children": "UPDATE steps SET max_parallel = 1 WHERE children IS NOT NULL",
    "child_held_in_vain": "UPDATE steps SET max_parallel = 3 WHERE children IS NOT NULL",
    "end_not_served": "UPDATE jobs SET status = 'completed', finished_at = now() - interval '1 h' "
    "WHERE parent_job_id IS NOT NULL",
    "child_without_parent": "UPDATE steps SET status = 'succeeded', finished_at = now() WHERE children IS NOT NULL",
    "family_differs": "UPDATE jobs SET depth = 7 WHERE parent_job_id IS NOT NULL",
}
"""Damage to a job whose first step waits for three child jobs, two of which may be begun."""

TURN_DAMAGE = {
    "turn_out_of_turn": "UPDATE jobs SET run_at = now() WHERE run_at = planq_never()",
    "turn_held_in_vain": "UPDATE conversations SET active_job_id = NULL",
    "active_turn_differs": "UPDATE jobs SET is_joined = true WHERE run_at < planq_never()",
}
"""Damage to a conversation of two turns, the first of which is active."""

LINE_DAMAGE = {
    "line_differs": "UPDATE jobs SET is_joined = true",
}
"""Damage to the job of a batch's line."""

SHOWN_AS = {
    "stage_woken_too_late": "woken_too_late",
    "open_in_another_round": "ended_with_open_steps",
    "artifact_payload_missing": "payload_missing",
    "held_and_not_counted": "window_differs",
}
"""Other damage that the same invariant finds."""


@pytest.mark.parametrize("invariant", [None, *FAMILY_DAMAGE], ids=str)
def test_each_invariant_of_a_family_finds_its_damage(database_url: str, invariant: str | None) -> None:
    async def scenario(database: Database) -> list[Any]:
        calls: list[dict[str, Any]] = [{"tool_name": "sim_idempotent", "arguments": {}}] * 2
        stored = StoredJob(database, compiled(Plan.model_validate({"calls": calls})))
        stored.most = 2
        await stored.begin()
        assert await stored.apply(StepClaimed(), 0)
        assert await stored.apply(StepDelegated(1, 3, JoinPolicy.ALL), 0)
        if invariant is not None:
            await run(database, FAMILY_DAMAGE[invariant])
        return list(await WorkerRegistry(database, timedelta(seconds=15)).broken_invariants())

    found = {row["invariant"] for row in play(database_url, scenario)}
    assert found == set() if invariant is None else invariant in found


@pytest.mark.parametrize("invariant", [None, *TURN_DAMAGE], ids=str)
def test_each_invariant_of_turns_finds_its_damage(database_url: str, invariant: str | None) -> None:
    async def scenario(database: Database) -> list[Any]:
        for text in ("one", "two"):
            await Thread(database).says(text)
        if invariant is not None:
            await run(database, TURN_DAMAGE[invariant])
        return list(await WorkerRegistry(database, timedelta(seconds=15)).broken_invariants())

    found = {row["invariant"] for row in play(database_url, scenario)}
    assert found == set() if invariant is None else invariant in found


@pytest.mark.parametrize("invariant", [None, *LINE_DAMAGE], ids=str)
def test_each_invariant_of_lines_finds_its_damage(database_url: str, invariant: str | None) -> None:
    async def scenario(database: Database) -> list[Any]:
        with psycopg.connect(database_url, autocommit=True) as connection:
            stored_batch(connection, [item("a")])
            assert admitted(connection)
        if invariant is not None:
            await run(database, LINE_DAMAGE[invariant])
        return list(await WorkerRegistry(database, timedelta(seconds=15)).broken_invariants())

    found = {row["invariant"] for row in play(database_url, scenario)}
    assert found == set() if invariant is None else invariant in found


CALLS: Sequence[dict[str, Any]] = [
    {"tool_name": "sim_pure", "arguments": {}},
    {"tool_name": "sim_unsafe", "arguments": {}},
]


@pytest.mark.parametrize("invariant", [None, *DAMAGE], ids=str)
def test_each_invariant_finds_its_damage(database_url: str, invariant: str | None) -> None:
    async def scenario(database: Database) -> list[Any]:
        await begun(database)
        if invariant is not None:
            await run(database, DAMAGE[invariant])
        return list(await WorkerRegistry(database, timedelta(seconds=15)).broken_invariants())

    found = {row["invariant"] for row in play(database_url, scenario)}
    assert found == set() if invariant is None else SHOWN_AS.get(invariant, invariant) in found


def test_every_invariant_has_its_damage() -> None:
    named = set(re.findall(r"^SELECT '(\w+)'", query("broken_invariants").decode(), re.MULTILINE))
    assert named == {SHOWN_AS.get(damage, damage) for damage in DAMAGE} | {*FAMILY_DAMAGE, *LINE_DAMAGE, *TURN_DAMAGE}


def test_what_breaks_an_invariant_is_refused_by_its_name(database_url: str) -> None:
    async def scenario(database: Database) -> None:
        await begun(database)
        for name, statements in REFUSED.items():
            for statement in statements:
                with pytest.raises(psycopg.errors.AssertFailure, match=f"^{name}\n"):
                    await run(database, statement)

    play(database_url, scenario)


def test_every_assertion_has_what_it_refuses() -> None:
    (file,) = [text for text in schema.definitions() if text.startswith("-- Invariants")]
    assert set(re.findall(r"'(\w+)';$", file, re.MULTILINE)) == set(REFUSED)


def test_a_transition_that_would_break_an_invariant_stores_nothing(database_url: str) -> None:
    """A counter that a defect has left too low: the end of a step says so, and nothing of that end is stored."""

    async def scenario(database: Database) -> tuple[list[Any], list[Any]]:
        stored = await begun(database)
        assert await stored.apply(StepClaimed(), 0)
        await run(database, "SET session_replication_role = replica")  # no trigger is asked
        await run(database, "UPDATE jobs SET open_steps = 0")
        await run(database, "SET session_replication_role = DEFAULT")
        everything = (
            "SELECT to_json(j) AS row FROM jobs j UNION ALL SELECT to_json(s) FROM steps s "
            "UNION ALL SELECT to_json(e) FROM events e"
        )
        before = await run(database, everything)
        with pytest.raises(psycopg.errors.AssertFailure, match="executing_without_steps"):
            await stored.apply(StepSucceeded(1), 0)
        return before, await run(database, everything)

    before, after = play(database_url, scenario)
    assert after == before


def play(database_url: str, scenario: Callable[[Database], Awaitable[Any]]) -> Any:
    async def inside() -> Any:
        database = Database(database_url, max_connections=1)
        await database.open()
        try:
            return await scenario(database)
        finally:
            await database.close()

    return asyncio.run(inside())


async def begun(database: Database) -> StoredJob:
    stored = StoredJob(database, compiled(Plan.model_validate({"calls": CALLS})))
    await stored.begin()
    return stored


async def run(database: Database, statement: str) -> list[Any]:
    async with database.connection() as connection:
        cursor = await connection.execute(statement.encode())
        return await cursor.fetchall() if cursor.description else []
