"""Which schema a database has, without the weight of Alembic: workers and the API ask at every start.

A version is the revision of the tables and a digest of the SQL functions: `0100+8d3b1f0a92c4`. Migrations change
tables. The functions are the files in `sql/`. Those of one release are in a schema of their own, named after their
digest (`planq_f_8d3b1f0a92c4`), and each process calls those of its own release, so releases run next to each other.
Tables that began from another baseline than this release's have its digest in their version: `0100~5e1c90ab44d2+…`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256

import psycopg
from psycopg.rows import TupleRow

from planq.shared.kernel.submission import lists
from planq.shared.platform.database_url import FOR_SPEED, RELIED_ON, SCHEMA
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


def functions_schema(schema: str = SCHEMA) -> str:
    """Return the name of the schema with this release's functions, next to the `schema` of the tables."""
    return f"{schema}_f_{digest()}"


_DEFINED = re.compile(r"^CREATE (?:FUNCTION|TYPE) (planq_\w+)", re.MULTILINE)


def placed(statements: Sequence[str], schema: str) -> Sequence[str]:
    """Return definitions whose functions and types, wherever one names another, are in `schema`.

    So a function calls those of its own release whatever the session's search_path is, also from a trigger in a
    session of another release. Tables stay without a schema: the search_path leads to them.
    """
    names = {name for text in statements for name in _DEFINED.findall(text)}
    ours = re.compile(rf"(?<!TRIGGER )(?<![.\w'])(?:{'|'.join(sorted(names))})\b")
    return [ours.sub(rf"{schema}.\g<0>", text) for text in statements]


@cache
def baseline_digest() -> str:
    """Return the digest of the tables with which a database begins; the first migration keeps it as a comment."""
    tables = SHARED / "schema" / "migrations" / "versions" / f"{BASELINE}_tables.sql"
    return sha256(tables.read_bytes()).hexdigest()[:12]


def needed() -> str:
    return f"{HEAD}+{digest()}"


@dataclass(frozen=True, slots=True)
class SchemaState:
    """What a database has of planq's schema.

    `tables` is the revision of the tables, None where there are none, and `works_from` the HEAD of the oldest release
    that can use them. `began` is the digest of the baseline with which they were made. `has_functions` is true when
    the functions of this release are complete.
    """

    tables: str | None
    began: str = ""
    works_from: str = ""
    has_functions: bool = False

    @property
    def version(self) -> str | None:
        """The version as a text, `0100+8d3b1f0a92c4`; None without tables."""
        if self.tables is None:
            return None
        tables = self.tables if self.began == baseline_digest() else f"{self.tables}~{self.began}"
        return f"{tables}+{digest()}" if self.has_functions else tables

    @property
    def is_ready(self) -> bool:
        """True when this release can work on the database."""
        return self.has_tables and self.has_functions

    @property
    def is_newer(self) -> bool:
        """True when a newer release has migrated the tables, and this one can still use them."""
        return self.has_tables and self.tables != HEAD

    @property
    def has_tables(self) -> bool:
        """True when the tables are those of this release, or newer ones that it can use."""
        return (
            self.tables is not None
            and self.began == baseline_digest()
            and (self.tables == HEAD or self.works_from <= HEAD < self.tables)
        )


def current(database_url: str, pooled_schema: str | None = None) -> SchemaState:
    """Return what a database has; raises `DatabaseUnavailable`, and `Misconfigured` as `server_connection` does."""
    try:
        with server_connection(database_url, pooled_schema) as connection:
            return state_of(connection)
    except psycopg.Error as error:
        raise DatabaseUnavailable(f"cannot read the database's schema version: {error}") from error


def state_of(connection: psycopg.Connection[TupleRow]) -> SchemaState:
    """Return what the database of a connection has; raises psycopg's errors."""
    if connection.execute("SELECT to_regclass('alembic_version')").fetchone() == (None,):
        return SchemaState(None)
    row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    if row is None:
        return SchemaState(None)
    (comment,) = connection.execute("SELECT obj_description('alembic_version'::regclass)").fetchone() or (None,)
    began, _, works_from = (comment or "").partition(WORKS_FROM)
    (schema,) = connection.execute("SELECT current_schema()").fetchone() or (None,)
    marker = f"{functions_schema(str(schema))}.planq_digest"
    (found,) = connection.execute("SELECT to_regproc(%s)", [marker]).fetchone() or (None,)
    return SchemaState(str(row[0]), began, works_from or str(row[0]), found is not None)


WORKS_FROM = " works from "
"""Stands in the comment of `alembic_version`, between the baseline's digest and the oldest HEAD that can use it."""


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
    """Raise `Misconfigured` unless this release can work on the database, and as `current` does.

    Raises `DatabaseUnavailable` too.
    """
    have = current(database_url, pooled_schema)
    if have.is_ready:
        return
    refuse_foreign(have)
    found = "no schema of planq" if have.version is None else f"schema {have.version}"
    raise Misconfigured(f"the database has {found}, this release needs {needed()}; run `planq migrate`")


def refuse_foreign(have: SchemaState) -> None:
    """Raise `Misconfigured` for tables that this release can neither work with nor migrate."""
    if have.tables is None or have.has_tables:
        return
    if have.tables > HEAD:
        raise Misconfigured(
            f"the database has schema {have.version} of a newer release, this one needs {needed()}; start the one "
            "that migrated it"
        )
    if have.tables < BASELINE or have.began != baseline_digest():
        raise Misconfigured(
            f"the database has schema {have.version}, which was never released and cannot be upgraded, this release "
            f"needs {needed()}; start with an empty database (`planq up`: with an empty data folder)"
        )
