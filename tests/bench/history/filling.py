"""Makes a history of patterns: SQL copies every row that they left, with ids, times and tenants of the copy's own.

Whatever tables and columns there are is copied, so a new column needs nothing here. An id of version 7 keeps its kind
and moves with its time, so that ids sort by time as planq's own do; what lies ahead of the patterns moves further
ahead, so that nothing of the history is due. Text within JSON stays as it is, and of a large value a piece is stored.
Indexes that are no constraint are made after the rows, as in a restore.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import psycopg
from psycopg import sql

TENANTS = 200
SPREAD = "90 days"
PARTS = 20
"""So many copies of a conversation make one; a conversation that never ends has `LONG` of a thousand of them."""
LONG = 16
BATCH = 10_000

KEYS = {
    "jobs": "id",
    "plans": "job_id",
    "steps": "job_id",
    "events": "job_id",
    "model_calls": "job_id",
    "artifacts": "job_id",
    "questions": "job_id",
    "messages": "job_id",
    "budgets": "root_job_id",
    "deliveries": "job_id",
    "batches": "batch",
    "batch_lines": "batch",
    "conversations": "conversation",
    "conversation_messages": "conversation",
    "payloads": "payload",
}
"""What is copied, and what says of a row to which family it belongs."""

_KEPT = ("worker_id", "stage_worker", "held_by", "answered_key_id", "endpoint_id", "active_job_id")
"""Columns with the id of something of which there is no copy."""

_SERIAL = {
    ("jobs", "idempotency_key"),
    ("batches", "idempotency_key"),
    ("conversation_messages", "idempotency_key"),
    ("conversation_messages", "source_id"),
    ("conversations", "first_source_id"),
    ("artifacts", "id"),
}
"""Texts that are unique get the copy's number."""

_OF_PARTS = {"sequence": "last_sequence", "turn": "last_turn"}
_COUNTED = ("last_sequence", "last_turn", "messages_in", "messages_out", "input_tokens", "output_tokens")

_OWN_COLUMNS = """SELECT column_name, CASE WHEN data_type = 'ARRAY' THEN udt_name ELSE data_type END
FROM information_schema.columns
WHERE table_schema = 'planq' AND table_name = %s AND is_identity = 'NO' AND is_generated = 'NEVER'
ORDER BY ordinal_position"""

_INDEXES = """SELECT format('%%I', c.relname), pg_get_indexdef(c.oid) FROM pg_index i
JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_class t ON t.oid = i.indrelid
WHERE t.relnamespace = 'planq'::regnamespace AND t.relname = ANY (%s)
  AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conindid = i.indexrelid)"""

_PREPARED = """
CREATE FUNCTION history_id(old uuid, n int, shift interval) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
SELECT (lpad(to_hex(('x' || left(replace(old::text, '-', ''), 12))::bit(48)::bigint
                    - (1000 * extract(epoch FROM shift))::bigint), 12, '0')
        || '7' || left(h, 3) || '8' || substr(h, 4, 15))::uuid FROM md5(old::text || n) AS h
$$;
CREATE TEMPORARY TABLE wheel (slot int, family int, place int, share int);
CREATE TABLE pattern_payloads AS
SELECT DISTINCT p.family, s.payload_hash AS id FROM steps s JOIN pattern_jobs p ON p.id = s.job_id
WHERE s.payload_hash IS NOT NULL;
CREATE PROCEDURE history_commits(n int) LANGUAGE plpgsql AS $$ BEGIN
    FOR i IN 1 .. n LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP;
END $$;
"""

# The oldest copy comes first. `part` of a conversation's `parts` is a copy, the first of which is copy `first`.
_COPIES = """CREATE TEMPORARY TABLE copies AS
WITH numbered AS (
    SELECT n, w.family, n / %(slots)s * w.share + w.place AS ordinal, w.share,
           %(slots)s::float8 / w.share AS every, %(copies)s::bigint * w.share / %(slots)s AS ordinals
    FROM generate_series(%(from)s::int, %(to)s::int) AS n JOIN wheel w ON w.slot = n %% %(slots)s
), threaded AS (
    SELECT *, CASE WHEN ordinal < long THEN 0 ELSE long + (ordinal - long) / %(parts)s * %(parts)s END AS start,
           CASE WHEN ordinal < long THEN long ELSE %(parts)s END AS most
    FROM numbered CROSS JOIN LATERAL (SELECT greatest(1, ordinals * %(long)s / 1000)::int AS long) l
    WHERE EXISTS (SELECT FROM pattern_conversations c WHERE c.family = numbered.family)
), placed AS (
    SELECT n, family, 0 AS part, 1 AS parts, n AS first FROM numbered
    WHERE NOT EXISTS (SELECT FROM pattern_conversations c WHERE c.family = numbered.family)
    UNION ALL
    SELECT n, family, ordinal - start, least(most, greatest(1, ordinals - start))::int, floor(start * every)::int
    FROM threaded
)
SELECT n, p.family, part, parts, first, %(xid)s::bigint + n AS xid,
       %(spread)s::interval * (1 - n::float8 / %(copies)s) AS shift,
       history_id(c.id, first, %(spread)s::interval * (1 - first::float8 / %(copies)s)) AS conversation_id,
       CASE WHEN %(tenants)s = 0 THEN 'default' ELSE 't' || lpad(floor(%(tenants)s * power(
           ('x' || left(md5(first::text), 6))::bit(24)::int / 16777216.0, 3))::text, 3, '0') END AS tenant_id
FROM placed p LEFT JOIN pattern_conversations c ON c.family = p.family
ORDER BY n"""

_COPIED_JOBS = """CREATE TEMPORARY TABLE copied AS
SELECT c.*, p.id AS old_id, history_id(p.id, c.n, c.shift) AS new_id FROM copies c JOIN pattern_jobs p USING (family)
ORDER BY c.n, p.id"""


def fill(database_url: str, shares: Mapping[int, int], jobs: int, *, tenants: int = TENANTS) -> int:
    """Add about so many jobs to a database with patterns; returns the bytes of the tables then.

    `shares` says how often each family comes, as `patterns.make` returns it. Without `tenants` all are of the default
    one. Needs a superuser, and nobody at work in the database.
    """
    with psycopg.connect(database_url, autocommit=True) as connection:
        # The rows that foreign keys name are copied with them; checking millions would take most of the time.
        connection.execute("SET session_replication_role = replica")
        connection.execute("SET work_mem = '256MB'")
        connection.execute("SET jit = off")
        given = {
            "copies": max(1, jobs * sum(shares.values()) // _jobs_of(connection, shares)),
            "slots": sum(shares.values()),
            "spread": SPREAD,
            "parts": PARTS,
            "long": LONG,
            "tenants": tenants,
        }
        _prepare(connection, shares, tenants)
        indexes = connection.execute(_INDEXES, [list(KEYS)]).fetchall()
        for name, _ in indexes:
            connection.execute(f"DROP INDEX {name}".encode())
        statements = _copying(connection)
        # The events of each copy get a transaction of their own, one that has been.
        connection.execute("SET synchronous_commit = off")
        (given["xid"],) = connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchone() or (0,)
        connection.execute("CALL history_commits(%s)", [given["copies"] + 1])
        for first in range(0, given["copies"], BATCH):
            _copy(connection, statements, {**given, "from": first, "to": min(first + BATCH, given["copies"]) - 1})
        connection.execute("SET maintenance_work_mem = '512MB'")
        for _, definition in indexes:
            connection.execute(definition.encode())
        connection.execute("DROP TABLE pattern_jobs, pattern_conversations, pattern_batches, pattern_payloads")
        connection.execute("DROP FUNCTION history_id; DROP PROCEDURE history_commits")
        # Frozen at once: otherwise autovacuum would do it in the middle of a measurement.
        connection.execute("VACUUM (FREEZE, ANALYZE)")
        (size,) = connection.execute("SELECT pg_database_size(current_database())").fetchone() or (0,)
    return int(size)


def _jobs_of(connection: psycopg.Connection, shares: Mapping[int, int]) -> int:
    """Return how many jobs one copy of each family, as often as it comes, has."""
    found = dict(connection.execute("SELECT family, count(*) FROM pattern_jobs GROUP BY family").fetchall())
    return sum(share * found[family] for family, share in shares.items())


def _prepare(connection: psycopg.Connection, shares: Mapping[int, int], tenants: int) -> None:
    connection.execute(_PREPARED)
    families = [family for family, share in shares.items() for _ in range(share)]
    random.Random(0).shuffle(families)
    seen = dict.fromkeys(shares, 0)
    with connection.cursor() as cursor, cursor.copy("COPY wheel FROM STDIN") as rows:
        for slot, family in enumerate(families):
            rows.write_row((slot, family, seen[family], shares[family]))
            seen[family] += 1
    connection.execute("ANALYZE wheel")
    connection.execute(
        "INSERT INTO tenants (id) SELECT 't' || lpad(n::text, 3, '0') FROM generate_series(0, %s - 1) AS n", [tenants]
    )


def _copying(connection: psycopg.Connection) -> list[sql.Composed]:
    """Return the statements that copy the rows of every table, jobs first."""
    return [copying(table, connection.execute(_OWN_COLUMNS, [table]).fetchall()) for table in KEYS]


def _copy(connection: psycopg.Connection, statements: Sequence[sql.Composed], given: Mapping[str, object]) -> None:
    connection.execute(_COPIES, given)
    connection.execute("ANALYZE copies")
    connection.execute(_COPIED_JOBS)
    connection.execute("ANALYZE copied")
    for statement in statements:
        connection.execute(statement)
    connection.execute("DROP TABLE copies, copied")


def copying(table: str, columns: Sequence[tuple[str, str]]) -> sql.Composed:
    """Return the statement that copies a table's rows of the patterns; `columns` are names with their types."""
    key = KEYS[table]
    if key in ("batch", "conversation", "payload"):
        pattern = f"pattern_{key}{'es' if key == 'batch' else 's'}"
        column = {"payload": "hash"}.get(key, "id" if table in ("batches", "conversations") else f"{key}_id")
        source = sql.SQL("copies c JOIN {} p USING (family) JOIN {} t ON t.{} = p.id").format(
            sql.Identifier(pattern), sql.Identifier(table), sql.Identifier(column)
        )
    else:
        source = sql.SQL("copied c JOIN {} t ON t.{} = c.old_id").format(sql.Identifier(table), sql.Identifier(key))
    if table == "conversations":
        source += sql.SQL(" WHERE c.part = 0")
    elif table == "conversation_messages":
        source += sql.SQL(" JOIN conversations o ON o.id = t.conversation_id")
    order = sql.SQL(", t.{}").format(sql.Identifier("id" if table in ("model_calls", "messages") else "sequence"))
    return sql.SQL("INSERT INTO {table} ({names}) SELECT {values} FROM {source} ORDER BY c.n{order}").format(
        table=sql.Identifier(table),
        names=sql.SQL(", ").join(sql.Identifier(name) for name, _ in columns),
        values=sql.SQL(", ").join(_value(table, name, kind) for name, kind in columns),
        source=source,
        order=order if table in ("model_calls", "messages", "events", "conversation_messages") else sql.SQL(""),
    )


def _value(table: str, column: str, kind: str) -> sql.Composable:
    value = sql.SQL("t.{}").format(sql.Identifier(column))
    if column == "tenant_id":
        return sql.SQL("c.tenant_id")
    if column == KEYS[table]:
        return sql.SQL("c.new_id")
    if column == "xid":
        return sql.SQL("c.xid::text::xid8")
    if column == "conversation_id" or (table, column) == ("conversations", "id"):
        return sql.SQL("CASE WHEN {} IS NOT NULL THEN c.conversation_id END").format(value)
    if table == "conversation_messages" and column in _OF_PARTS:
        return value + sql.SQL(" + c.part * o.{}").format(sql.Identifier(_OF_PARTS[column]))
    if table == "conversations" and column in _COUNTED:
        return value + sql.SQL(" * c.parts")
    if (table, column) == ("conversations", "thread"):
        return value + sql.SQL(" || '-' || c.n")
    if (table, column) in _SERIAL:
        return value + sql.SQL(" || '-' || c.n")
    if column == "payload_hash" or (table, column) == ("payloads", "hash"):
        return sql.SQL("sha256({} || int4send(c.n))").format(value)
    if (table, column) == ("payloads", "body"):
        return sql.SQL("substring({} FOR 2000)").format(value)
    if kind == "uuid" and column not in _KEPT:
        return sql.SQL("history_id({}, c.n, c.shift)").format(value)
    if kind == "_uuid":
        return sql.SQL("(SELECT array_agg(history_id(u, c.n, c.shift)) FROM unnest({}) u)").format(value)
    if kind == "timestamp with time zone":
        ahead = "CASE WHEN {0} > now() + interval '3 years' THEN {0} WHEN {0} > now() THEN {0} + interval '300 days'"
        return sql.SQL(f"{ahead} ELSE {{0}} - c.shift END").format(value)
    return value
