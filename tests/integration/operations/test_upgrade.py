"""From schema 0001 with jobs in every state to the newest schema: what was unfinished then finishes now."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine

from shared.domain.limits import Limits
from shared.domain.states import JobStatus
from shared.ports import Wake
from shared.store import migrate, schema
from shared.store.database import Database
from shared.store.ids import new_id
from tests.support.harness import Harness, ScriptedModel, make_tool
from worker.tools import tool

OLD_LIMITS = json.dumps(
    {"max_tool_steps": 10, "max_plan_steps": 10_000, "plan_timeout_seconds": 300.0, "step_timeout_seconds": 300.0}
)
PLAN = {"calls": [{"tool_name": "double", "arguments": {"number": n}} for n in range(6)]}
STEPS = [
    {
        "index": index,
        "kind": "tool",
        "tool_name": "double",
        "lane": "io",
        "effect": "pure",
        "arguments": json.dumps({"number": "$0.output.result" if index == 5 else index}),
        "inputs": [0] if index == 5 else [],
        "depends_on": [0] if index == 5 else [],
        "dependents": [5] if index == 0 else [],
        "retries": 2,
        "timeout_seconds": 60.0,
    }
    for index in range(6)
]


@tool(effect="pure")
async def double(number: float) -> dict[str, float]:
    """Return twice the number."""
    return {"result": number * 2}


class OldRelease:
    """A database as release 0001 left it when its processes were killed: nothing lives that could go on."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._dead = new_id()
        engine = create_engine(migrate.sqlalchemy_url(url))
        with engine.connect() as connection:
            config = Config(attributes={"connection": connection})
            config.set_main_option("script_location", str(Path(migrate.__file__).parent / "migrations"))
            command.upgrade(config, "0001")
            connection.commit()
        engine.dispose()

    def close(self) -> None:
        self._connection.close()

    def execute(self, statement: str, *parameters: Any) -> None:
        self._connection.execute(statement.encode(), parameters)

    def job(self, status: str, **columns: Any) -> UUID:
        """Insert a job with the columns of then."""
        values = {
            "id": new_id(),
            "tenant_id": "default",
            "strategy": "plan",
            "model": "offline",
            "input": "do it",
            "limits": OLD_LIMITS,
            "status": status,
            **columns,
        }
        marks = ", ".join(["%s"] * len(values))
        self.execute(f"INSERT INTO jobs ({', '.join(values)}) VALUES ({marks})", *values.values())
        job_id: UUID = values["id"]
        return job_id

    def planned(self) -> UUID:
        """A job that executes its plan of six steps, five of them ready."""
        job_id = self.job("planning", stage_worker=self._dead, stage_attempt=1)
        self.execute(
            "SELECT planq_accept_plan(%s, 1, 'caller', %s, %s, interval '300 seconds', '[]')",
            job_id,
            json.dumps(PLAN),
            json.dumps(STEPS),
        )
        return job_id

    def every_state(self) -> dict[str, UUID]:
        """Insert a job for every state of jobs, and one whose steps stand in every state of steps."""
        mixed = self.planned()
        claimed = "UPDATE steps SET attempt = 1, worker_id = %s, wake_at = NULL, started_at = now()"
        self.execute(
            f"{claimed}, status = 'running', deadline = now() WHERE job_id = %s AND index = 1", self._dead, mixed
        )
        self.execute(
            f"{claimed}, status = 'running', deadline = now() WHERE job_id = %s AND index = 2", self._dead, mixed
        )
        self.execute("SELECT planq_suspend_step(%s, 0, 2, 1, interval '0', '{\"result\": 4}')", mixed)
        self.execute(f"{claimed}, status = 'running' WHERE job_id = %s AND index = 3", self._dead, mixed)
        self.execute("SELECT planq_finish_step(%s, 0, 3, 1, true, '{\"result\": 6}', NULL, NULL, false, NULL)", mixed)
        failing = self.planned()
        self.execute(f"{claimed}, status = 'running' WHERE job_id = %s AND index = 2", self._dead, failing)
        error = '{"code": "tool_error", "message": "no", "retryable": false, "details": {}}'
        self.execute("SELECT planq_finish_step(%s, 0, 2, 1, false, NULL, %s, NULL, false, NULL)", failing, error)
        responding = self.planned()
        self.execute("UPDATE jobs SET deadline = now() - interval '1 second' WHERE id = %s", responding)
        self.execute("SELECT planq_expire_plan(%s, %s)", responding, error)
        self.execute(
            "UPDATE jobs SET stage_worker = %s, stage_attempt = 2, wake_at = NULL WHERE id = %s",
            self._dead,
            responding,
        )
        return {
            "queued": self.job("queued", wake_at="now"),
            "planning": self.job("planning", stage_worker=self._dead, stage_attempt=1),
            "mixed": mixed,
            "failing": failing,
            "responding": responding,
            "completed": self.job("completed", answer="then", finished_at="now"),
            "failed": self.job("failed", error=error, finished_at="now"),
            "cancelled": self.job("cancelled", cancel_requested_at="now", finished_at="now"),
        }


async def finish(url: str, jobs: Sequence[UUID]) -> tuple[dict[UUID, Any], dict[UUID, Any], list[Any]]:
    """Sweep and work with this release until nothing is left; return jobs, their steps, and broken invariants."""
    database = Database(url, max_connections=3)
    await database.open()
    try:
        harness = Harness(database, ScriptedModel.planning(("double", {"number": 4})), [make_tool(double)])
        await harness.open()
        async with database.connection() as connection:
            # Whoever waited for a wake-up then has waited long enough now.
            await connection.execute("UPDATE jobs SET wake_at = now() WHERE wake_at IS NOT NULL")
            await connection.execute("UPDATE steps SET wake_at = now() WHERE wake_at IS NOT NULL")
        published: list[Wake] = []
        for _ in range(20):
            await harness.sweeper.sweep()
            published = list(harness.published)
            await harness.drain()
            # What was in flight with the worker of then belongs to processes for suspects.
            suspects = (await harness.engine.run_suspects(None)).steps
            if not published and not suspects:
                break
        assert not published, "everything has come to its end"
        found = {job_id: await harness.requests.job("default", job_id) for job_id in jobs}
        broken = list(await harness.fleet.broken_invariants())
    finally:
        await database.close()
    return {key: job for key, (job, _) in found.items()}, {key: steps for key, (_, steps) in found.items()}, broken


def test_jobs_of_every_state_survive_the_upgrade_and_finish(empty_database_url: str) -> None:
    old = OldRelease(empty_database_url)
    named = old.every_state()
    old.close()
    assert migrate.current(empty_database_url) == "0001"

    assert migrate.upgrade(empty_database_url) == ("0001", schema.HEAD)
    jobs, steps, broken = asyncio.run(finish(empty_database_url, list(named.values())))

    assert {name: jobs[job_id]["status"] for name, job_id in named.items()} == {
        **dict.fromkeys(["queued", "planning", "mixed", "failing", "responding"], JobStatus.COMPLETED),
        "completed": JobStatus.COMPLETED,
        "failed": JobStatus.FAILED,
        "cancelled": JobStatus.CANCELLED,
    }
    assert jobs[named["completed"]]["answer"] == "then"
    mixed = steps[named["mixed"]]
    assert {step["status"] for step in mixed} == {"succeeded"}
    assert [step["attempt"] for step in mixed] == [1, 2, 1, 1, 1, 1], "what had succeeded did not run again"
    assert mixed[5]["output"] == {"result": 0}
    failing = [step["status"] for step in steps[named["failing"]]]
    assert failing == ["succeeded", "succeeded", "failed", "skipped", "skipped", "skipped"]
    assert {step["status"] for step in steps[named["responding"]]} == {"failed", "skipped"}
    assert broken == []
    assert Limits.from_json(json.loads(OLD_LIMITS)).job_timeout_seconds == Limits().job_timeout_seconds


def test_statuses_of_this_release_are_all_covered(empty_database_url: str) -> None:
    """A state that a later schema adds cannot be in a database of then, so these are all there were."""
    old = OldRelease(empty_database_url)
    old.every_state()
    with psycopg.connect(empty_database_url) as connection:
        jobs = {row[0] for row in connection.execute("SELECT status FROM jobs").fetchall()}
        steps = {row[0] for row in connection.execute("SELECT status FROM steps").fetchall()}
    old.close()

    assert jobs == set(JobStatus) - {JobStatus.INPUT_REQUIRED}
    assert steps >= {"pending", "ready", "running", "waiting", "succeeded", "failed", "skipped"}
