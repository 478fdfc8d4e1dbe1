"""What a finished job leaves in the database, by the number of its steps: table, indexes and TOAST, after VACUUM.

The real engine carries out the jobs in this process; only the model is scripted. Each step depends on the one before,
so that references and counters are part of the figure.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import psycopg

from planq.shared.kernel.limits import Limits
from planq.shared.kernel.states import JobStatus
from planq.shared.platform.database import Database
from planq.worker.tools import tool
from tests.bench.context import Context
from tests.bench.figures import Figure
from tests.support.harness import Harness, ScriptedModel, make_tool
from tests.support.servers import TestPostgres

KB = 1_000.0
JOBS = 50
STEPS = (3, 20)
LIMIT_STEPS, LIMIT_KB = 20, 20.0
"""What a job of so many steps may cost beyond its own data."""

_SIZE = """SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class
WHERE relkind = 'r' AND relnamespace = 'planq'::regnamespace"""


_OWN = """SELECT (
    (SELECT sum(octet_length(input) + octet_length(coalesce(answer, ''))) FROM jobs)
    + (SELECT sum(octet_length(body::text)) FROM plans)
    + (SELECT sum(octet_length(arguments::text) + octet_length(coalesce(output::text, ''))) FROM steps)
    + (SELECT sum(octet_length(coalesce(exchange::text, ''))) FROM model_calls)
)::float8 / (SELECT count(*) FROM jobs)"""

_ROWS = """SELECT
    (SELECT sum(4 + pg_column_size(j.*)) FROM jobs j) + (SELECT sum(4 + pg_column_size(p.*)) FROM plans p)
    + (SELECT sum(4 + pg_column_size(s.*)) FROM steps s) + (SELECT sum(4 + pg_column_size(e.*)) FROM events e)
    + (SELECT sum(4 + pg_column_size(c.*)) FROM model_calls c)"""


def measure(context: Context) -> list[Figure]:
    """Run jobs of each size on an empty database of their own."""
    with tempfile.TemporaryDirectory(prefix="planq-bench-") as folder:
        server = TestPostgres(Path(folder) / "pg")
        server.start()
        try:
            return [figure for steps in STEPS for figure in _figures(server.create_migrated(), steps)]
        finally:
            server.stop()


def _figures(database_url: str, steps: int) -> list[Figure]:
    stored = bytes_per_job(database_url, steps, JOBS)
    beyond = stored - _asked(database_url, _OWN)
    limit = LIMIT_KB if steps == LIMIT_STEPS else None
    return [
        Figure(f"stored per job of {steps} steps", stored / KB, "kB"),
        Figure("  beyond its own data", beyond / KB, "kB", limit),
    ]


def row_bytes(database_url: str, steps: int) -> float:
    """Finish one job on an empty database; return the bytes of its rows, without indexes: exact, and quick."""
    asyncio.run(_finish(database_url, steps, 1))
    return _asked(database_url, _ROWS)


@tool(effect="idempotent")
async def note(text: str, after: Any = None) -> dict[str, str]:
    """Return the text, after whatever it waited for."""
    return {"text": text}


def bytes_per_job(database_url: str, steps: int, jobs: int) -> float:
    """Finish `jobs` jobs of so many steps, twice, and return how much each of the second half has added.

    The first half leaves the space that updates free for reuse, as it is in a database that has run for a while.
    """
    asyncio.run(_finish(database_url, steps, jobs))
    before = size(database_url)
    asyncio.run(_finish(database_url, steps, jobs))
    return (size(database_url) - before) / jobs


async def _finish(database_url: str, steps: int, jobs: int) -> None:
    calls = [("note", {"text": "Twenty letters, say", **_after(index)}) for index in range(steps)]
    limits = Limits(max_tool_steps=steps)
    database = Database(database_url, max_connections=4)
    await database.open()
    try:
        harness = Harness(database, ScriptedModel.planning(*calls), [make_tool(note)])
        await harness.open()
        for _ in range(jobs):
            job, _ = await harness.run("Take these notes, please.", limits=limits)
            if job["status"] != JobStatus.COMPLETED or job["plan_errors"] or job["failed_steps"]:
                raise RuntimeError(f"a job did not complete: {job['error']}")
    finally:
        await database.close()


def _after(index: int) -> dict[str, str]:
    return {"after": f"${index - 1}.output.text"} if index else {}


def size(database_url: str) -> float:
    """Return the bytes of all tables with their indexes and TOAST, once dead rows are gone."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")
    return _asked(database_url, _SIZE)


def _asked(database_url: str, question: str) -> float:
    with psycopg.connect(database_url) as connection:
        row = connection.execute(question.encode()).fetchone()
    assert row is not None
    return float(row[0])
