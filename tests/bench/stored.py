"""Fills a database with finished jobs, as many as years of use leave, so that what grows with them can be measured.

Real jobs that planq has carried out are the patterns: SQL copies every row that they left, in whatever tables and
columns there are, with ids of the copy's own and times spread over the past weeks. Ids are those of UUID version 7,
in the order of time as planq's own are. Indexes that are no constraint are made after the rows, as in a restore.
"""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from psycopg import sql

TABLES = ("jobs", "plans", "steps", "events", "model_calls", "artifacts")
"""What a finished job leaves, parents first; `payloads` hold what is too large for a row, and no such job has any."""

SPREAD = "28 days"
"""The copies ended within so long before the patterns: less than jobs are kept, so that retention leaves them."""

BATCH = 50_000

_OWN_COLUMNS = """SELECT column_name, data_type FROM information_schema.columns
WHERE table_schema = 'public' AND table_name = %s AND is_identity = 'NO' AND is_generated = 'NEVER'
ORDER BY ordinal_position"""

_INDEXES = """SELECT format('%%I', c.relname), pg_get_indexdef(c.oid) FROM pg_index i
JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_class t ON t.oid = i.indrelid
WHERE t.relnamespace = 'public'::regnamespace AND t.relname = ANY (%s)
  AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conindid = i.indexrelid)"""

# Copy `n` follows pattern `n` modulo their number; the oldest copy comes first.
_COPIES = """CREATE TEMPORARY TABLE copies AS
SELECT n, old_id, uuidv7(-shift) AS new_id, shift FROM (
    SELECT n, old_id, %(spread)s::interval * (1 - n::float8 / %(jobs)s) AS shift
    FROM generate_series(%(first)s::int, %(last)s::int) AS n
    JOIN (SELECT id AS old_id, row_number() OVER (ORDER BY id) - 1 AS place, count(*) OVER () AS places
          FROM unnest(%(patterns)s::uuid[]) AS id) p ON p.place = n %% p.places
) s ORDER BY n"""


def fill(database_url: str, jobs: int) -> int:
    """Add so many copies of the finished jobs that the database holds; returns the bytes of the tables then.

    Needs a superuser, at least one finished job, and nobody at work in the database.
    """
    with psycopg.connect(database_url, autocommit=True) as connection:
        patterns = [row[0] for row in connection.execute("SELECT id FROM jobs WHERE status = 'completed'")]
        if not patterns:
            raise ValueError("expected a finished job to copy, found none")
        # The rows that foreign keys name are copied with them; checking millions would take most of the time.
        connection.execute("SET session_replication_role = replica")
        indexes = connection.execute(_INDEXES, [list(TABLES)]).fetchall()
        for name, _ in indexes:
            connection.execute(f"DROP INDEX {name}".encode())
        for first in range(0, jobs, BATCH):
            last = min(first + BATCH, jobs) - 1
            given = {"spread": SPREAD, "jobs": jobs, "first": first, "last": last, "patterns": patterns}
            _copy(connection, given)
        connection.execute("SET maintenance_work_mem = '512MB'")
        for _, definition in indexes:
            connection.execute(definition.encode())
        # Frozen at once: otherwise autovacuum would do it in the middle of a measurement.
        connection.execute("VACUUM (FREEZE, ANALYZE)")
        (size,) = connection.execute("SELECT pg_database_size(current_database())").fetchone() or (0,)
    return int(size)


def _copy(connection: psycopg.Connection, given: dict[str, object]) -> None:
    connection.execute(_COPIES, given)
    connection.execute("ANALYZE copies")
    for table in TABLES:
        columns = connection.execute(_OWN_COLUMNS, [table]).fetchall()
        connection.execute(copying(table, columns))
    connection.execute("DROP TABLE copies")


def copying(table: str, columns: Sequence[tuple[str, str]]) -> sql.Composed:
    """Return the statement that copies a table's rows of the patterns; `columns` are names with their types."""
    key = "id" if table == "jobs" else "job_id"
    names = [name for name, _ in columns]
    values = [_value(table, name, kind) for name, kind in columns]
    selected = "SELECT {values} FROM copies c JOIN {table} t ON t.{key} = c.old_id ORDER BY c.n"
    return sql.SQL(f"INSERT INTO {{table}} ({{names}}) {selected}").format(
        table=sql.Identifier(table),
        names=sql.SQL(", ").join(map(sql.Identifier, names)),
        values=sql.SQL(", ").join(values),
        key=sql.Identifier(key),
    )


def _value(table: str, column: str, kind: str) -> sql.Composable:
    if column in ("job_id", "root_job_id") or (table, column) == ("jobs", "id"):
        return sql.SQL("c.new_id")
    if (table, column) == ("artifacts", "id"):
        return sql.SQL("t.id || '-' || c.n")
    value = sql.SQL("t.{}").format(sql.Identifier(column))
    return value + sql.SQL(" - c.shift") if kind == "timestamp with time zone" else value
