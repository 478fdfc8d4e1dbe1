"""What PostgreSQL takes for a job of B2: by its own clock, and in CPU.

Its own clock is `active_time` of `pg_stat_database`: how long sessions have carried out statements of clients, waits
for a processor, a row or the disk included. A session tells it once a second at most while it works, and the rest
when it has had nothing to do for ten seconds. So who measures a stretch of work waits that long before and after it,
and the little that an idle planq asks meanwhile counts, too.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import psutil
import psycopg

from tests.bench.context import Context
from tests.bench.figures import Figure
from tests.bench.submitting import Planq

MS = 1_000.0
MOST_MS = 2.0
TOLD_SECONDS = 10.5
"""After so long without work a session has told of all that it has done (PostgreSQL's PGSTAT_IDLE_INTERVAL, 10 s)."""

_ACTIVE = "SELECT active_time FROM pg_stat_database WHERE datname = current_database()"


def server_time(context: Context, database_url: str, planq: Planq, jobs: int) -> Figure:
    """Let planq do B2 as often as a figure is measured, and return what one of the jobs takes of PostgreSQL.

    The server must be used by nobody else meanwhile.
    """
    if (server := context.postgres.pid) is None:
        raise RuntimeError("expected a running PostgreSQL, found none")
    threading.Event().wait(TOLD_SECONDS)
    active, (cpu, waits) = active_ms(database_url), scheduled(server)
    planq.run("B2", size=jobs, times=context.repeats)
    cpu, waits = (after - before for after, before in zip(scheduled(server), (cpu, waits), strict=True))
    threading.Event().wait(TOLD_SECONDS)
    active = active_ms(database_url) - active
    planq.cpu_of_jobs.clear()
    times = jobs * context.repeats
    return Figure(
        "B2 PostgreSQL's time of a job, by its own clock",
        active / times,
        "ms",
        MOST_MS,
        limits={"its CPU": MS * cpu / times, "waits for a processor": MS * waits / times},
        note="active_time of pg_stat_database, which most of the waits for a processor are part of; CPU and waits of "
        "all processes of the server, as the kernel counts them",
    )


def active_ms(database_url: str) -> float:
    """Return how long statements were carried out in a database since it was made, as far as sessions have told."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        row = connection.execute(_ACTIVE).fetchone()
    assert row is not None
    return float(row[0])


def scheduled(server: int) -> tuple[float, float]:
    """Return how many seconds a server's living processes had a processor, and were ready without one (schedstat)."""
    ran = waited = 0
    for process in psutil.Process(server).children():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{process.pid}/schedstat").read_text("ascii").split()
            ran, waited = ran + int(fields[0]), waited + int(fields[1])
    return ran / 1e9, waited / 1e9
