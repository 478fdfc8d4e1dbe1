"""B11: what one job of B1 leaves and moves: bytes stored, commits, messages, bytes of log.

Jobs run one after the other, so that nothing shares a commit that would not if the job were alone. Commits are the
commit records in PostgreSQL's log (`pg_waldump`): transactions that wrote; those that only read have none. Messages
are the LPUSH commands that Valkey has carried out: kombu makes one for each message in a queue, and nothing else uses
them (kombu 5.7, `transport/redis.py`, `Channel._put`). What planq does without any job, heartbeats and sweeps, is
measured in the same way on an idle planq and taken off. Bytes are those of tables, indexes and TOAST after VACUUM;
autovacuum is off for these tables, as its own commits would count.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

import psycopg
import redis

from planq.deploy.local.postgres import installed_binaries
from tests.bench.context import Context
from tests.bench.figures import Bound, Figure
from tests.bench.storage import KB, size
from tests.bench.submitting import Planq

IDLE_SECONDS, QUICK_IDLE_SECONDS = 10, 5
COMMITS, MESSAGES = 7.0, 2.0
HOPED_COMMITS, HOPED_MESSAGES = 5.0, 1.0

_LSN = "SELECT lsn::text, (lsn - '0/0'::pg_lsn)::float8 FROM pg_current_wal_lsn() AS lsn"
_TABLES = "SELECT format('%I', relname) FROM pg_class WHERE relkind = 'r' AND relnamespace = 'planq'::regnamespace"
_NOTE = (
    "B11: jobs one after the other. Commits: commit records in the log. Messages: those put into queues. "
    "Both without those of an idle planq, to a tenth. Bytes: tables, indexes and TOAST after VACUUM."
)


@dataclass(frozen=True, slots=True)
class TransitionResult:
    """What moved in a stretch of time."""

    seconds: float
    commits: float
    messages: float
    log_bytes: float

    def per_job(self, idle: TransitionResult, jobs: int) -> TransitionResult:
        """Return the part of one of so many jobs, without what an idle planq would have moved meanwhile."""
        part = self.seconds / idle.seconds

        def own(moved: float, always: float) -> float:
            return max(0.0, moved - part * always) / jobs

        return TransitionResult(
            self.seconds / jobs,
            own(self.commits, idle.commits),
            own(self.messages, idle.messages),
            own(self.log_bytes, idle.log_bytes),
        )


def measure(context: Context) -> list[Figure]:
    """Run jobs on a database of their own, between readings."""
    database_url, jobs = context.create_migrated(), context.either(200, 100)
    stop_autovacuum(database_url)
    with context.planq(env={"DATABASE_URL": database_url}) as stack:
        planq = Planq(stack.url)
        # The first half leaves the space that updates free for reuse, as in a database that has run for a while.
        planq.run("B1", size=1, times=jobs)
        before = size(database_url)
        idle = moved(context, lambda: threading.Event().wait(context.either(IDLE_SECONDS, QUICK_IDLE_SECONDS)))
        busy = moved(context, lambda: planq.run("B1", size=1, times=jobs))
        stored = (size(database_url) - before) / jobs
    return figures(busy.per_job(idle, jobs), stored)


def figures(job: TransitionResult, stored: float) -> list[Figure]:
    """Return the rows of what one job moves and what it leaves."""
    return [
        Figure(
            "B11 commits of one job",
            round(job.commits, 1),
            "",
            bounds=[Bound(COMMITS)],
            hopes=[Bound(HOPED_COMMITS)],
            note=_NOTE,
        ),
        Figure(
            "B11 broker messages of one job",
            round(job.messages, 1),
            "",
            bounds=[Bound(MESSAGES)],
            hopes=[Bound(HOPED_MESSAGES)],
            note=_NOTE,
        ),
        Figure("B11 bytes stored of one job", stored / KB, "kB", note=_NOTE),
        Figure("B11 bytes of log of one job", job.log_bytes / KB, "kB", note=_NOTE),
    ]


def moved(context: Context, work: Callable[[], object]) -> TransitionResult:
    """Return what moves on the servers while `work` is done."""
    with (
        psycopg.connect(context.postgres.url, autocommit=True) as database,
        redis.Redis(unix_socket_path=str(context.valkey.socket_path)) as broker,
    ):
        (start, first), pushed, begun = _place(database), _pushed(broker), monotonic()
        work()
        seconds, (end, last) = monotonic() - begun, _place(database)
        return TransitionResult(seconds, _commits(context, start, end), _pushed(broker) - pushed, last - first)


def _place(database: psycopg.Connection) -> tuple[str, float]:
    """Return where the log ends, as PostgreSQL writes it and in bytes."""
    row = database.execute(_LSN.encode()).fetchone()
    assert row is not None
    return row[0], row[1]


def _pushed(broker: redis.Redis) -> int:
    """Return how many messages have been put into queues since the server started."""
    called = broker.info("commandstats")
    assert isinstance(called, dict)
    return int(called.get("cmdstat_lpush", {}).get("calls", 0))


def _commits(context: Context, start: str, end: str) -> int:
    """Count the commit records in a part of the log."""
    log = context.postgres.log.parent / "cluster/pg_wal"
    options = [f"--path={log}", "--rmgr=Transaction", f"--start={start}", f"--end={end}"]
    done = subprocess.run(
        [installed_binaries() / "pg_waldump", *options], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"pg_waldump could not read the log: {done.stderr}")
    return done.stdout.count(" desc: COMMIT ")


def stop_autovacuum(database_url: str) -> None:
    """Keep autovacuum off the tables: its own commits would count."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        for (table,) in connection.execute(_TABLES.encode()).fetchall():
            connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)".encode())
