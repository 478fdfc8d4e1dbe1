"""The benchmark's workloads carried out by a real planq, once each and small: what they do, not how long it takes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import redis

from tests.bench import footprint, lean_ratio
from tests.bench.context import Context
from tests.bench.server_time import active_ms
from tests.bench.submitting import Planq
from tests.support.stack import Stack
from tests.support.waiting import eventually

JOBS = """SELECT steps, count(*) FROM (
    SELECT count(*) AS steps FROM jobs j JOIN steps s ON s.job_id = j.id
    WHERE j.status = 'completed' AND s.status = 'succeeded' GROUP BY j.id
) completed GROUP BY 1 ORDER BY 1"""


@pytest.fixture
def stack(tmp_path: Path, database_url: str, valkey_url: str) -> Iterator[Stack]:
    running = Stack(tmp_path, database_url, valkey_url, env={"PLANQ_TOOLS": "tests.bench.tools"})
    try:
        running.start()
        yield running
    finally:
        running.end()


def test_planq_does_every_workload(stack: Stack, database_url: str) -> None:
    planq = Planq(stack.url)

    seconds = [
        planq.run("B1", size=1, times=2),
        planq.run("B2", size=5, times=1),
        planq.run("B3", size=4, times=1),
        planq.run("B4", size=6, times=1),
        planq.run("B14", size=4, times=1),
        planq.run("B1r", size=1, times=1),
        planq.run("B4r", size=7, times=1),
    ]

    assert [len(runs) for runs in seconds] == [2, 1, 1, 1, 1, 1, 1]
    with psycopg.connect(database_url) as connection:
        found = connection.execute(JOBS).fetchall()
    assert found == [(3, 8), (4, 1), (5, 1), (6, 1), (7, 1)]


def test_the_lean_version_does_the_job_of_b2(tmp_path: Path) -> None:
    with Context(tmp_path) as context, lean_ratio.lean_stack(context) as stack:
        Planq(stack.url).run("B2", size=5, times=1)
        with psycopg.connect(stack.env["DATABASE_URL"]) as connection:
            found = connection.execute("SELECT status, count(*) FROM lean_jobs GROUP BY 1").fetchall()
            steps = connection.execute("SELECT count(*) FROM lean_steps").fetchone()
    assert found == [("completed", 5)]
    assert steps == (15,)


def test_the_time_of_a_statement_is_told_by_the_server(database_url: str) -> None:
    before = active_ms(database_url)
    with psycopg.connect(database_url) as connection:
        connection.execute("SELECT pg_sleep(0.05)")
    eventually(lambda: active_ms(database_url) >= before + 50, what="the session that has ended has told of it")


@pytest.mark.whole
def test_a_planq_finds_no_messages_of_the_one_before(tmp_path: Path) -> None:
    with Context(tmp_path) as context, redis.Redis(unix_socket_path=str(context.valkey.socket_path)) as broker:
        broker.lpush("left", "a wake-up for a job in another database")
        with context.planq(io=1) as stack:
            Planq(stack.url).run("B1", size=1, times=1)
            assert not broker.exists("left")


def test_commits_and_messages_are_counted_exactly(tmp_path: Path) -> None:
    with Context(tmp_path) as context:
        database_url = context.create_database()

        def work() -> None:
            with psycopg.connect(database_url, autocommit=True) as connection:
                connection.execute("CREATE TABLE written (n int)")
                connection.execute("SELECT count(*) FROM written")
                for number in range(5):
                    connection.execute("INSERT INTO written VALUES (%s)", [number])
            with redis.Redis(unix_socket_path=str(context.valkey.socket_path)) as broker:
                broker.lpush("queue", "one")
                broker.lpush("queue", "two")

        moved = footprint.moved(context, work)

    assert (moved.commits, moved.messages) == (6, 2)
    assert moved.log_bytes > 0
