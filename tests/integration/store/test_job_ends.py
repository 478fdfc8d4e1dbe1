"""The ends of jobs are counted by their outcomes, each in the commit that ends the job, and none that is undone."""

from __future__ import annotations

from collections import Counter
from typing import Any

import psycopg
import pytest

from planq.shared.kernel.new_ids import new_id
from planq.shared.platform.database import query

INSERT = """
INSERT INTO jobs (id, tenant_id, root_job_id, strategy, status, model, input, limits, error, finished_at, wake_at)
SELECT id, 'default', id, 'plan', %s, 'offline', 'x', '{}', %s, %s, now() FROM (SELECT %s::uuid AS id) AS new
"""
END = "UPDATE jobs SET status = %s, error = %s, finished_at = clock_timestamp() WHERE id = ANY (%s)"
BOOM = '{"code": "tool_error"}'
CUT = '{"code": "answer_incomplete", "message": "\\u0000"}'


def ended(connection: psycopg.Connection[Any]) -> Counter[str]:
    return +Counter(dict(connection.execute(query("count_ended")).fetchall()))


def queued(connection: psycopg.Connection[Any], count: int) -> list[Any]:
    ids = [new_id() for _ in range(count)]
    for job in ids:
        connection.execute(INSERT, ("queued", None, None, job))
    return ids


def test_each_end_counts_once_by_its_outcome(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        jobs = queued(connection, 8)
        assert ended(connection) == {}

        connection.execute(END, ("completed", None, jobs[:3]))
        connection.execute(END, ("completed", BOOM, jobs[3:5]))
        connection.execute(END, ("failed", BOOM, jobs[5:6]))
        connection.execute(END, ("cancelled", None, jobs[6:7]))
        connection.execute(END, ("completed", CUT, jobs[7:]))
        expected = Counter(succeeded=3, partial=2, failed=1, cancelled=1, incomplete=1)
        assert ended(connection) == expected

        connection.execute("UPDATE jobs SET status = 'failed', is_joined = true WHERE status = 'failed'")
        assert ended(connection) == expected, "it had ended before"
        connection.execute("UPDATE jobs SET status = 'queued', finished_at = NULL WHERE status = 'failed'")
        connection.execute(END, ("completed", None, jobs[5:6]))
        assert ended(connection) == expected + Counter(succeeded=1), "a job that was resumed ends anew"
        connection.execute("DELETE FROM jobs")
        assert ended(connection) == expected + Counter(succeeded=1), "a counter never falls"


@pytest.mark.parametrize("undo", ["ROLLBACK", "ROLLBACK TO SAVEPOINT before; COMMIT"])
def test_an_end_that_is_undone_counts_for_nothing(database_url: str, undo: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        jobs = queued(connection, 2)
        connection.execute("BEGIN; SAVEPOINT before")
        connection.execute(END, ("completed", None, jobs))
        connection.execute(undo.encode())
        assert ended(connection) == {}
