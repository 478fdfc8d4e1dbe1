"""The bytes that tenants keep: counted with what is kept, and bounded however many outputs are stored at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from planq.shared.kernel.new_ids import new_id
from planq.shared.platform.database import Database
from planq.shared.platform.errors import StorageFull
from planq.shared.subjects.payloads.objects import open_objects
from planq.shared.subjects.payloads.store import PayloadStore

PREVIEW = b'{"value": "x", "is_whole": false}'
MEGABYTE = 1_000_000
COUNTED = "SELECT planq_stored_bytes(%s) AS bytes"
KEPT = """
SELECT coalesce((SELECT sum(size) FROM payloads WHERE tenant_id = 'default'), 0)
     + coalesce((SELECT sum(octet_length(body::text)) FROM artifacts WHERE tenant_id = 'default'), 0) AS bytes
"""
OLD = "UPDATE payloads SET created_at = now() - interval '2 hours'"
JOB = """
INSERT INTO jobs (id, tenant_id, root_job_id, strategy, status, model, input, limits, finished_at)
SELECT id, 'default', id, 'plan', 'completed', 'offline', 'x', '{}', now() FROM (SELECT %s::uuid AS id) AS new
"""
ARTIFACT = """
INSERT INTO artifacts (tenant_id, id, version, job_id, step_index, tool_name, body)
SELECT 'default', 'a' || n, 1, %s, 0, 't', json_build_object('text', repeat('ü', n)) FROM generate_series(1, 50) n
"""

Play = Callable[[Callable[[Database, PayloadStore], Awaitable[Any]]], Any]


@pytest.fixture(params=["database", "folder"])
def play(request: pytest.FixtureRequest, database_url: str, tmp_path: Path) -> Play:
    """Run a scenario with a store for payloads, in PostgreSQL or in a folder."""
    address = "" if request.param == "database" else f"file://{tmp_path}"

    def run(scenario: Callable[[Database, PayloadStore], Awaitable[Any]]) -> Any:
        async def inside() -> Any:
            async with Database(database_url, max_connections=8) as database:
                return await scenario(database, PayloadStore(database, open_objects(address)))

        return asyncio.run(inside())

    return run


async def sql(database: Database, statement: str, *parameters: Any) -> list[Any]:
    async with database.connection() as connection:
        cursor = await connection.execute(statement.encode(), parameters)
        return list(await cursor.fetchall()) if cursor.description else []


async def counted(database: Database, tenant_id: str = "default") -> int:
    return int((await sql(database, COUNTED, tenant_id))[0]["bytes"])


async def is_exact(database: Database) -> bool:
    return await counted(database) == int((await sql(database, KEPT))[0]["bytes"])


def body(number: int, size: int = MEGABYTE) -> bytes:
    return f"{number:08}".encode().ljust(size, b"x")


async def bound(database: Database, most: int) -> None:
    await sql(database, f"UPDATE tenants SET config = '{{\"max_stored_bytes\": {most}}}' WHERE id = 'default'")


def test_what_is_kept_is_counted_when_it_is_added_and_removed(play: Play) -> None:
    async def scenario(database: Database, payloads: PayloadStore) -> None:
        for number in (1, 2, 2):
            await payloads.put("default", body(number), PREVIEW)
        await payloads.put("other", body(1), PREVIEW)
        assert (await counted(database), await counted(database, "other")) == (2 * MEGABYTE, MEGABYTE)

        job = new_id()
        await sql(database, JOB, job)
        await sql(database, ARTIFACT, job)
        assert await is_exact(database)
        await database.execute("tidy_stored_bytes")
        assert await sql(database, "SELECT 1 FROM stored_byte_changes") == []
        assert await is_exact(database)

        await sql(database, "DELETE FROM jobs WHERE id = %s", job)
        assert await counted(database) == 2 * MEGABYTE, "artifacts go with their job"
        await sql(database, OLD)
        await payloads.collect(100)
        assert (await counted(database), await counted(database, "other")) == (0, 0)
        await database.execute("tidy_stored_bytes")
        assert await is_exact(database)

    play(scenario)


def test_outputs_that_are_stored_at_once_do_not_pass_the_bound_together(play: Play) -> None:
    async def scenario(database: Database, payloads: PayloadStore) -> None:
        await bound(database, 3 * MEGABYTE)
        stored = await asyncio.gather(
            *(payloads.put("default", body(number), PREVIEW) for number in range(8)), return_exceptions=True
        )
        refused = [one for one in stored if isinstance(one, StorageFull)]
        assert len(refused) == 5
        assert refused[0].details["limit"] == 3 * MEGABYTE
        assert await counted(database) == 3 * MEGABYTE
        kept = next(number for number, one in enumerate(stored) if isinstance(one, bytes))
        assert await payloads.put("default", body(kept), PREVIEW), "what is there already is no more"
        assert await payloads.put("other", body(100), PREVIEW), "another tenant has its own"

    play(scenario)


def test_adding_up_beside_commits_loses_none(play: Play) -> None:
    async def scenario(database: Database, payloads: PayloadStore) -> None:
        await asyncio.gather(
            *(payloads.put("default", body(number, 1_000), PREVIEW) for number in range(30)),
            *(database.execute("tidy_stored_bytes") for _ in range(10)),
        )
        assert await counted(database) == 30_000

    play(scenario)
