"""B8: what submitting and looking costs with a million finished jobs stored, against a database that is empty.

Both databases lie on one server, each has an API and workers of its own; every request goes to one and then to the
other, so that whatever else happens on the machine meets both.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import psycopg

from planq.deploy.local.valkey import EmbeddedValkey
from tests.bench.client import Client, run
from tests.bench.context import Context
from tests.bench.figures import Bound, Figure
from tests.bench.history import filling, patterns
from tests.bench.jobs import finished

STORED, QUICK_STORED = 1_000_000, 20_000
ROUNDS, QUICK_ROUNDS = 200, 100
PATTERNS = 20
SAMPLE = 1000
"""How many of the stored jobs are looked at, spread over all of them."""

FACTOR = 1.2
MS = 1_000.0
EMPTY = "empty database"

_PLAN = {
    "calls": [
        {"tool_name": "calculate", "arguments": {"expression": expression}}
        for expression in ("6*7", "{{ $0.output.result }}+1", "{{ $1.output.result }}+1")
    ]
}
BODY = {"input": "Calculate.", "plan": _PLAN, "respond": "model"}
"""B1's job."""

_SAMPLE = "SELECT id::text FROM jobs WHERE status = 'completed' ORDER BY id"


@dataclass
class Place:
    """One of the two: a client of its API, the finished jobs that may be looked at, and what requests took."""

    client: Client
    known: list[str]
    submits: list[float] = field(default_factory=list)
    polls: list[float] = field(default_factory=list)

    async def round(self, body: Any, choose: Callable[[Sequence[str]], str]) -> None:
        """Submit a job, wait for its end, look at a finished one; only the first and the last are timed."""
        begun = perf_counter()
        answer = await self.client.post("/jobs", body)
        self.submits.append(perf_counter() - begun)
        job = answer.json()["id"]
        if (await self.client.get(f"/jobs/{job}?wait=30")).json()["status"] != "completed":
            raise RuntimeError(f"job {job} did not complete")
        self.known.append(job)
        chosen = choose(self.known)
        begun = perf_counter()
        found = await self.client.get(f"/jobs/{chosen}")
        self.polls.append(perf_counter() - begun)
        if found.status != 200:
            raise RuntimeError(f"job {chosen} was not found: {found.body[:200]!r}")


@dataclass(frozen=True, slots=True)
class Slowdown:
    """95th percentiles, in seconds, of the same requests to both places: (empty, full)."""

    submit: tuple[float, float]
    poll: tuple[float, float]


def measure(context: Context) -> list[Figure]:
    """Fill one of two databases, and compare; a quick run stores fewer jobs."""
    jobs = context.either(STORED, QUICK_STORED)
    broker = EmbeddedValkey(
        context.new_folder("valkey")
    )  # the workers of the two must not take each other's messages
    broker.start()
    try:
        full = context.create_migrated()
        with context.planq(env={**patterns.ENV, "DATABASE_URL": full}) as stack:
            chain, *_ = patterns.make(stack, full)  # B1's job
        context.say(f"B8 stores {jobs} finished jobs …")
        filling.fill(full, {chain: 1}, jobs, tenants=0)
        found = finished_jobs(full, SAMPLE)
        with (
            context.planq(io=1, env={"DATABASE_URL": full}) as filled,
            context.planq(io=1, env={"BROKER_URL": broker.url}) as empty,
        ):
            slowdowns = run(_compared(context, empty.url, filled.url, found))
    finally:
        broker.stop()
    note = "" if jobs == STORED else f"a quick run stores {QUICK_STORED:,} jobs in place of {STORED:,}"
    return [
        _figure(f"B8 submit p95 with {jobs:,} finished jobs stored", [one.submit for one in slowdowns], note),
        _figure(f"B8 poll p95 with {jobs:,} finished jobs stored", [one.poll for one in slowdowns], note),
    ]


def _figure(name: str, pairs: Sequence[tuple[float, float]], note: str) -> Figure:
    """Return the figure of the run whose ratio is the median: each run's two percentiles belong together."""
    empty, full = sorted(pairs, key=lambda pair: pair[1] / pair[0])[len(pairs) // 2]
    bounds = [Bound(FACTOR, EMPTY)]
    samples = [MS * one for _, one in pairs]
    return Figure(name, MS * full, "ms", limits={EMPTY: MS * empty}, bounds=bounds, samples=samples, note=note)


async def _finish_some(url: str) -> list[str]:
    async with Client(url) as client:
        return [(await finished(client, BODY))[0]["id"] for _ in range(PATTERNS)]


async def _compared(context: Context, empty_url: str, full_url: str, found: list[str]) -> list[Slowdown]:
    async with Client(empty_url) as empty, Client(full_url) as full:
        places = Place(empty, await _finish_some(empty_url)), Place(full, found)
        await compare(*places, BODY, PATTERNS)
        rounds = context.either(ROUNDS, QUICK_ROUNDS)
        return [await compare(*places, BODY, rounds) for _ in range(context.repeats)]


async def compare(empty: Place, full: Place, body: Any, rounds: int) -> Slowdown:
    """Ask both places in turn, so many times, and return what it took."""
    draw = random.Random(8)  # the same jobs in every run
    for place in (empty, full):
        place.submits.clear()
        place.polls.clear()
    for number in range(rounds):
        for place in (empty, full) if number % 2 else (full, empty):
            await place.round(body, draw.choice)
    return Slowdown(
        (percentile(empty.submits, 95), percentile(full.submits, 95)),
        (percentile(empty.polls, 95), percentile(full.polls, 95)),
    )


def percentile(values: Sequence[float], rank: float) -> float:
    """Return the least of the values that at least `rank` per cent of them do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * rank / 100) - 1)]


def finished_jobs(database_url: str, count: int) -> list[str]:
    """Return the ids of `count` finished jobs, from the oldest to the newest in equal steps, or of all there are."""
    with psycopg.connect(database_url) as connection:
        found = [row[0] for row in connection.execute(_SAMPLE)]
    return found if len(found) <= count else [found[index * len(found) // count] for index in range(count)]
