"""B27: what listings, searches, actions, sweeps, `/metrics` and commands take beside a long history.

The same requests go to a planq whose database holds next to nothing, and then to one with the history; a tenant with
a sixth of all jobs and one with few ask. What takes more than 1.2 × as long and more than 20 ms is too slow.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import httpx
import psycopg

from planq.shared.platform.database import Database
from planq.shared.subjects.tenants.api_keys import ApiKeyStore
from planq.shared.subjects.tenants.keys import KeyScope
from tests.bench import plans
from tests.bench.context import Context
from tests.bench.figures import Bound, Figure
from tests.bench.history import filling, patterns
from tests.bench.jobs import cpu_seconds
from tests.support.stack import Stack
from tests.support.waiting import eventually

JOBS, QUICK_JOBS = 1_000_000, 20_000
FEW_JOBS = 1_200
TIMES, QUICK_TIMES = 11, 5
VACUUM_SECONDS = 900.0
REST_SECONDS, QUICK_REST_SECONDS = 20.0, 6.0
FACTOR, LEAST_MS = 1.2, 20.0
MOST_AT_REST = 2.0
MS = 1_000.0
EMPTY = "empty database"
AT_REST = "PostgreSQL's CPU at rest"

READS = (
    "/jobs",
    "/jobs?roots=true",
    "/jobs?status=completed&limit=50",
    "/jobs?strategy=loop&status=failed",
    "/jobs?strategy=guided",
    "/jobs?status=responding",
    "/jobs?status=input_required",
    "/tasks",
    "/plans",
    "/conversations",
    "/conversations?channel=none",
    "/batches",
    "/elicitations?status=open",
    "/elicitations?status=declined",
    "/deliveries",
    "/deliveries?status=failed",
    "/schedules",
    "/agents",
)
"""What each of the two tenants is asked for."""

_KEEPS = {f"PLANQ_RETAIN_{what}_DAYS": "none" for what in ("COMPLETED", "FAILED", "CANCELLED", "DELIVERIES")}
"""Two thirds of the history are older than jobs are kept: to remove them is work of its own."""

COMMANDS = ("inbox", "conversations list", "jobs", "retention --dry-run")
"""What is asked of `planq` in a terminal."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of a tenant with many jobs and of one with few."""

    large: str
    small: str


def measure(context: Context) -> list[Figure]:
    """Make both databases, and ask both."""
    jobs = context.either(JOBS, QUICK_JOBS)
    empty = _asked(context, FEW_JOBS)
    context.say(f"B27 makes a history of {jobs:,} jobs …")
    filled = _asked(context, jobs)
    note = "" if jobs == JOBS else f"a quick run has {jobs:,} jobs in place of {JOBS:,}"
    return [_figure(name, empty[name], value, note) for name, value in filled.items()]


def _figure(name: str, empty: float, filled: float, note: str) -> Figure:
    if name == AT_REST:
        return Figure(f"B27 {name}", filled, "%", limit=MOST_AT_REST, limits={EMPTY: empty}, note=note)
    bound = Bound(FACTOR, EMPTY) if FACTOR * empty > LEAST_MS else Bound(LEAST_MS)
    return Figure(f"B27 {name}", filled, "ms", limits={EMPTY: empty}, bounds=[bound], note=note)


@contextmanager
def filled(context: Context, jobs: int, *, tenants: int = filling.TENANTS) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Make a history of about so many jobs; yields its database's URL, and the settings to run planq with.

    Without `tenants` all are of the default one.
    """
    database_url = context.create_migrated()
    env = {**patterns.ENV, **_KEEPS, "DATABASE_URL": database_url}
    with context.planq(io=1, env=env) as stack:
        shares = patterns.make(stack, database_url)
    filling.fill(database_url, shares, jobs, tenants=tenants)
    yield database_url, env


def _asked(context: Context, jobs: int) -> dict[str, float]:
    with filled(context, jobs) as (database_url, env):
        keys = asyncio.run(_keys(database_url))
        begun = perf_counter()
        with context.planq(io=2, env=env) as stack:
            found = {"start of API and workers": MS * (perf_counter() - begun)}
            found |= _times(context, stack, keys)
            found |= _commands(stack, keys, database_url)
            found[AT_REST] = _at_rest(context, database_url)
    return found


async def _keys(database_url: str) -> Keys:
    with psycopg.connect(database_url) as connection:
        known = connection.execute("SELECT tenant_id FROM jobs GROUP BY 1 ORDER BY count(*)").fetchall()
    async with Database(database_url, max_connections=1) as database:
        store = ApiKeyStore(database)
        large, small = [
            (await store.create(tenant, "bench", frozenset(KeyScope), None))[1]
            for tenant in (known[-1][0], known[0][0])
        ]
    return Keys(large, small)


def _times(context: Context, stack: Stack, keys: Keys) -> dict[str, float]:
    times = context.either(TIMES, QUICK_TIMES)
    found = {}
    with httpx.Client(base_url=stack.url, timeout=300, trust_env=False) as client:

        def get(path: str, key: str) -> None:
            client.get(path, headers={"Authorization": f"Bearer {key}"}).raise_for_status()

        def act(body: plans.Body) -> None:
            made = client.post("/jobs", json=body).raise_for_status().json()
            ended = client.get(f"/jobs/{made['id']}?wait=60").json()
            if ended["status"] != "completed":
                raise RuntimeError(f"expected a completed job, found {ended}")

        for path in READS:
            found[f"GET {path}, many jobs"] = _median(times, partial(get, path, keys.large))
            found[f"GET {path}, few jobs"] = _median(times, partial(get, path, keys.small))
        found["GET /events?follow=false&after=0-0, few jobs"] = _median(
            3, lambda: get("/events?follow=false&after=0-0", keys.small)
        )
        found["GET /metrics"] = _median(times, lambda: client.get("/metrics").raise_for_status())
        found["GET /readyz"] = _median(times, lambda: client.get("/readyz").raise_for_status())
        found["a job, to its answer"] = _median(times, lambda: act(plans.asking(3)))
        wait = {"input": "Wait.", "plan": {"calls": [{"tool_name": "wait", "arguments": {"seconds": 1}}]}}
        found["a timer of 1 s"] = _median(5, lambda: act(wait))
    return found


def _median(times: int, ask: Callable[[], object]) -> float:
    ask()
    taken = []
    for _ in range(times):
        begun = perf_counter()
        ask()
        taken.append(perf_counter() - begun)
    return MS * statistics.median(taken)


def _commands(stack: Stack, keys: Keys, database_url: str) -> dict[str, float]:
    env = {**os.environ, "PLANQ_URL": stack.url, "PLANQ_API_KEY": keys.large, "DATABASE_URL": database_url}

    def run(arguments: str) -> None:
        program = [sys.executable, "-m", "planq.deploy.cli.main", *arguments.split()]
        subprocess.run(program, env=env, check=True, capture_output=True)

    return {f"planq {given}": _median(3, partial(run, given)) for given in COMMANDS}


def _at_rest(context: Context, database_url: str) -> float:
    """Return what PostgreSQL computes while nothing runs, in hundredths of a core.

    The history's maker has written in minutes what planq writes in months: the vacuum after it is no rest.
    """
    pid = context.postgres.pid
    if pid is None:
        raise RuntimeError("the embedded PostgreSQL has ended")
    seconds = float(context.either(int(REST_SECONDS), int(QUICK_REST_SECONDS)))
    with psycopg.connect(database_url, autocommit=True) as connection:
        eventually(lambda: not _vacuums(connection), VACUUM_SECONDS, every=2, what="the vacuum of the history ends")
    time.sleep(2)
    begun, before = perf_counter(), cpu_seconds([pid])
    time.sleep(seconds)
    return 100 * (cpu_seconds([pid]) - before) / (perf_counter() - begun)


def _vacuums(connection: psycopg.Connection[tuple[int]]) -> bool:
    found = connection.execute("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'autovacuum worker'")
    return found.fetchone() != (0,)
