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

from tests.bench.client import Client

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
    """95th percentiles, in seconds, of the same requests to both places."""

    submit: tuple[float, float]
    poll: tuple[float, float]

    @property
    def worst(self) -> float:
        """How many times as long the slower kind of request takes where the many jobs are stored."""
        return max(full / empty for empty, full in (self.submit, self.poll))


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
