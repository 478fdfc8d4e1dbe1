"""B5: a thousand steps that wait a second, all at once on one worker process: how long, and how much memory."""

from __future__ import annotations

import statistics
from typing import NamedTuple

from tests.bench import plans
from tests.bench.client import Client, run
from tests.bench.context import Context
from tests.bench.figures import Bound, Figure
from tests.bench.jobs import finished, peak_memory
from tests.support.stack import Stack

SECONDS = 1.0
STEPS, MANY_STEPS = 1000, 5000
MAKESPAN, MEMORY_MB, MANY_MAKESPAN = 1.3, 250.0, 2.0
SPARE = 100
"""Places of the worker beyond the steps, so that none of them waits for a place."""

_NOTE = "one `io` worker with a place for every step; from the request to the answer seen by long-poll"


class Taken(NamedTuple):
    """Seconds of each run, and the most memory, in MB, that the worker had in all of them."""

    seconds: list[float]
    memory: float


def measure(context: Context) -> list[Figure]:
    """Run plans of waiting steps one after the other; the moonshot's size is measured in full runs only."""
    taken = _taken(context, STEPS)
    figures = [
        _makespan(taken, STEPS, Bound(MAKESPAN)),
        Figure("B5 memory of that worker (RSS)", taken.memory, "MB", MEMORY_MB),
    ]
    if not context.quick:
        figures.append(_makespan(_taken(context, MANY_STEPS), MANY_STEPS))
    return figures


def _makespan(taken: Taken, steps: int, *bounds: Bound) -> Figure:
    return Figure(
        f"B5 {steps} steps waiting 1 s: makespan",
        statistics.median(taken.seconds),
        "s",
        limits={"the wait": SECONDS},
        bounds=bounds,
        samples=taken.seconds,
        note=_NOTE,
    )


def _taken(context: Context, steps: int) -> Taken:
    with context.planq(io=1, env={"PLANQ_IO_CONCURRENCY": str(steps + SPARE)}) as stack:
        seconds = run(_makespans(stack, steps, context.repeats))
        return Taken(seconds, peak_memory(stack.processes["io-1"].pid))


async def _makespans(stack: Stack, steps: int, times: int) -> list[float]:
    async with Client(stack.url) as client:
        await finished(client, plans.waiting(steps, 0.0))
        return [(await finished(client, plans.waiting(steps, SECONDS)))[1] for _ in range(times)]
