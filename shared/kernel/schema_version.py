"""Which schema a database has, without the weight of Alembic: workers and the API ask at every start.

A version is the revision of the tables and a digest of the SQL functions, as in `0100+8d3b1f0a92c4`. Migrations
change tables; the functions are the files in `sql/`, each defined once, created anew whenever their digest differs.
Tables that began from another baseline than this release's have its digest in their version: `0100~5e1c90ab44d2+…`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256

import psycopg
from psycopg.rows import TupleRow

from planq.shared.kernel.submission import lists
from planq.shared.platform.database_url import FOR_SPEED, RELIED_ON
from planq.shared.platform.errors import DatabaseUnavailable, Misconfigured
from planq.shared.platform.sql_files import SHARED, is_query, sql_files

HEAD = "0100"
"""The revision that this release needs; a test holds it equal to the newest migration. Revisions count up."""

BASELINE = "0100"
"""The first revision that can be upgraded. What had a lower one was never released."""


LOWEST_SERVER = 15
"""The oldest PostgreSQL that planq is tested on (`TESTS_POSTGRES`, CONTRIBUTING.md)."""


@cache
def definitions() -> Sequence[str]:
    """Return the SQL that creates the types and then the functions, file by file, with the lists of columns."""
    files = sorted((file for file in sql_files() if not is_query(file)), key=lambda file: file.name != "types.sql")
    return [with_lists(file.read_text("utf-8")) for file in files]


def with_lists(text: str) -> str:
    """Return SQL with the lists of columns in the place of their names."""
    for name, columns in lists().items():
        text = text.replace(name, columns)
    return text


@cache
def digest() -> str:
    return sha256("\0".join(definitions()).encode()).hexdigest()[:12]


@cache
def baseline_digest() -> str:
    """Return the digest of the tables with which a database begins; the first migration keeps it as a comment."""
    tables = SHARED / "schema" / "migrations" / "versions" / f"{BASELINE}_tables.sql"
    return sha256(tables.read_bytes()).hexdigest()[:12]


def needed() -> str:
    return f"{HEAD}+{digest()}"


def current(database_url: str, pooled_schema: str | None = None) -> str | None:
    """Return the database's version, None for a database without planq's tables; raises `DatabaseUnavailable`.

    Raises `Misconfigured` as `server_connection` does. Functions without a digest give the revision alone.
    """
    try:
        with server_connection(database_url, pooled_schema) as connection:
            if connection.execute("SELECT to_regclass('alembic_version')").fetchone() == (None,):
                return None
            row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
            if row is None:
                return None
            (began,) = connection.execute("SELECT obj_description('alembic_version'::regclass)").fetchone() or (None,)
            tables = str(row[0]) if began == baseline_digest() else f"{row[0]}~{began or ''}"
            if connection.execute("SELECT to_regproc('planq_digest')").fetchone() == (None,):
                return tables
            functions = connection.execute("SELECT planq_digest()").fetchone()
            return f"{tables}+{functions[0] if functions else ''}"
    except psycopg.Error as error:
        raise DatabaseUnavailable(f"cannot read the database's schema version: {error}") from error


_POOLER = (
    "DATABASE_URL leads through a connection pooler; set PLANQ_LISTEN_URL to the address of the server itself, for "
    "what needs a connection of its own (LISTEN, migrations)"
)


def server_connection(
    database_url: str, pooled_schema: str | None = None, *, patience_seconds: int = 10
) -> psycopg.Connection[TupleRow]:
    """Return a connection to a server that planq can work on, by a way that it can work on; raises psycopg's errors.

    Raises `Misconfigured` for a server that is too old, and for a pooler that the settings do not know of, or whose
    sessions have other settings than planq relies on (`pooled_schema`: `Settings.pooled_schema`).
    """
    try:
        connection = psycopg.connect(
            database_url, connect_timeout=patience_seconds, application_name="planq-schema", prepare_threshold=None
        )
    except psycopg.OperationalError as error:
        if "unsupported startup parameter" in str(error):
            raise Misconfigured(_POOLER) from error
        raise
    try:
        require_server(connection.info.server_version)
        _require_way(connection, pooled_schema)
    except BaseException:
        connection.close()
        raise
    return connection


def _require_way(connection: psycopg.Connection[TupleRow], pooled_schema: str | None) -> None:
    """Raise `Misconfigured` unless a pooler stands in the way exactly where one is expected to, and leads to planq.

    A pooler tells each client an identity of its own, for cancellations; the server says another.
    """
    if pooled_schema is None:
        if connection.execute("SELECT pg_backend_pid()").fetchone() != (connection.info.backend_pid,):
            raise Misconfigured(_POOLER)
        return
    wrong = wrong_settings(connection, pooled_schema)
    if wrong.keys() - FOR_SPEED.keys():
        found = ", ".join(f"{name} = {value}" for name, (value, _) in wrong.items())
        raise Misconfigured(
            f"the pooler's sessions have settings planq cannot rely on ({found}), and a pooler passes no option "
            f"of a connection on; as the role's owner, run: {corrections(connection, wrong)} then have the pooler "
            "reconnect"
        )


_SAME = {("DateStyle", "ISO"): ("ISO, ",), ("TimeZone", "UTC"): ("Etc/UTC", "GMT", "Etc/GMT")}
"""How else a server may say a value: a text that it is, or begins with."""


def wrong_settings(connection: psycopg.Connection[TupleRow], schema: str | None = None) -> dict[str, tuple[str, str]]:
    """Return the settings of a session that are not as planq relies on them: what is found, what is expected.

    With a `schema` its search path is one of them: it must lead there first.
    """
    names = list(RELIED_ON)
    rows = connection.execute("SELECT name, setting FROM pg_settings WHERE name = ANY(%s)", (names,)).fetchall()
    found = {str(name): str(value) for name, value in rows}
    wrong = {
        name: (found[name], value)
        for name, value in RELIED_ON.items()
        if name in found and found[name] != value and not found[name].startswith(_SAME.get((name, value), ()))
    }
    if schema is not None:
        row = connection.execute("SELECT current_schema(), current_setting('search_path')").fetchone()
        if row is not None and row[0] != schema:
            wrong["search_path"] = (str(row[1]), schema)
    return wrong


def corrections(connection: psycopg.Connection[TupleRow], wrong: Mapping[str, tuple[str, str]]) -> str:
    """Return the statements that give the role of a connection the settings that are expected."""
    role = f'ALTER ROLE "{connection.info.user}" IN DATABASE "{connection.info.dbname}"'
    return " ".join(f"{role} SET {name} = '{value}';" for name, (_, value) in wrong.items())


def require_server(version: int) -> None:
    """Raise `Misconfigured` for a server that is too old; `version` is its `server_version_num`."""
    if version < LOWEST_SERVER * 10_000:
        raise Misconfigured(
            f"the database's server is PostgreSQL {version // 10_000}.{version % 10_000}; "
            f"planq needs {LOWEST_SERVER} or newer"
        )


def require_schema(database_url: str, pooled_schema: str | None = None) -> None:
    """Raise `Misconfigured` unless the database has the version of this release, and as `current` does.

    Raises `DatabaseUnavailable` too.
    """
    have = current(database_url, pooled_schema)
    if have == needed():
        return
    if have is None:
        raise Misconfigured(
            f"the database has no schema of planq, this release needs {needed()}; run `planq migrate`"
        )
    refuse_foreign(have)
    raise Misconfigured(f"the database has schema {have}, this release needs {needed()}; run `planq migrate`")


def refuse_foreign(have: str | None) -> None:
    """Raise `Misconfigured` for a version that this release can neither work with nor migrate."""
    if have is None:
        return
    revision, differs, _ = have.partition("+")[0].partition("~")
    if revision > HEAD:
        raise Misconfigured(
            f"the database has schema {have} of a newer release, this one needs {needed()}; start the one that "
            "migrated it"
        )
    if revision < BASELINE or differs:
        raise Misconfigured(
            f"the database has schema {have}, which was never released and cannot be upgraded, this release needs "
            f"{needed()}; start with an empty database (`planq up`: with an empty data folder)"
        )
