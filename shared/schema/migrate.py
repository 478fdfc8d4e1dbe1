"""Brings a database to the schema of this release: its tables by migrations, its functions by the files in `sql/`.

Both happen in one transaction. One process migrates at a time (an advisory lock); the others wait and find nothing
left to do. A process calls the functions of its own release, so nothing is changed while one of another release runs:
none has a connection, as far as the role that migrates may see others' (its own role's, or with pg_read_all_stats).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import ArgumentError, DBAPIError

from planq.shared.kernel.schema_version import current, definitions, digest, needed, refuse_foreign
from planq.shared.platform.errors import DatabaseUnavailable, Misconfigured

_HERE = Path(__file__).parent / "migrations"
_LOCK = "planq.migrate"

_RUNNING = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND application_name IN ('planq', 'planq-listen')"""

_CREATE_SCHEMA = """
DO $$
DECLARE
    v_schema text := trim(both '" ' FROM split_part(current_setting('search_path'), ',', 1));
BEGIN
    IF v_schema <> '$user' AND to_regnamespace(quote_ident(v_schema)) IS NULL THEN
        EXECUTE format('CREATE SCHEMA %I', v_schema);
    END IF;
END $$"""
"""What the connection's search_path names first; to create what is there, too, would need more rights."""

_DROP = """
DO $$
DECLARE
    v_trigger text;
    v_functions text;
    v_types text;
BEGIN
    FOR v_trigger IN
        SELECT format('%I ON %s', tgname, tgrelid::regclass) FROM pg_trigger JOIN pg_class c ON c.oid = tgrelid
        WHERE c.relnamespace = current_schema()::regnamespace AND tgname LIKE 'planq\\_%'
    LOOP
        EXECUTE 'DROP TRIGGER ' || v_trigger;
    END LOOP;
    SELECT string_agg(oid::regprocedure::text, ', ') INTO v_functions FROM pg_proc
    WHERE pronamespace = current_schema()::regnamespace AND proname LIKE 'planq\\_%';
    IF v_functions IS NOT NULL THEN
        EXECUTE 'DROP FUNCTION ' || v_functions;
    END IF;
    SELECT string_agg(oid::regtype::text, ', ') INTO v_types FROM pg_type
    WHERE typnamespace = current_schema()::regnamespace AND typname LIKE 'planq\\_%' AND typtype = 'c';
    IF v_types IS NOT NULL THEN
        EXECUTE 'DROP TYPE ' || v_types;
    END IF;
END $$"""
"""All at once: so they go whatever refers to what, and whatever arguments they had."""


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
    """Migrate to `schema.needed()`; return the versions (before, after). Idempotent.

    Raises `DatabaseUnavailable` when the database cannot be reached or refuses, `Misconfigured` when its URL cannot
    be read, when this release can do nothing with its version, and while processes of another release run on it. The
    database is left as it is then.
    """
    engine = _engine(database_url)
    try:
        with engine.connect() as connection:
            # A role's limit on statements is meant for short ones.
            connection.execute(text("SET statement_timeout = 0"))
            connection.execute(text("SELECT pg_advisory_lock(hashtext(:name))"), {"name": _LOCK})
            connection.commit()
            before = current(database_url)
            if before == needed():
                return before, before
            refuse_foreign(before)
            with connection.begin():
                if before is None:
                    _refuse_another(connection)
                else:
                    _refuse_running(connection, before)
                _driver(connection).execute(_CREATE_SCHEMA)
                _driver(connection).execute(_DROP)
                command.upgrade(config(connection), "head")
                define_functions(connection)
            return before, needed()
    except (DBAPIError, psycopg.Error) as error:
        raise DatabaseUnavailable(f"cannot migrate the database: {getattr(error, 'orig', error)}") from error
    finally:
        engine.dispose()


def define_functions(connection: Connection) -> None:
    """Create the types and functions, and the one that returns their digest, where there are none."""
    driver = _driver(connection)
    # A function may call one that a later file defines.
    driver.execute("SET LOCAL check_function_bodies = off")
    for statements in definitions():
        driver.execute(statements)
    driver.execute(
        f"CREATE FUNCTION planq_digest() RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT '{digest()}'::text $$"
    )


def _refuse_another(connection: Connection) -> None:
    if connection.execute(text("SELECT to_regproc('public.planq_digest')")).scalar_one() is not None:
        raise Misconfigured(
            "this database holds planq's tables in the schema `public`; set PLANQ_SCHEMA=public to go on with them, "
            "or name another database"
        )


def _refuse_running(connection: Connection, before: str) -> None:
    count = connection.execute(text(_RUNNING)).scalar_one()
    if count:
        raise Misconfigured(
            f"processes of another release run on the database, which has schema {before} ({count} of their "
            f"connections are open); stop the API and the workers, then run `planq migrate` again for {needed()}"
        )


def _driver(connection: Connection) -> Any:
    """Return psycopg's connection, which takes several statements at once and reads no `%` without parameters."""
    return connection.connection.driver_connection


def _engine(database_url: str) -> Engine:
    try:
        return create_engine(sqlalchemy_url(database_url))
    except (ArgumentError, ValueError) as error:
        raise Misconfigured("DATABASE_URL: expected a URL of PostgreSQL, found one that cannot be read") from error
