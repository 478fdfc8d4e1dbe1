"""How PostgreSQL finds rows once there are many: by an index, in every statement, whatever its parameters are.

A small history of all kinds of jobs is there, and its statistics say that it is a long one. Every named statement is
planned as one that is kept for all parameters; then planq runs on it, and nothing of it reads a table that grows from
one end to the other, in SQL functions neither.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

from planq.deploy.local.valkey import EmbeddedValkey
from planq.shared.platform import database
from tests.bench.history import filling, patterns
from tests.support.selects import select_texts
from tests.support.servers import TestPostgres
from tests.support.stack import Stack

pytestmark = pytest.mark.newest_server

JOBS = 4_000
LONGER = 100

GROWING = filling.KEYS.keys() - {"budgets", "messages"}
"""What grows with the jobs; the rest of it, which few jobs have, is too small here to be told by a plan."""

WAITING = frozenset({"ix_steps_wake_at", "ix_jobs_wake_at", "ix_jobs_expires_at", "ix_jobs_deadline"})
"""Indexes of what waits, often for days: of these, too, a statement reads only what its time has come for."""

WHOLE = {
    "broken_invariants": "looks at everything, when an operator asks (`planq doctor --invariants`)",
}
"""Statements that may read a table from one end to the other, with the reason."""

COUNTING = {
    "count_unfinished": "counts for `/metrics` all that is unfinished, in indexes of nothing else",
}
"""Statements that may read an index of what waits from one end to the other, with the reason."""

FILTERED = {
    "select_jobs": ("statuses", "strategies", "roots", "message_flow"),
}
"""Statements that are planned anew for the filters that are given, and these."""

_ID = "ffffffff-ffff-7fff-bfff-ffffffffffff"
_GIVEN: Mapping[str, str] = {
    "tenant_id": "'t000'",
    "limit": "50",
    "after": "1",
    "below": f"'{_ID}'",
    "beyond": f"'{_ID}'",
    "oldest": "true",
    "statuses": "'{failed}'",
    "strategies": "'{loop}'",
    "roots": "true",
    "message_flow": "true",
    "status": "'failed'",
    "id": f"'{_ID}'",
    "job_id": f"'{_ID}'",
    "conversation_id": f"'{_ID}'",
    "endpoint_id": f"'{_ID}'",
    "channel": "'web'",
    "thread": "'none'",
}
_GIVEN_TO = {"list_conversation_messages": {"below": "9"}}
_NOT_GIVEN = {"roots": "false", "message_flow": "false", "oldest": "false"}


@pytest.fixture(scope="module")
def history(
    postgres: TestPostgres, valkey: EmbeddedValkey, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A database with a history whose statistics are those of one that is a hundred times as long."""
    url = postgres.create_migrated()
    with running(url, valkey, tmp_path_factory.mktemp("patterns")) as stack:
        shares = patterns.make(stack, url)
    filling.fill(url, shares, JOBS)
    with psycopg.connect(url, autocommit=True) as connection:
        # planq's sessions have it off. The form of a statement that is explained here must do by itself.
        connection.execute(f'ALTER DATABASE "{connection.info.dbname}" SET enable_seqscan = on'.encode())
        # So many rows are expected on each page: to read a table is as dear then as in a long history.
        connection.execute(
            """UPDATE pg_class SET reltuples = reltuples * %s
               WHERE relnamespace = 'planq'::regnamespace AND reltuples > 0""",
            [LONGER],
        )
    yield url
    postgres.drop(url)


@contextmanager
def running(url: str, valkey: EmbeddedValkey, folder: Path) -> Iterator[Stack]:
    """Run planq on a database."""
    with redis.Redis(unix_socket_path=str(valkey.socket_path)) as broker:
        broker.flushall()
    stack = Stack(folder, url, valkey.url, env=patterns.ENV)
    try:
        stack.start()
        yield stack
    finally:
        stack.end()


def marked(text: str, given: Mapping[str, str] | None = None) -> str:
    """Return a named statement with numbers for its parameters, or with given values, null for the rest."""
    names: list[str] = []

    def mark(found: re.Match[str]) -> str:
        if found[0] == "%%":
            return "%"
        if given is not None:
            return given.get(found[1], "NULL")
        if found[1] not in names:
            names.append(found[1])
        return f"${names.index(found[1]) + 1}"

    return re.sub(r"%\((\w+)\)s|%%", mark, text)


def whole_scans(
    connection: psycopg.Connection, statement: str, options: str = "", *, waiting: Set[str] = WAITING
) -> list[str]:
    """Return what a statement reads from one end to the other, of tables that grow and of indexes of what waits."""
    row = connection.execute(f"EXPLAIN (FORMAT JSON{options}) {statement}".encode()).fetchone()
    assert row is not None
    partial = {
        name
        for (name,) in connection.execute(
            "SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE i.indpred IS NOT NULL"
        )
    }
    return [
        f"{node['Node Type']} of {node.get('Relation Name', node.get('Index Name'))}"
        for node in nodes(row[0][0]["Plan"])
        if (node.get("Index Name") in waiting and "Index Cond" not in node)
        or (
            node.get("Relation Name") in GROWING
            and (
                node["Node Type"] == "Seq Scan"
                or ("Index Name" in node and "Index Cond" not in node and node["Index Name"] not in partial)
            )
        )
    ]


def nodes(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield all nodes of a plan."""
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes(part)


def test_no_statement_reads_a_table_that_grows(history: str) -> None:
    found = {}
    with psycopg.connect(history, autocommit=True) as connection:
        for name, statement in database.QUERIES.items():
            if name not in WHOLE and name not in FILTERED:
                scans = whole_scans(connection, marked(statement.decode()), ", GENERIC_PLAN")
                found[name] = [scan for scan in scans if name not in COUNTING or "Index Only Scan" not in scan]
        for name, texts in select_texts().items():
            for given, text in texts.items():
                found[f"{name} kept for {given}"] = whole_scans(connection, marked(text), ", GENERIC_PLAN")
                known = {**_GIVEN, **_GIVEN_TO.get(name, {})}
                values = {parameter: known[parameter] for parameter in given.split("+")}
                found[f"{name} with {given}"] = whole_scans(connection, marked(text, values))
    assert len(found) > 100
    assert {name: scans for name, scans in found.items() if scans} == {}


@pytest.mark.parametrize(
    ("name", "filters"),
    [
        (name, given)
        for name, filters in FILTERED.items()
        for count in range(len(filters) + 1)
        for given in combinations(filters, count)
    ],
    ids=lambda one: one if isinstance(one, str) else "+".join(one) or "all",
)
def test_no_filter_reads_a_table_that_grows(history: str, name: str, filters: Sequence[str]) -> None:
    """`?strategy=loop&status=failed` read all jobs of a tenant by a plan that was kept for every filter."""
    given = {**_NOT_GIVEN, "tenant_id": "'t000'", "limit": "50", **{filter: _GIVEN[filter] for filter in filters}}
    if name == "select_jobs":
        given["below"] = _GIVEN["below"]
        if {"statuses", "strategies"} & set(filters):  # the store gives both then
            given = {"statuses": "'{failed,completed}'", "strategies": "'{plan,loop}'", **given}
    with psycopg.connect(history, autocommit=True) as connection:
        assert whole_scans(connection, marked(database.query(name).decode(), given)) == []


def test_nothing_that_planq_does_reads_a_table_that_grows(
    history: str, valkey: EmbeddedValkey, tmp_path: Path
) -> None:
    """What SQL functions do shows in no plan of theirs, but PostgreSQL counts it."""
    with psycopg.connect(history, autocommit=True) as connection:
        connection.execute("SELECT pg_stat_reset()")
        with running(history, valkey, tmp_path) as stack:
            for _ in patterns.carry_out(stack, history):
                pass
        counted = connection.execute(
            """SELECT relname, seq_scan, seq_tup_read FROM pg_stat_user_tables
               WHERE seq_scan > 0 AND relname = ANY (%s)""",
            [sorted(GROWING)],
        ).fetchall()
    assert not counted, counted
