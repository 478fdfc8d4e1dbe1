"""Real servers for a test session: PostgreSQL with cheap fresh databases, Valkey."""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path

import psycopg

from deploy.local.postgres import EmbeddedPostgres

TEMPLATE = "planq_template"

# A test's database is thrown away: surviving a power cut is not worth the writes. Several tests may be under way on
# one server, each with workers of its own. The rest is as in production.
THROWAWAY = {"fsync": "off", "full_page_writes": "off", "max_connections": "200"}


class TestPostgres:
    """A PostgreSQL server whose databases are clones of one migrated template."""

    __test__ = False

    def __init__(self, data_dir: Path) -> None:
        self._folder = data_dir
        self.server = EmbeddedPostgres(data_dir, options=THROWAWAY)
        self._numbers = itertools.count(1)
        self._migrated = False

    def start(self) -> None:
        """Start the server."""
        self.server.start()

    def stop(self) -> None:
        """Stop the server."""
        self.server.stop()

    def copy_to(self, data_dir: Path) -> TestPostgres:
        """Return a server on a copy of this one's data, not started yet; this one must be stopped.

        A copy costs a tenth of a new cluster with its migrations.
        """
        data_dir.mkdir(mode=0o700, exist_ok=True)
        # The files keep their owner, as whom the server runs.
        subprocess.run(["cp", "-a", str(self._folder / "cluster"), str(data_dir)], check=True)
        copy = TestPostgres(data_dir)
        copy._migrated = self._migrated
        return copy

    def create(self, template: str = "template0") -> str:
        """Create a database and return its URL."""
        name = f"test_{next(self._numbers)}"
        self._run(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
        return self.server.url_of(name)

    def create_migrated(self) -> str:
        """Create a database with planq's schema and return its URL."""
        if not self._migrated:
            # Late: most tests need no database, and the migrations import SQLAlchemy.
            from shared.store.migrate import upgrade

            self._run(f"CREATE DATABASE {TEMPLATE}")
            upgrade(self.server.url_of(TEMPLATE))
            self._migrated = True
        return self.create(TEMPLATE)

    def drop(self, url: str) -> None:
        """Drop the database behind `url`, ending its connections."""
        with psycopg.connect(url) as connection:
            name = connection.info.dbname
        self._run(f"DROP DATABASE {name} WITH (FORCE)")

    def _run(self, statement: str) -> None:
        with psycopg.connect(self.server.url_of("postgres"), autocommit=True) as connection:
            connection.execute(statement.encode())
