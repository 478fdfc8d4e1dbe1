"""B7: what a step costs in a plan of ten thousand, against one of a hundred: time, and CPU seconds of all processes.

The plans are of one kind, chains of ten steps beside one another, so that what differs is their number alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.bench import plans
from tests.bench.client import Client, run
from tests.bench.context import Context
from tests.bench.figures import Bound, Figure
from tests.bench.jobs import cpu_seconds, finished, processes
from tests.support.stack import Stack

CHAIN = 10
SMALL, LARGE, QUICK_LARGE = 100, 10_000, 3_000
FACTOR = 1.2
MS = 1_000.0


@dataclass(frozen=True, slots=True)
class Cost:
    """What each step of a plan cost: seconds, and CPU seconds of all processes together."""

    wall: float
    cpu: float


def measure(context: Context) -> list[Figure]:
    """Run, in turns, one large plan and as many steps in small ones, one plan at a time."""
    large = context.either(LARGE, QUICK_LARGE)
    with context.planq() as stack:
        pids = processes(context, stack)
        costs = run(_costs(stack, large, context.repeats, lambda: cpu_seconds(pids)))
    return [
        _figure("time", large, [(small.wall, one.wall) for small, one in costs]),
        _figure("CPU of all processes", large, [(small.cpu, one.cpu) for small, one in costs]),
    ]


def _figure(what: str, large: int, pairs: Sequence[tuple[float, float]]) -> Figure:
    """Return the figure of one kind of cost from (small, large) pairs."""
    base = f"plan of {SMALL}"
    return Figure(
        f"B7 {what} per step, plan of {large}",
        MS * statistics.median(one for _, one in pairs),
        "ms",
        limits={base: MS * statistics.median(small for small, _ in pairs)},
        bounds=[Bound(FACTOR, base)],
        samples=[MS * one for _, one in pairs],
        note="" if large == LARGE else f"a quick run has plans of {QUICK_LARGE} steps in place of {LARGE}",
    )


async def _costs(stack: Stack, large: int, times: int, cpu_spent: Callable[[], float]) -> list[tuple[Cost, Cost]]:
    async with Client(stack.url) as client:
        for steps in (SMALL, large):
            await _cost(client, steps, 1, cpu_spent)
        return [
            (await _cost(client, SMALL, 10, cpu_spent), await _cost(client, large, 1, cpu_spent))
            for _ in range(times)
        ]


async def _cost(client: Client, steps: int, jobs: int, cpu_spent: Callable[[], float]) -> Cost:
    """Carry out so many plans of so many steps, one after the other, and return what a step cost."""
    body = plans.chains(steps, CHAIN)
    before, wall = cpu_spent(), 0.0
    for _ in range(jobs):
        wall += (await finished(client, body))[1]
    return Cost(wall / (jobs * steps), (cpu_spent() - before) / (jobs * steps))
