"""A power cut of the database: its unwritten log is gone, but no answer, and no `unsafe` tool runs twice."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from concurrent.futures import Future
from functools import partial
from typing import Any

import psutil
import psycopg
import pytest

from planq.shared.kernel.states import JobStatus
from planq.shared.platform.database import Database
from tests.faults.conftest import Play, Stage
from tests.faults.scene import MIXED, MIXED_TEXT
from tests.faults.striking import own_postgres, standing_at
from tests.integration.store.test_control import Rows
from tests.support.claiming import claim_stage
from tests.support.servers import TestPostgres
from tests.support.waiting import eventually

COMMITS = {
    "claim": 4,
    "accept_plan": 1,
    "succeed_step": 6,
    "fail_step": 1,
    "suspend_step": 1,
    "fire_timer": 1,
    "end_job": 1,
}
"""The commits of the mixed job, and how often each comes at least."""
ALWAYS = {("claim", 1), ("succeed_step", 1)}
RUNS = int(os.environ.get("POWER_LOSS_RUNS", "1"))


def write_late(server: TestPostgres) -> None:
    """Let only commits that wait for it write the log: the process that writes it for the others stands still."""
    with psycopg.connect(server.server.url, autocommit=True) as connection:
        writers = connection.execute("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'").fetchall()
    for (pid,) in writers:
        os.kill(pid, signal.SIGSTOP)
    assert writers


def cut_power(server: TestPostgres) -> None:
    """Kill every process of PostgreSQL at once: log that only its memory holds is gone."""
    assert server.server.pid is not None
    main = psutil.Process(server.server.pid)
    children = main.children(recursive=True)
    for process in (main, *children):
        process.send_signal(signal.SIGKILL)
    eventually(server.server.has_died, 60, what="PostgreSQL has ended")
    psutil.wait_procs(children, 60)


def has_unwritten_log(connection: psycopg.Connection[Any]) -> bool:
    row = connection.execute("SELECT pg_current_wal_insert_lsn() > pg_current_wal_flush_lsn()").fetchone()
    return bool(row and row[0])


@pytest.mark.parametrize("commit", ["a stage is claimed", "a pure step succeeds"])
def test_a_power_cut_loses_a_commit_that_does_not_wait_for_the_disk(commit: str) -> None:
    """And a plan, and whatever was done before it, is not lost."""

    async def committed(url: str) -> tuple[Any, bool]:
        database = Database(url, max_connections=1)
        await database.open()
        try:
            rows = Rows(database)
            if commit == "a stage is claimed":
                job = await rows.submit()
                claim = await claim_stage(rows.store, job, (JobStatus.QUEUED,))
                assert claim is not None
            else:
                job = await rows.executing("pure", "pure")
                await rows.succeed(job, 0)
            with psycopg.connect(url) as connection:
                return job, has_unwritten_log(connection)
        finally:
            await database.close()

    with own_postgres() as (postgres, url):
        write_late(postgres)
        job, is_late = asyncio.run(committed(url))
        assert is_late
        cut_power(postgres)
        postgres.start()
        with psycopg.connect(url) as connection:
            status = connection.execute("SELECT status, stage_attempt FROM jobs WHERE id = %s", [job]).fetchone()
            steps = connection.execute("SELECT status FROM steps WHERE job_id = %s ORDER BY index", [job]).fetchall()
        if commit == "a stage is claimed":
            assert status == ("queued", 0)
        else:
            assert steps == [("running",), ("ready",)]


def power_cut(commit: str, number: int, stage: Stage) -> None:
    """The power of the database goes right after a commit; its workers live on."""
    with own_postgres() as (postgres, url):
        write_late(postgres)
        with stage(database_url=url, env={"PLANQ_HEARTBEAT_SECONDS": "5"}) as scene:
            struck = standing_at(scene, f"store.{commit}:after@{number}")
            seen = scene.read("SELECT id, answer, output FROM jobs WHERE status = 'completed'")
            cut_power(postgres)
            postgres.start()
            struck.go_on()
            steps = scene.completes(struck.job_id, MIXED_TEXT)
            assert scene.paid()[f"{struck.job_id}/7"] == 1
            assert len(steps) == len(MIXED)
            assert scene.read("SELECT id, answer, output FROM jobs WHERE status = 'completed'")[: len(seen)] == seen
            again = scene.submit(*[("fault_note", {"text": "a"})] * 3)
            scene.completes(again, *["<a>"] * 3)
            scene.sound()


def play_of(commit: str, number: int, run: int) -> object:
    name = f"{commit} {number}, {run}"
    marks = [] if (commit, number) in ALWAYS and run == 0 else [pytest.mark.whole]
    return pytest.param((name, partial(power_cut, commit, number)), id=name, marks=marks)


PLAYS = [
    play_of(commit, number, run)
    for commit, times in COMMITS.items()
    for number, run in itertools.product(range(1, times + 1), range(RUNS))
]


@pytest.mark.parametrize("play", PLAYS)
def test_the_job_and_the_next_one_come_out_right(play: tuple[str, Play], plays: dict[str, Future[None]]) -> None:
    plays[play[0]].result()
