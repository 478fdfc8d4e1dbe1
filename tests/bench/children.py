"""B13: what a child job costs that a step hands over to, of 200 of one step, against a step of a plan as wide.

The child is the smallest there is: an agent without tools, whose model is planq's own rules, so that it is one stage.
The plan beside it has as many steps that do nothing, and a join. Time, and CPU seconds of all processes.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import httpx

from planq.shared.agentic.tools.contract import ToolContext
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.children import ChildOutcome, ChildRequest, Delegated
from planq.shared.kernel.states import Effect, JobStatus, JoinPolicy, StepKind
from planq.shared.platform.errors import ToolFailed
from tests.bench import plans
from tests.bench.client import Client, run
from tests.bench.context import Context
from tests.bench.figures import Figure
from tests.bench.jobs import cpu_seconds, finished, processes
from tests.support.stack import Stack

CHILDREN = 200
AGENT = "bench-child"
MS = 1_000.0
STEP = "a step"

Cost = tuple[float, float]
"""Seconds, and CPU seconds of all processes, of each child or step."""


class FanOut:
    """The tool `bench_children`: hands over to as many child jobs as it is told, all at once."""

    definition = ToolDefinition(
        name="bench_children",
        input_schema={"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]},
        output_schema={"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]},
        effect=Effect.IDEMPOTENT,
        retries=0,
        kind=StepKind.PARALLEL,
    )

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Delegated:
        """Delegate."""
        count = arguments["count"]
        children = [ChildRequest(AGENT, f"Say {number}.", 60.0) for number in range(count)]
        return Delegated(children, JoinPolicy.ALL, max_parallel=count)

    async def gather(
        self, arguments: dict[str, Any], children: Sequence[ChildOutcome], note: Any, context: ToolContext
    ) -> dict[str, int]:
        """Count the children; raises `ToolFailed` unless all of them have completed."""
        completed = sum(child.status is JobStatus.COMPLETED for child in children)
        if completed != len(children):
            raise ToolFailed(f"{completed} of {len(children)} child jobs completed")
        return {"count": completed}


fan_out = FanOut()


def measure(context: Context) -> list[Figure]:
    """Run, in turns, one step of 200 children and one plan of 200 steps."""
    with context.planq(env={"PLANQ_TOOLS": "tests.bench.tools,tests.bench.children:fan_out"}) as stack:
        document = {"name": AGENT, "description": "You say what you are asked to say.", "model": "offline"}
        httpx.put(f"{stack.url}/agents/{AGENT}", json=document, timeout=30).raise_for_status()
        pids = processes(context, stack)
        pairs = run(_costs(stack, context.repeats, lambda: cpu_seconds(pids)))
    return [
        _figure("time", [(step[0], child[0]) for step, child in pairs]),
        _figure("CPU of all processes", [(step[1], child[1]) for step, child in pairs]),
    ]


def _figure(what: str, pairs: Sequence[tuple[float, float]]) -> Figure:
    """Return the figure of one kind of cost from (step, child) pairs."""
    return Figure(
        f"B13 {what} of a child job, {CHILDREN} of one step",
        MS * statistics.median(child for _, child in pairs),
        "ms",
        limits={STEP: MS * statistics.median(step for step, _ in pairs)},
        samples=[MS * child for _, child in pairs],
    )


async def _costs(stack: Stack, times: int, cpu_spent: Callable[[], float]) -> list[tuple[Cost, Cost]]:
    steps, children = plans.fan_in(CHILDREN), plans.children(CHILDREN)
    async with Client(stack.url) as client:
        for body in (steps, children):
            await _cost(client, body, cpu_spent)
        return [
            (await _cost(client, steps, cpu_spent), await _cost(client, children, cpu_spent)) for _ in range(times)
        ]


async def _cost(client: Client, body: plans.Body, cpu_spent: Callable[[], float]) -> Cost:
    before = cpu_spent()
    _, wall = await finished(client, body)
    return wall / CHILDREN, (cpu_spent() - before) / CHILDREN
