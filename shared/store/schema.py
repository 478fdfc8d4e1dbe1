"""Which schema a database has, without the weight of Alembic: workers and the API ask at every start."""

from __future__ import annotations

import psycopg

from shared.domain.errors import DatabaseUnavailable, Misconfigured

HEAD = "0013"
"""The revision that this release needs; a test holds it equal to the newest migration. Revisions count up."""


def current(database_url: str) -> str | None:
    """Return the database's revision, None for a database without planq's tables; raises `DatabaseUnavailable`."""
    try:
        with psycopg.connect(database_url, connect_timeout=10, application_name="planq-schema") as connection:
            if connection.execute("SELECT to_regclass('alembic_version')").fetchone() == (None,):
                return None
            row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
            return str(row[0]) if row else None
    except psycopg.Error as error:
        raise DatabaseUnavailable(f"cannot read the database's schema version: {error}") from error


def require_schema(database_url: str) -> None:
    """Raise `Misconfigured` unless the database has the schema of this release; raises `DatabaseUnavailable` too."""
    have = current(database_url)
    if have == HEAD:
        return
    if have is None:
        raise Misconfigured(f"the database has no schema of planq, this release needs {HEAD}; run `planq migrate`")
    refuse_newer(have)
    raise Misconfigured(f"the database has schema {have}, this release needs {HEAD}; run `planq migrate`")


def refuse_newer(have: str | None) -> None:
    """Raise `Misconfigured` for the revision of a newer release: this one cannot work with it, nor bring it back."""
    if have is not None and have > HEAD:
        raise Misconfigured(
            f"the database has schema {have} of a newer release, this one needs {HEAD}; start the one that "
            "migrated it"
        )
