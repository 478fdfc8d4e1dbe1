"""An artifact that forks took over stays as long as a job that names it, whichever of them goes first."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from itertools import permutations
from typing import Any
from uuid import UUID

import psycopg
import pytest

from planq.shared.kernel.states import JobStatus
from planq.shared.platform.database import Database, query
from planq.shared.platform.errors import NotFound
from planq.shared.subjects.jobs.store import RequestStore
from planq.shared.subjects.retention.store import Retention
from tests.integration.store.test_retention import HELD, NoPayloads
from tests.support.ended import ended
from tests.support.tiers import some

DAYS = timedelta(days=30)
Connection = psycopg.Connection[Any]


@pytest.fixture
def connection(database_url: str) -> Iterator[Connection]:
    with psycopg.connect(database_url, autocommit=True) as opened:
        yield opened


def remove(database_url: str) -> list[int]:
    """Let retention do its work; the sizes of its batches."""

    async def inside() -> list[int]:
        database = Database(database_url, max_connections=1)
        await database.open()
        try:
            retention = Retention(database, {JobStatus.COMPLETED: DAYS}, NoPayloads())
            return [batch.count async for batch in retention.remove()]
        finally:
            await database.close()

    return asyncio.run(inside())


def family(connection: Connection) -> tuple[UUID, UUID, UUID, UUID]:
    """A job with an artifact, two forks of it, and a fork of the first fork, all of which took its step over."""
    (source,) = ended(connection, days=1, made_days=60, steps=1)
    forks: list[UUID] = []
    for parent in (0, 0, 1):
        origin = [source, *forks][parent]
        (fork,) = ended(connection, days=1, made_days=60, steps=1, forked_from=origin)
        connection.execute("DELETE FROM artifacts WHERE job_id = %s", [fork])
        connection.execute(
            "UPDATE steps SET index = 4, reused_job = %s, reused_index = 0, origin_job = %s, origin_index = 0 "
            "WHERE job_id = %s",
            [origin, source, fork],
        )
        forks.append(fork)
    return source, forks[0], forks[1], forks[2]


def age(connection: Connection, *jobs: UUID) -> None:
    """Let jobs have ended so long ago that they are not kept any more."""
    connection.execute("UPDATE jobs SET finished_at = now() - interval '40 days' WHERE id = ANY (%s)", [list(jobs)])


def owner(database_url: str, source: UUID) -> Any:
    """Return the job and the step that the artifact of `source` belongs to now, None when it is gone."""

    async def inside() -> Any:
        database = Database(database_url, max_connections=1)
        await database.open()
        try:
            row = await RequestStore(database).artifact("default", f"art-{source}")
            return row["job_id"], row["step_index"]
        except NotFound:
            return None
        finally:
            await database.close()

    return asyncio.run(inside())


FIRST_AND_LAST = [(0, 1, 2, 3), (3, 2, 1, 0), (1, 0, 3, 2), (2, 3, 0, 1)]
"""Orders in which each of four jobs goes first once, and each of them last."""


@pytest.mark.parametrize("order", some(permutations(range(4)), *FIRST_AND_LAST))
def test_an_artifact_goes_with_the_last_job_that_names_it(
    connection: Connection, database_url: str, order: tuple[int, ...]
) -> None:
    jobs = family(connection)
    source, left = jobs[0], list(jobs)

    for place in order:
        assert owner(database_url, source) is not None
        age(connection, jobs[place])
        assert remove(database_url) == [1]
        left.remove(jobs[place])
        found = owner(database_url, source)
        if not left:
            assert found is None
        elif source in left:
            assert found == (source, 0)
        else:
            assert found in [(job, 4) for job in left]


def test_jobs_that_go_together_leave_nothing(connection: Connection, database_url: str) -> None:
    jobs = family(connection)
    age(connection, *jobs)

    batches = remove(database_url)

    assert sum(batches) == 4
    assert connection.execute("SELECT count(*) FROM artifacts").fetchone() == (0,)


def test_a_job_waits_when_all_that_name_its_artifact_are_being_removed_by_somebody_else(
    connection: Connection, database_url: str
) -> None:
    source, *forks = family(connection)
    age(connection, source)
    with psycopg.connect(database_url) as other:
        other.execute("SELECT FROM jobs WHERE id = ANY (%s) FOR UPDATE", [forks])
        assert remove(database_url) == []
    assert owner(database_url, source) == (source, 0)

    with psycopg.connect(database_url) as other:
        other.execute("SELECT FROM jobs WHERE id = ANY (%s) FOR UPDATE", [forks[1:]])
        assert remove(database_url) == [1]
    assert owner(database_url, source) == (forks[0], 4)


def test_an_artifact_stays_with_a_job_that_a_new_fork_keeps(connection: Connection, database_url: str) -> None:
    source, *_ = family(connection)
    age(connection, source)
    with psycopg.connect(database_url) as other:
        found = [row[0] for row in other.execute(query("lock_purgeable_jobs"), HELD).fetchall()]
        ended(connection, "queued", days=0, forked_from=source)
        assert other.execute(query("delete_purgeable_jobs"), {"ids": found}).fetchall() == []

    assert (found, owner(database_url, source)) == ([source], (source, 0))
