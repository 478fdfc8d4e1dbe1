"""A database of each of the last releases upgrades to this one, and what was in flight there ends here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import httpx
import psycopg
import pytest

from planq.shared.kernel.schema_version import current
from planq.shared.kernel.store.worker_registry import WorkerRegistry
from planq.shared.platform.database import Database
from planq.shared.schema.migrate import upgrade
from tests.support.release_dumps import SETTINGS, dumps, restore
from tests.support.servers import TestPostgres
from tests.support.stack import Stack
from tests.support.waiting import eventually

PATIENCE = 180.0


@pytest.mark.newest_server
@pytest.mark.parametrize("dump", dumps(), ids=lambda path: path.name)
def test_a_filled_database_upgrades(
    dump: Path, postgres: TestPostgres, valkey_url: str, make_stack: Callable[..., Stack], tmp_path: Path
) -> None:
    url = postgres.create()
    restore(dump, url)
    upgrade(url)
    assert current(url).is_ready

    stack = make_stack(url, valkey_url, env={**SETTINGS, "FAULT_FOLDER": str(tmp_path)})
    stack.start()
    with httpx.Client(base_url=stack.url, timeout=60) as http, psycopg.connect(url, autocommit=True) as database:
        for question in http.get("/elicitations").json()["items"]:
            answer = {"action": "accept", "content": {"text": "this"}}
            http.post(f"/elicitations/{question['id']}", json=answer).raise_for_status()
        paused = "SELECT id FROM jobs WHERE paused_at IS NOT NULL AND finished_at IS NULL"
        for (job_id,) in database.execute(paused).fetchall():
            http.post(f"/jobs/{job_id}/resume").raise_for_status()

        def unfinished() -> list[tuple[object, ...]]:
            # What waits for minutes is due.
            database.execute("UPDATE steps SET wake_at = now() WHERE status = 'waiting' AND wake_at > now()")
            return database.execute("SELECT id FROM jobs WHERE finished_at IS NULL").fetchall()

        eventually(lambda: not unfinished(), PATIENCE, every=0.5, what="every job of the old release has ended")
        statuses = dict(database.execute("SELECT status, count(*) FROM jobs GROUP BY status").fetchall())
        assert statuses["completed"] > statuses["failed"] > 0
        assert database.execute("SELECT status FROM batches").fetchall() == [("completed",)]

    async def broken() -> list[object]:
        async with Database(url, max_connections=1) as database:
            return list(await WorkerRegistry(database, timedelta(seconds=15)).broken_invariants())

    assert asyncio.run(broken()) == []
