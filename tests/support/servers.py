"""Real servers for a test session: PostgreSQL with cheap fresh databases, Valkey."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import psycopg

from planq.deploy.local.postgres import EmbeddedPostgres
from planq.shared.kernel.schema_version import functions_schema
from planq.shared.platform.database_url import FOR_SPEED

TEMPLATE = "planq_template"

# A test's database is thrown away: surviving a power cut is not worth the writes. Several tests may be under way on
# one server, each with workers of its own, and its log may lie in memory. What tests call by connections of their own
# is planned as in planq's. The rest is as in production.
THROWAWAY = {
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "200",
    "max_wal_size": "128MB",
    **FOR_SPEED,
}

OTHER_SERVER = Path(given) if (given := os.environ.get("TESTS_POSTGRES")) else None
"""The programs of another PostgreSQL than the one that planq brings: `TESTS_POSTGRES=/usr/lib/postgresql/15/bin`."""

MEMORY = Path("/dev/shm")
PREFIX = "planq-test-server-"
FREE_BYTES = 2 << 30
"""What must be free in memory: a server here takes 0.1 to 0.2 GB, and about ten run at once."""


@contextmanager
def server_folder() -> Iterator[Path]:
    """An empty folder for the data of a server, in memory where there is room, removed afterwards.

    A new database is 400 files. On ext4 its creation takes 0.1 to 0.3 s of CPU, most of all after others were dropped
    (the kernel passes over recently deleted inodes one by one); in memory it takes 0.014 s.
    """
    roomy = MEMORY.is_dir() and min(shutil.disk_usage(MEMORY).free, psutil.virtual_memory().available) > FREE_BYTES
    if roomy:
        _remove_leftovers()
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-", dir=MEMORY if roomy else None) as folder:
        yield Path(folder)


def _remove_leftovers() -> None:
    """Free the memory that a killed test process has left taken."""
    for folder in MEMORY.glob(f"{PREFIX}*"):
        if not psutil.pid_exists(int(folder.name.removeprefix(PREFIX).partition("-")[0])):
            shutil.rmtree(folder, ignore_errors=True)


FUNCTIONS = functions_schema()
"""The schema of the SQL functions."""

FUNCTIONS_FOUND = {"search_path": f"planq, {FUNCTIONS}, public"}
"""The setting of a server by which tests call these by their names alone."""

_OPTIONS = {**THROWAWAY, **FUNCTIONS_FOUND}


class TestPostgres:
    """A PostgreSQL server whose databases are clones of one migrated template."""

    __test__ = False

    def __init__(self, data_dir: Path) -> None:
        self._folder = data_dir
        self.server = EmbeddedPostgres(data_dir, options=_OPTIONS, binaries=OTHER_SERVER)
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
            from planq.shared.schema.migrate import upgrade

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
