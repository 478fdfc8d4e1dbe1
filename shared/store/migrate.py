"""Brings a database to the schema of this release, and says which schema a database has.

Migrations only expand or only contract, so that the previous release keeps running on the new schema. One process
migrates at a time (an advisory lock); the others wait and find nothing left to do.
"""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import ArgumentError, DBAPIError

from shared.domain.errors import DatabaseUnavailable, Misconfigured
from shared.store.schema import refuse_newer

_HERE = Path(__file__).parent / "migrations"
_LOCK = "planq.migrate"


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(_HERE).replace("%", "%%"))
    if connection is not None:
        config.attributes["connection"] = connection
    return config


def sqlalchemy_url(database_url: str) -> str:
    """Return the URL for SQLAlchemy's psycopg dialect of a libpq URL (`postgres://` or `postgresql://`)."""
    scheme, separator, rest = database_url.partition("://")
    if not separator or scheme.split("+")[0] not in ("postgres", "postgresql"):
        raise DatabaseUnavailable(
            f"expected a database URL that begins with postgresql://, found one that begins with {scheme[:20]!r}; "
            "set DATABASE_URL"
        )
    return f"postgresql+psycopg://{rest}"


def head() -> str:
    """Return the schema revision that this release needs."""
    revision = ScriptDirectory.from_config(_config()).get_current_head()
    if revision is None:
        raise RuntimeError("no migrations are packaged")
    return revision


def upgrade(database_url: str) -> tuple[str | None, str]:
    """Migrate to `head()`; return the revisions (before, after). Idempotent.

    Raises `DatabaseUnavailable` when the database cannot be reached or refuses, `Misconfigured` when its URL cannot
    be read and when a newer release has migrated it: that is left as it is.
    """
    engine = _engine(database_url)
    try:
        with engine.connect() as connection:
            connection.execute(text("SELECT pg_advisory_lock(hashtext(:name))"), {"name": _LOCK})
            connection.commit()
            before = MigrationContext.configure(connection).get_current_revision()
            connection.commit()
            refuse_newer(before)
            command.upgrade(_config(connection), "head")
            connection.commit()
            return before, head()
    except DBAPIError as error:
        raise DatabaseUnavailable(f"cannot migrate the database: {error.orig}") from error
    finally:
        engine.dispose()


def _engine(database_url: str) -> Engine:
    try:
        return create_engine(sqlalchemy_url(database_url))
    except (ArgumentError, ValueError) as error:
        raise Misconfigured("DATABASE_URL: expected a URL of PostgreSQL, found one that cannot be read") from error


def current(database_url: str) -> str | None:
    """Return the database's schema revision, None for an empty database; raises as `upgrade` does."""
    engine = _engine(database_url)
    try:
        with engine.connect() as connection:
            return MigrationContext.configure(connection).get_current_revision()
    except DBAPIError as error:
        raise DatabaseUnavailable(f"cannot read the schema version: {error.orig}") from error
    finally:
        engine.dispose()
