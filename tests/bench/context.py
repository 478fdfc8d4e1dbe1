"""What a measurement gets: how often to measure, and the servers that all measurements of one run share.

PostgreSQL and Valkey are the embedded ones with the settings of `planq up`, fsync included; they start when first
asked for. Every measurement has a database of its own.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path

import psycopg
import redis

from planq.deploy.local.postgres import EmbeddedPostgres
from planq.deploy.local.valkey import EmbeddedValkey
from planq.shared.kernel.states import Priority
from planq.shared.schema.migrate import upgrade
from planq.shared.settings.settings import Settings
from tests.support.servers import FUNCTIONS_FOUND
from tests.support.stack import Stack

REPEATS, QUICK_REPEATS = 5, 3
TEMPLATE = "bench_template"


class Context:
    """One run of the benchmark in `folder`; use it as `with Context(folder) as context`.

    `names` are the measurements that are asked for, all when empty.
    """

    def __init__(self, folder: Path, *, quick: bool = False, names: Collection[str] = ()) -> None:
        self.folder = folder
        self.quick = quick
        self._names = frozenset(names)
        self.about: dict[str, str] = {}
        """What a measurement adds to the head of the table: with which versions it compared."""
        self._stack = ExitStack()
        self._numbers = itertools.count(1)

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def repeats(self) -> int:
        """How often each figure is measured; the median counts."""
        return QUICK_REPEATS if self.quick else REPEATS

    def wants(self, name: str) -> bool:
        """Say whether a measurement is asked for; a module that makes several asks this for each."""
        return not self._names or name in self._names

    def either(self, full: int, quick: int) -> int:
        """Return a size: of the full run, or of the quick one."""
        return quick if self.quick else full

    def say(self, text: str) -> None:
        """Tell whoever watches how far the run is."""
        print(text, file=sys.stderr, flush=True)  # noqa: T201 - this is a command line

    @cached_property
    def postgres(self) -> EmbeddedPostgres:
        """The database server, as `planq up` runs it."""
        server = EmbeddedPostgres(self.new_folder("postgres"), options=FUNCTIONS_FOUND)
        server.start()
        self._stack.callback(server.stop)
        return server

    @cached_property
    def valkey(self) -> EmbeddedValkey:
        """The broker's server, as `planq up` runs it."""
        server = EmbeddedValkey(self.new_folder("valkey"))
        server.start()
        self._stack.callback(server.stop)
        return server

    def new_folder(self, name: str) -> Path:
        """Return a new folder of the run's."""
        folder = self.folder / f"{name}-{next(self._numbers)}"
        folder.mkdir(mode=0o700)
        return folder

    def create_database(self) -> str:
        """Create an empty database and return its URL."""
        return self._create("template0")

    def create_migrated(self) -> str:
        """Create a database with planq's schema and return its URL."""
        return self._create(self._template)

    @cached_property
    def _template(self) -> str:
        self._run(f"CREATE DATABASE {TEMPLATE}")
        upgrade(self.postgres.url_of(TEMPLATE))
        return TEMPLATE

    def _create(self, template: str) -> str:
        name = f"bench_{next(self._numbers)}"
        self._run(f"CREATE DATABASE {name} TEMPLATE {template}")
        return self.postgres.url_of(name)

    def _run(self, statement: str) -> None:
        with psycopg.connect(self.postgres.url_of("postgres"), autocommit=True) as connection:
            connection.execute(statement.encode())

    def _emptied_broker(self) -> str:
        """Return the URL of the broker without the wake-ups of jobs in other databases, which nobody would take."""
        with redis.Redis(unix_socket_path=str(self.valkey.socket_path)) as broker:
            broker.flushdb()
        return self.valkey.url

    @contextmanager
    def planq(
        self, *, io: int = 2, cpu: int = 1, is_apart: bool = False, env: Mapping[str, str] | None = None
    ) -> Iterator[Stack]:
        """Run planq on a new database: an API and so many workers, with default settings but those in `env`.

        Where it `is_apart`, each priority has an `io` worker of its own beside these.
        The tools are those of `tests.bench.tools`. `env` may name a `DATABASE_URL` or `BROKER_URL` of its own.
        Without a broker of its own, only one may run at a time, and it finds no messages of the one before.
        """
        own = {"PLANQ_TOOLS": "tests.bench.tools", **(env or {})}
        database_url = own.pop("DATABASE_URL", "") or self.create_migrated()
        broker_url = own.pop("BROKER_URL", "") or self._emptied_broker()
        stack = Stack(self.new_folder("planq"), database_url, broker_url, env=own, fresh=True)
        defaults = Settings.model_fields
        try:
            stack.run("api", "-m", "planq.api")
            for pool, count in (("io", io), ("cpu", cpu)):
                size = int(own.get(f"PLANQ_{pool.upper()}_CONCURRENCY") or defaults[f"{pool}_concurrency"].default)
                for number in range(1, count + 1):
                    stack.run_worker(pool, number, concurrency=size)
            for priority in Priority if is_apart else ():
                stack.run(f"io-{priority}", "-m", "planq.worker", "io", "--priority", priority)
            stack.wait_ready()
            yield stack
        finally:
            stack.stop()
