"""The measurements themselves: each starts a planq of its own, loads it, and stops it, whatever happens."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import psycopg

from planq.shared.kernel.states import JobStatus
from planq.shared.platform.database import Database
from planq.shared.subjects.payloads.store import PayloadStore
from planq.shared.subjects.retention.store import Retention
from tests.bench import plans
from tests.bench.client import run
from tests.bench.scaling import ceilings
from tests.bench.scaling.gauges import Gauges
from tests.bench.scaling.installation import Installation, Servers
from tests.bench.scaling.load import at_rest, under_load
from tests.bench.scaling.network import Network
from tests.bench.scaling.usage import Ceilings, Usage

_CHAIN = {"input": "calculate 6*7, then calculate it / 4, then calculate it + 1"}
"""The offline rules make a chain of three steps of it, and the answer."""

_IN_FLIGHT = 32
"""Jobs under way at a time where the machine is to do all that it can."""

_STORED = """SELECT relname, pg_total_relation_size(oid)::float8 FROM pg_class
WHERE relkind = 'r' AND relnamespace = 'planq'::regnamespace"""

_CEILING_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured: `concurrency` places in a worker, `steps` in a job, `seconds` for each load."""

    workers: Sequence[int]
    concurrency: int
    tool_seconds: float
    steps: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Limit:
    """What the machine did at most: by number of workers, with the bytes that a job left stored, by table.

    `idle` is the use of `idle_workers` workers at rest, `removal` what it took to remove the jobs of it.
    """

    ceilings: Ceilings
    working: dict[int, Usage]
    stored: dict[str, float]
    idle: Usage
    idle_workers: int
    removal: Usage


def sleeping(sizes: Sizes, switch: Network | None) -> tuple[Ceilings, dict[int, Usage]]:
    """Return the ceilings, and what steps that sleep use, by number of workers: with a switch each on its own host.

    Twice as many steps are ready as there are places, so that no place waits for a plan.
    """
    body = plans.waiting(sizes.steps, sizes.tool_seconds)
    found = {}
    with _servers(switch) as servers:
        top = _ceilings(servers, sizes)
        for count in sizes.workers:
            slots = count * sizes.concurrency
            jobs = max(2, 2 * slots // sizes.steps)
            with _planq(servers, switch, count, sizes.concurrency) as (planq, gauges):
                load = under_load(
                    planq.url,
                    gauges,
                    body,
                    in_flight=jobs,
                    seconds=sizes.seconds,
                    warm_up=jobs,
                    slots=slots,
                    tool_seconds=sizes.tool_seconds,
                )
                found[count] = run(load)
    return top, found


def limit(sizes: Sizes) -> Limit:
    """Return what the machine does at most of jobs that wait for nothing, and what its idle workers use."""
    working: dict[int, Usage] = {}
    stored: dict[int, dict[str, float]] = {}
    with _servers(None) as servers:
        top = _ceilings(servers, sizes)
        for count in sizes.workers:
            with _planq(servers, None, count, sizes.concurrency) as (planq, gauges):
                load = under_load(
                    planq.url, gauges, _CHAIN, in_flight=_IN_FLIGHT, seconds=sizes.seconds, warm_up=2 * _IN_FLIGHT
                )
                before, jobs_before = _stored(servers)
                working[count] = run(load)
                after, jobs = _stored(servers)
                made = max(1, jobs - jobs_before)
                stored[count] = {table: (size - before[table]) / made for table, size in after.items()}
        most = max(sizes.workers)
        with _planq(servers, None, most, sizes.concurrency) as (_, gauges):
            idle = run(at_rest(gauges, sizes.seconds))
        removal = _removal(servers)
    fullest = max(working, key=lambda count: working[count].jobs_per_second)
    return Limit(top, working, stored[fullest], idle, most, removal)


def _ceilings(servers: Servers, sizes: Sizes) -> Ceilings:
    return ceilings.measure(servers.postgres.url, min(_CEILING_SECONDS, sizes.seconds))


def _removal(servers: Servers) -> Usage:
    """Remove every job as retention does, vacuum, and return what that took; `jobs` are those removed."""
    assert servers.postgres.pid is not None
    gauges = Gauges(servers.postgres.url, servers.valkey.socket_path, {"postgres": servers.postgres.pid})
    try:
        before = gauges.read()
        removed = asyncio.run(_remove(servers.postgres.url))
        _stored(servers)
        return replace(gauges.between(before, gauges.read()), jobs=removed)
    finally:
        gauges.close()


async def _remove(database_url: str) -> int:
    database = Database(database_url, max_connections=1)
    await database.open()
    try:
        store = Retention(database, {JobStatus.COMPLETED: timedelta(microseconds=1)}, PayloadStore(database))
        return sum([batch.count async for batch in store.remove() if batch.kind == JobStatus.COMPLETED])
    finally:
        await database.close()


def _stored(servers: Servers) -> tuple[dict[str, float], int]:
    """Return the bytes of each table with indexes and TOAST, once dead rows are gone, and how many jobs there are."""
    with psycopg.connect(servers.postgres.url, autocommit=True) as database:
        database.execute("VACUUM ANALYZE")
        sizes: dict[str, float] = dict(database.execute(_STORED).fetchall())
        row = database.execute("SELECT count(*) FROM jobs").fetchone()
    assert row is not None
    return sizes, row[0]


@contextmanager
def _servers(switch: Network | None) -> Iterator[Servers]:
    with tempfile.TemporaryDirectory(prefix="planq-scale-") as folder:
        servers = Servers(Path(folder), networked=switch is not None)
        try:
            servers.start()
            yield servers
        finally:
            servers.stop()


@contextmanager
def _planq(
    servers: Servers, switch: Network | None, workers: int, places: int
) -> Iterator[tuple[Installation, Gauges]]:
    """Start an API and so many workers; the gauges read their use."""
    with tempfile.TemporaryDirectory(prefix="planq-scale-") as folder:
        planq = Installation(Path(folder), servers, network=switch, concurrency=places)
        try:
            planq.start(workers)
            gauges = Gauges(servers.postgres.url, servers.valkey.socket_path, planq.pids)
            try:
                yield planq, gauges
            finally:
                gauges.close()
        finally:
            planq.stop()
