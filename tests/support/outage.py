"""Ways in which a database is not there: closed, cut off, read-only, locked. Each holds as long as its `with`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
from psycopg import sql


@contextmanager
def administered(url: str) -> Iterator[Callable[[str], None]]:
    """Yield a function that runs a statement about the database (`{}` is its name) from beside it."""
    name = str(psycopg.conninfo.conninfo_to_dict(url)["dbname"])
    with psycopg.connect(psycopg.conninfo.make_conninfo(url, dbname="postgres"), autocommit=True) as connection:

        def run(statement: str) -> None:
            connection.execute(sql.SQL(statement).format(sql.Identifier(name)))

        yield run


def cut(url: str) -> None:
    """End every connection, as a restart or a failover does, and wait until they have ended (10 s at most)."""
    name = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
    with psycopg.connect(psycopg.conninfo.make_conninfo(url, dbname="postgres"), autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = %s", [name])


@contextmanager
def closed(url: str) -> Iterator[None]:
    """No connection is left, and none is taken."""
    with administered(url) as run:
        run("ALTER DATABASE {} ALLOW_CONNECTIONS false")
        cut(url)
        try:
            yield
        finally:
            run("ALTER DATABASE {} ALLOW_CONNECTIONS true")


@contextmanager
def read_only(url: str) -> Iterator[None]:
    """What is left takes no writes: a standby after a failover."""
    with administered(url) as run:
        run("ALTER DATABASE {} SET default_transaction_read_only = on")
        cut(url)
        try:
            yield
        finally:
            run("ALTER DATABASE {} RESET default_transaction_read_only")


@contextmanager
def locked(url: str) -> Iterator[psycopg.Connection]:
    """Every statement about jobs, tools, artifacts and workers waits; yields the connection that holds the locks."""
    with psycopg.connect(url) as connection:
        connection.execute("LOCK TABLE jobs, tools, artifacts, workers IN ACCESS EXCLUSIVE MODE")
        yield connection
