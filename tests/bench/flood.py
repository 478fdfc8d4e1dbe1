"""B18: interactive jobs one after the other, first alone, then beside more bulk jobs than there are slots.

There are as many as batches let in on two workers (`planq_window`). Those of the first flood wait, as calls of
models do: they hold every slot that bulk work may. Those of the second do not: they take all processors, which slots
do not divide. The third is as the second, where each of the two workers serves one priority.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence

from tests.bench import plans
from tests.bench.client import Client, run
from tests.bench.context import Context
from tests.bench.figures import Bound, Figure
from tests.bench.jobs import finished
from tests.bench.submitting import CONNECTIONS, TOOLS

JOBS, QUICK_JOBS = 300, 100
WAITING, WAIT_SECONDS = 900, 60.0
COMPUTING = 3_000
PAUSE_SECONDS = 0.02
MOST, MOST_APART = 2.0, 3.0
MS = 1_000.0


def measure(context: Context) -> list[Figure]:
    """Measure alone and beside each flood, each on a planq of its own."""
    jobs = context.either(JOBS, QUICK_JOBS)
    waiting = _beside(context, jobs, [plans.waiting(1, WAIT_SECONDS)] * WAITING)
    flood = [plans.asking(TOOLS)] * COMPUTING
    computing = _beside(context, jobs, flood)
    apart = _beside(context, jobs, flood, is_apart=True)
    return [
        _figure(f"B18 p95 beside {WAITING} bulk jobs that wait", *waiting, Bound(MOST, "idle")),
        _figure(f"B18 p95 beside {COMPUTING} bulk jobs that compute", *computing),
        _figure("B18 p95 beside as many in a worker of their own", *apart, Bound(MOST_APART, "idle")),
    ]


def _figure(title: str, idle: Sequence[float], beside: Sequence[float], *bounds: Bound) -> Figure:
    return Figure(
        title,
        MS * _p95(beside),
        "ms",
        limits={"idle": MS * _p95(idle)},
        bounds=bounds,
        samples=[MS * seconds for seconds in beside],
        note="a job of B1 after the other, from the request to the answer",
    )


def _p95(seconds: Sequence[float]) -> float:
    return statistics.quantiles(seconds, n=20)[-1]


def _beside(
    context: Context, jobs: int, flood: Sequence[plans.Body], *, is_apart: bool = False
) -> tuple[Sequence[float], Sequence[float]]:
    with context.planq(io=0 if is_apart else 2, is_apart=is_apart) as stack:
        return run(_measured(stack.url, jobs, flood))


async def _measured(url: str, jobs: int, flood: Sequence[plans.Body]) -> tuple[Sequence[float], Sequence[float]]:
    async with Client(url, connections=1) as client, Client(url, connections=CONNECTIONS) as crowd:
        await client.answering()
        await _one_after_the_other(client, jobs // 3)
        idle = await _one_after_the_other(client, jobs)
        await asyncio.gather(*(_submit(crowd, body) for body in flood))
        return idle, await _one_after_the_other(client, jobs)


async def _one_after_the_other(client: Client, jobs: int) -> list[float]:
    seconds = []
    for _ in range(jobs):
        seconds.append((await finished(client, plans.asking(TOOLS)))[1])
        await asyncio.sleep(PAUSE_SECONDS)
    return seconds


async def _submit(client: Client, body: plans.Body) -> None:
    answer = await client.post("/jobs", {**body, "priority": "bulk"})
    if answer.status != 202:
        raise RuntimeError(f"expected an accepted job, found {answer.status}: {answer.body[:500]!r}")
