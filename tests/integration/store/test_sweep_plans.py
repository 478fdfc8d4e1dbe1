"""A sweep finds ends that nobody has followed up by their indexes, however many PostgreSQL expects to be there."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from planq.shared.platform import database
from tests.integration.store.test_statement_plans import marked, whole_scans
from tests.support.ended import ended

pytestmark = pytest.mark.newest_server

JOBS, OF_EACH = 6_000, 1_500
"""So many jobs, and so many of them children, turns and lines: their ends were followed up, the indexes held them."""

AWAITED_BY = ("parent_job_id", "conversation_id", "batch_id")


@pytest.fixture
def connection(database_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(database_url, autocommit=True) as opened:
        ids = ended(opened, days=1, count=JOBS)
        opened.execute("UPDATE jobs SET wake_at = NULL, deadline = NULL")
        for place, column in enumerate(AWAITED_BY):
            chosen = ids[1 + place * OF_EACH : 1 + (place + 1) * OF_EACH]
            opened.execute(f"UPDATE jobs SET {column} = %s WHERE id = ANY (%s)".encode(), [ids[0], chosen])
            opened.execute("UPDATE jobs SET is_joined = true WHERE id = ANY (%s)", [chosen])
        opened.execute("ANALYZE jobs")
        opened.execute("SET enable_seqscan = on")  # the form of the statement must do by itself
        opened.execute("UPDATE pg_class SET reltuples = reltuples * 100 WHERE relname = 'jobs'")
        yield opened


def due(connection: psycopg.Connection) -> set[str]:
    given = {"lease_seconds": "15", "margin_seconds": "1", "deadline_grace_seconds": "10", "ahead_seconds": "0"}
    rows = connection.execute(marked(LOOK, given).encode()).fetchall()
    return {part for part, *_ in rows} & {"ends", "batches"}


LOOK = database.query("sweep_look").decode()


@pytest.mark.parametrize("options", ["", ", GENERIC_PLAN"], ids=["custom", "generic"])
def test_a_look_of_the_sweep_reads_no_job_that_was_followed_up(connection: psycopg.Connection, options: str) -> None:
    """An EXISTS was planned as a look through all jobs, of each worker, twice a second: two thirds of a core."""
    given = dict.fromkeys(("lease_seconds", "margin_seconds", "deadline_grace_seconds", "ahead_seconds"), "1")

    def scans(statement: str) -> list[str]:
        # Nothing waits here, so the indexes of what does are empty, and read whole.
        return whole_scans(connection, marked(statement, None if options else given), options, waiting=frozenset())

    assert scans(LOOK) == []
    before = LOOK.replace("\n    ORDER BY finished_at LIMIT 1\n", "\n")
    assert scans(before.replace("SELECT true FROM jobs", "SELECT FROM jobs").replace("WHERE (\n", "WHERE EXISTS (\n"))


@pytest.mark.parametrize("column", AWAITED_BY)
def test_what_nobody_followed_up_is_seen(connection: psycopg.Connection, column: str) -> None:
    assert due(connection) == set()
    connection.execute(
        f"""UPDATE jobs SET is_joined = false
            WHERE id = (SELECT id FROM jobs WHERE {column} IS NOT NULL ORDER BY id DESC LIMIT 1)""".encode()
    )
    assert due(connection) == {"ends"}
