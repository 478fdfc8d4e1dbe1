"""Migrations and metadata give the same schema; a second run does nothing; the enums are the constraints."""

from __future__ import annotations

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import create_engine, text
from sqlmodel import SQLModel

from shared.domain.errors import Misconfigured
from shared.domain.states import JobStatus, StepStatus
from shared.store import migrate, schema, tables
from shared.store.database import query
from tests.support.servers import TestPostgres


def test_migrations_and_metadata_give_the_same_schema(empty_database_url: str) -> None:
    assert migrate.current(empty_database_url) is None
    assert migrate.upgrade(empty_database_url) == (None, migrate.head())
    engine = create_engine(migrate.sqlalchemy_url(empty_database_url))
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_server_default": True})
        assert compare_metadata(context, SQLModel.metadata) == []
    engine.dispose()
    assert tables.Job.__tablename__ == "jobs"


def test_the_constant_is_the_newest_migration(empty_database_url: str, database_url: str) -> None:
    assert migrate.head() == schema.HEAD
    assert schema.current(empty_database_url) is None
    assert schema.current(database_url) == schema.HEAD
    schema.require_schema(database_url)
    with pytest.raises(Misconfigured, match="planq migrate"):
        schema.require_schema(empty_database_url)


def test_a_second_migration_does_nothing(database_url: str) -> None:
    assert migrate.upgrade(database_url) == (migrate.head(), migrate.head())


def test_a_database_of_a_newer_release_is_refused_and_left_as_it_is(postgres: TestPostgres) -> None:
    url = postgres.create_migrated()
    with psycopg.connect(url) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")

    with pytest.raises(Misconfigured, match="9999 of a newer release"):
        migrate.upgrade(url)

    assert schema.current(url) == "9999"
    postgres.drop(url)


def test_a_url_that_cannot_be_read_is_refused_without_its_password() -> None:
    with pytest.raises(Misconfigured, match="DATABASE_URL") as refused:
        migrate.upgrade("postgresql://me:hush@[::1/x")
    assert "hush" not in refused.value.message


def test_check_constraints_allow_exactly_the_enums(database_url: str) -> None:
    engine = create_engine(migrate.sqlalchemy_url(database_url))
    with engine.connect() as connection:
        for name, values in (("ck_jobs_status", JobStatus), ("ck_steps_status", StepStatus)):
            found = connection.execute(
                text("SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = :name"), {"name": name}
            ).scalar_one()
            assert all(f"'{value}'" in found for value in values)
            assert found.count("'::text") == len(values)
    engine.dispose()


def test_every_named_query_fits_the_schema(database_url: str) -> None:
    """Each query is planned by the server with all its parameters null."""
    from importlib import resources

    import psycopg

    folder = resources.files("shared.store").joinpath("queries")
    names = sorted(entry.name.removesuffix(".sql") for entry in folder.iterdir())
    assert len(names) > 20
    with psycopg.connect(database_url) as connection:
        for name in names:
            source = query(name).decode()
            assert source.startswith("-- "), f"{name}.sql says in its first line what it is for"
            client = psycopg.ClientCursor(connection)
            marks = {part.split(")s")[0] for part in source.split("%(")[1:]}
            client.execute("EXPLAIN " + client.mogrify(source, dict.fromkeys(marks)))
