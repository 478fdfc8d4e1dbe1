"""planq as a subject of the benchmark: the workloads, asked for over HTTP as any client would."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any

from tests.bench import plans
from tests.bench.client import Client, run
from tests.bench.jobs import finished
from tests.bench.peers.orders import WAIT_SECONDS

TOOLS = 3
"""Of a job of B1 and B2: with the planning before and the answer after them there are five, as in a peer's job."""

CONNECTIONS = 32
"""Requests under way at once in B2."""

PATIENCE_SECONDS = 180.0

Work = Callable[[Client, int], Awaitable[None]]


class Planq:
    """A running planq behind `url`.

    With `cpu_seconds`, what all of it has used so far, `cpu_of_jobs` has the cost of a job of each run of many.
    """

    def __init__(self, url: str, cpu_seconds: Callable[[], float] | None = None) -> None:
        self._url = url
        self._cpu_seconds = cpu_seconds
        self.cpu_of_jobs: list[float] = []

    def run(self, workload: str, *, size: int, times: int) -> list[float]:
        """Do a workload `times` times and return the seconds of each; raises when a job does not complete."""
        if self._cpu_seconds is None or workload not in MANY:
            return run(self._timed(WORK[workload], size, times))
        before = self._cpu_seconds()
        seconds = run(self._timed(WORK[workload], size, times))
        self.cpu_of_jobs.append((self._cpu_seconds() - before) / (size * times))
        return seconds

    async def _timed(self, work: Work, size: int, times: int) -> list[float]:
        seconds = []
        async with asyncio.timeout(PATIENCE_SECONDS), Client(self._url, connections=CONNECTIONS) as client:
            await client.get("/healthz")  # opens the connection, as any client has one
            for _ in range(times):
                begun = perf_counter()
                await work(client, size)
                seconds.append(perf_counter() - begun)
        return seconds


async def one(client: Client, _: int, tools: Sequence[str] = plans.FUSED) -> None:
    """Send a job and wait for its answer."""
    await _check(client, plans.asking(TOOLS, tools), TOOLS)


async def brought(client: Client, _: int) -> None:
    """Send a job with its plan, and have its end in the answer to the same request."""
    answer = await client.post("/jobs?wait=30", plans.brought(TOOLS))
    expect_completed(answer.json(), TOOLS)


async def many(client: Client, jobs: int, tools: Sequence[str] = plans.FUSED) -> None:
    """Send all jobs, then wait for every one's answer."""
    body = plans.asking(TOOLS, tools)

    async def submit() -> str:
        answer = await client.post("/jobs", body)
        if answer.status != 202:
            raise RuntimeError(f"expected an accepted job, found {answer.status}: {answer.body[:500]!r}")
        return str(answer.json()["id"])

    async def wait(job_id: str) -> None:
        job: dict[str, Any] = {"status": "queued"}
        while job["status"] in ("queued", "planning", "executing", "responding"):
            job = (await client.get(f"/jobs/{job_id}?wait=60")).json()
        expect_completed(job, TOOLS)

    await asyncio.gather(*map(wait, await asyncio.gather(*(submit() for _ in range(jobs)))))


async def fan(client: Client, width: int) -> None:
    """Run waiting steps beside one another, then a join."""
    await _check(client, plans.gathering(width, WAIT_SECONDS), width + 1)


async def long(client: Client, steps: int, tools: Sequence[str] = plans.FUSED) -> None:
    """Run a chain of so many steps."""
    await _check(client, plans.chains(steps, steps, tools), steps)


async def turns(client: Client, count: int) -> None:
    """Run a job in which the model calls one tool after the other, a turn for each, and answers."""
    job, _ = await finished(client, plans.turns(count))
    expect_completed(job, count)
    if (job["round"], job["stop_reason"], job["model_calls"]) != (count, "answered", count + 1):
        raise RuntimeError(f"expected {count} rounds and an answer, found {str(job)[:500]}")


WORK: dict[str, Work] = {
    "B1": one,
    "B1b": brought,
    "B1r": partial(one, tools=plans.ORDINARY),
    "B2": many,
    "B2r": partial(many, tools=plans.ORDINARY),
    "B3": fan,
    "B4": long,
    "B4r": partial(long, tools=plans.ORDINARY),
    "B14": turns,
}

MANY = frozenset({"B2", "B2r"})
"""Workloads whose jobs are so many that the cost of one can be told."""


async def _check(client: Client, body: plans.Body, steps: int) -> None:
    job, _ = await finished(client, body)
    expect_completed(job, steps)


def expect_completed(job: dict[str, Any], steps: int) -> None:
    """Raise `RuntimeError` unless a job is completed and has so many steps, all succeeded."""
    found = [step["status"] for step in job.get("steps", ())]
    if job.get("status") != "completed" or found != ["succeeded"] * steps:
        raise RuntimeError(f"expected a completed job of {steps} steps, found {str(job)[:500]}")
