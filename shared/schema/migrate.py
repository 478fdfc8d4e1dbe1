"""Brings a database to the schema of this release: its tables by migrations, its functions in a schema of their own.

Processes of other releases may run meanwhile. A migration changes tables so that the release before can still use
them (`works_from` in the file of the migration says which release is the oldest that can), and the functions of this
release are created next to those of others. Functions that no live process uses are dropped.

Each migration is a transaction, and so is the creation of the functions. So a `planq migrate` that is killed leaves
whole steps, and the next one continues. One process migrates at a time (an advisory lock). A statement that needs a
lock on a table waits for it for a second, because every later statement on that table waits behind it, and the step
is tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from time import sleep
from typing import Any, TypeVar

import psycopg
from alembic import command
from alembic.config import Config
from alembic.script import Script, ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import ArgumentError, DBAPIError

from planq.shared.kernel.schema_version import (
    HEAD,
    SchemaState,
    definitions,
    digest,
    functions_schema,
    needed,
    placed,
    refuse_foreign,
    state_of,
)
from planq.shared.platform.errors import DatabaseUnavailable, Misconfigured

T = TypeVar("T")

_HERE = Path(__file__).parent / "migrations"
_LOCK = "planq.migrate"

_LOCK_TRIES = 60
"""Tries of a step that did not get its locks within `lock_timeout`, one a second."""

_LIVE = """
SELECT DISTINCT split_part(application_name, ' ', 2) FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'planq% %\\_f\\_%'"""
"""The functions that open connections use, if this role sees those of other roles (pg_read_all_stats)."""

_LIVE_WORKERS = """
UNION SELECT functions FROM workers WHERE heartbeat_at > now() - make_interval(secs => lease_seconds)"""

_FUNCTIONS = """
SELECT nspname, coalesce(obj_description(oid, 'pg_namespace'), '') FROM pg_namespace
WHERE nspname ~ ('^' || current_schema() || '_f_[0-9a-f]{12}$')"""

_TRIGGERS = """
SELECT DISTINCT n.nspname FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
JOIN pg_namespace n ON n.oid = p.pronamespace JOIN pg_class c ON c.oid = t.tgrelid
WHERE t.tgname LIKE 'planq\\_%' AND c.relnamespace = current_schema()::regnamespace"""
"""In which schemas the functions of the tables' triggers are."""

_IN_PUBLIC = "SELECT count(*) FROM pg_namespace WHERE nspname ~ '^public_f_[0-9a-f]{12}$'"

_SCHEMA = """
SELECT coalesce(nullif(trim(both '" ' FROM split_part(current_setting('search_path'), ',', 1)), '$user'),
                current_schema())"""
"""What the connection's search_path names first."""

_DROP_OTHER_TRIGGERS = """
DO $$
DECLARE
    v_trigger text;
BEGIN
    FOR v_trigger IN
        SELECT format('%I ON %s', t.tgname, t.tgrelid::regclass) FROM pg_trigger t
        JOIN pg_proc p ON p.oid = t.tgfoid JOIN pg_class c ON c.oid = t.tgrelid
        WHERE t.tgname LIKE 'planq\\_%' AND c.relnamespace = current_schema()::regnamespace
          AND p.pronamespace <> 'SCHEMA'::regnamespace
    LOOP
        EXECUTE 'DROP TRIGGER ' || v_trigger;
    END LOOP;
END $$"""

_TRIGGERS_BEGIN = ("CREATE TRIGGER ", "CREATE CONSTRAINT TRIGGER ")


def sqlalchemy_url(database_url: str) -> str:
    """Return the URL for SQLAlchemy's psycopg dialect of a libpq URL (`postgres://` or `postgresql://`)."""
    scheme, separator, rest = database_url.partition("://")
    if not separator or scheme.split("+")[0] not in ("postgres", "postgresql"):
        raise DatabaseUnavailable(
            f"expected a database URL that begins with postgresql://, found one that begins with {scheme[:20]!r}; "
            "set DATABASE_URL"
        )
    return f"postgresql+psycopg://{rest}"


def config(connection: Connection | None = None) -> Config:
    """Return Alembic's configuration, for a connection if it is to run."""
    made = Config()
    made.set_main_option("script_location", str(_HERE).replace("%", "%%"))
    if connection is not None:
        made.attributes["connection"] = connection
    return made


def upgrade(database_url: str) -> tuple[str | None, str]:
    """Migrate to this release; return the versions (before, after). Idempotent.

    Raises `DatabaseUnavailable` when the database cannot be reached or refuses, or when a lock cannot be had.
    Raises `Misconfigured` when its URL cannot be read, when this release can do nothing with its tables, and when a
    migration would break a process that is alive. Steps that are done by then stay.
    """
    with _connected(database_url) as connection:
        before = state_of(_driver(connection))
        pending = _checked(connection, before)
        connection.rollback()
        if connection.execute(text("SELECT current_schema()")).scalar() != (schema := _schema(connection)):
            # Not IF NOT EXISTS: that needs more rights than the use of a schema that exists.
            _execute(connection, f'CREATE SCHEMA "{schema}"')
        connection.rollback()
        if pending:
            _patiently(lambda: command.upgrade(config(connection), "head"), connection)
        if not before.has_functions or (_are_foreign(connection) and not before.is_newer):
            _patiently(lambda: _define(connection, with_triggers=not before.is_newer), connection)
        for name in _unused(connection):
            _execute(connection, f'DROP SCHEMA "{name}" CASCADE')
        return before.version, str(state_of(_driver(connection)).version)


def plan(database_url: str) -> Sequence[str]:
    """Return what `upgrade` would do, a sentence each, and change nothing. Raises what `upgrade` does."""
    with _connected(database_url) as connection:
        before = state_of(_driver(connection))
        pending = _checked(connection, before)
        steps = [
            f"migrate tables to {one.revision} ({one.doc}); releases from schema {_works_from(one)} on can use them"
            for one in pending
        ]
        ours = functions_schema(_schema(connection))
        if not before.has_functions:
            steps.append(f"create the functions of this release in {ours}")
        if not before.is_newer and (not before.has_functions or _are_foreign(connection)):
            steps.append(f"have the triggers of the tables call {ours}")
        return steps + [f"drop {name}: no live process uses its functions" for name in _unused(connection, ours)]


def define_functions(connection: Connection, *, with_triggers: bool = True) -> None:
    """Create the schema with this release's types and functions, unless it is complete; the caller commits.

    Functions that are there stay: live processes may be calling them. The triggers of the tables call them then.
    """
    schema, driver = functions_schema(_schema(connection)), _driver(connection)
    apart = [_without_triggers(text_) for text_ in placed(definitions(), schema)]
    if driver.execute("SELECT to_regproc(%s)", [f"{schema}.planq_digest"]).fetchone() == (None,):
        # A function may call one that a later file defines.
        driver.execute("SET LOCAL check_function_bodies = off")
        driver.execute("SET LOCAL client_min_messages = warning")
        driver.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE; CREATE SCHEMA "{schema}"')
        driver.execute(f"COMMENT ON SCHEMA \"{schema}\" IS '{HEAD}'")
        # Functions run with the rights of their caller, so whoever may use the tables may call them.
        driver.execute(f'GRANT USAGE ON SCHEMA "{schema}" TO PUBLIC')
        for rest, _ in apart:
            driver.execute(rest)
        driver.execute(
            f'CREATE FUNCTION "{schema}".planq_digest() RETURNS text LANGUAGE sql IMMUTABLE AS '
            f"$$ SELECT '{digest()}'::text $$"
        )
    if with_triggers:
        for trigger in chain.from_iterable(triggers for _, triggers in apart):
            if trigger.startswith(_TRIGGERS_BEGIN[0]):
                driver.execute(trigger.replace("CREATE", "CREATE OR REPLACE", 1))
            else:  # a constraint cannot be replaced
                name, table = trigger.split()[3], trigger.partition(" ON ")[2].split()[0]
                driver.execute(f"DROP TRIGGER IF EXISTS {name} ON {table}; {trigger}")
        driver.execute(_DROP_OTHER_TRIGGERS.replace("SCHEMA", schema))


def _without_triggers(text_: str) -> tuple[str, Sequence[str]]:
    """Return a file's definitions without its triggers, and these, which need locks on tables."""
    rest: list[str] = []
    triggers: list[str] = []
    into = rest
    for line in text_.splitlines(keepends=True):
        if line.startswith(_TRIGGERS_BEGIN):
            triggers.append("")
            into = triggers
        if into is rest:
            rest.append(line)
        else:
            triggers[-1] += line
            into = rest if line.rstrip().endswith(";") else triggers
    return "".join(rest), triggers


@contextmanager
def _connected(database_url: str) -> Iterator[Connection]:
    """Lend a connection that alone migrates."""
    engine = _engine(database_url)
    try:
        with engine.connect() as connection:
            # A role's limit on statements is meant for short ones.
            connection.execute(text("SET statement_timeout = 0"))
            connection.execute(text("SELECT pg_advisory_lock(hashtext(:name))"), {"name": _LOCK})
            connection.execute(text("SET lock_timeout = '1s'"))
            connection.commit()
            yield connection
    except (DBAPIError, psycopg.Error) as error:
        raise DatabaseUnavailable(f"cannot migrate the database: {getattr(error, 'orig', error)}") from error
    finally:
        engine.dispose()


def _checked(connection: Connection, before: SchemaState) -> Sequence[Script]:
    """Return the migrations to run; raise `Misconfigured` where the database is not for this release."""
    refuse_foreign(before)
    if before.tables is None and _schema(connection) != "public" and connection.execute(text(_IN_PUBLIC)).scalar():
        raise Misconfigured(
            "this database holds planq's tables in the schema `public`; set PLANQ_SCHEMA=public to go on with them, "
            "or name another database"
        )
    if before.is_newer:
        return []
    scripts = ScriptDirectory.from_config(config())
    pending = [*scripts.iterate_revisions("head", before.tables or "base")][::-1]
    works_from = max((_works_from(one) for one in pending), default="")
    if before.tables is not None:
        heads = {str(name): str(head) for name, head in connection.execute(text(_FUNCTIONS))}
        old = [name for name in _live(connection) if heads.get(name, HEAD) < works_from]
        if old:
            raise Misconfigured(
                f"processes of a release that needs older tables run on the database ({', '.join(old)}), which has "
                f"schema {before.version}; stop them, then run `planq migrate` again for {needed()}"
            )
    return pending


def _works_from(script: Script) -> str:
    return str(getattr(script.module, "works_from", script.revision))


def _define(connection: Connection, *, with_triggers: bool) -> None:
    define_functions(connection, with_triggers=with_triggers)
    connection.commit()


def _are_foreign(connection: Connection) -> bool:
    """Return whether a trigger calls the functions of another release."""
    found = set(connection.execute(text(_TRIGGERS)).scalars())
    return found != {functions_schema(_schema(connection))}


def _live(connection: Connection) -> set[str]:
    has_workers = connection.execute(text("SELECT to_regclass('workers')")).scalar() is not None
    return set(connection.execute(text(_LIVE + (_LIVE_WORKERS if has_workers else ""))).scalars())


def _unused(connection: Connection, *also: str) -> Sequence[str]:
    """Return the schemas of functions that neither this release, nor a live process, nor a trigger uses."""
    used = {functions_schema(_schema(connection)), *_live(connection), *connection.execute(text(_TRIGGERS)).scalars()}
    return sorted({str(name) for name, _ in connection.execute(text(_FUNCTIONS))} - used)


def _patiently(step: Callable[[], T], connection: Connection) -> T:
    """Run a step, again each second while it does not get a lock that others have."""
    for tries in range(1, _LOCK_TRIES + 1):
        try:
            return step()
        except (DBAPIError, psycopg.Error) as error:
            connection.rollback()
            cause = getattr(error, "orig", error)
            if tries == _LOCK_TRIES or not isinstance(
                cause, (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)
            ):
                raise
        sleep(1)
    raise AssertionError("the last try returns or raises")


def _schema(connection: Connection) -> str:
    """Return the schema of the tables, which may not exist yet."""
    return str(connection.execute(text(_SCHEMA)).scalar_one())


def _execute(connection: Connection, statement: str) -> None:
    _driver(connection).execute(statement)
    connection.commit()


def _driver(connection: Connection) -> Any:
    """Return psycopg's connection, which takes several statements at once and reads no `%` without parameters."""
    return connection.connection.driver_connection


def _engine(database_url: str) -> Engine:
    try:
        return create_engine(sqlalchemy_url(database_url))
    except (ArgumentError, ValueError) as error:
        raise Misconfigured("DATABASE_URL: expected a URL of PostgreSQL, found one that cannot be read") from error
