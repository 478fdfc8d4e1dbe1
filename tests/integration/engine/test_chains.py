"""A chain of steps: one of them fails or waits, its job is cancelled or paused, the process stops."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from shared.domain.errors import ExecutionFailed, Transient
from shared.domain.ids import StepRef
from shared.domain.states import Lane
from shared.ports import StepWake, Suspended
from tests.integration.engine.test_takes import statuses
from tests.support.harness import Harness, ScriptedModel, make_tool
from worker.tools import tool

Play = Callable[..., Any]
PATIENCE = 60


class Steps:
    """A pure tool `leaf` that counts its calls; `odd` says what comes of a call."""

    def __init__(self, odd: dict[int, Callable[[], Awaitable[Any]]] | None = None) -> None:
        self.calls = Counter[int]()
        self.reached = {n: asyncio.Event() for n in range(8)}
        self.odd = odd or {}

    async def run(self, n: int) -> dict[str, Any]:
        self.calls[n] += 1
        self.reached[n].set()
        if n in self.odd:
            special = await self.odd[n]()
            if special is not None:
                return special  # type: ignore[no-any-return]
        return {"n": n + 1}

    def tools(self) -> list[Any]:
        schema = {"type": "object", "properties": {"n": {"type": "integer"}, "big": {"type": "string"}}}

        @tool(name="leaf", effect="pure", output_schema=schema, retries=1)
        async def leaf(n: int) -> dict[str, Any]:
            """Return what comes after n."""
            return await self.run(n)

        return [make_tool(leaf)]


def chain(*tools: str) -> dict[str, Any]:
    """Each step counts one on from the step before it."""
    return {
        "calls": [
            {"tool_name": name, "arguments": {"n": f"${index - 1}.output.n" if index else 0}}
            for index, name in enumerate(tools)
        ]
    }


async def outcome(harness: Harness, job_id: UUID) -> tuple[str, list[Any], list[int]]:
    job, steps = await harness.requests.job("default", job_id)
    return job["status"], [step["output"] for step in steps], [step["attempt"] for step in steps]


async def fails() -> Any:
    raise ExecutionFailed("no")


async def waits() -> Any:
    return Suspended(timedelta(0), {"n": 3})


async def is_large() -> Any:
    return {"n": 3, "big": "x" * 100_000}


async def is_no_output() -> Any:
    return {"n": "three"}


async def is_a_defect() -> Any:
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("odd", "ends"),
    [
        (waits, ["succeeded"] * 5),
        (is_large, ["succeeded"] * 5),
        (fails, ["succeeded"] * 2 + ["failed"] + ["skipped"] * 2),
        (is_no_output, ["succeeded"] * 2 + ["failed"] + ["skipped"] * 2),
        (is_a_defect, ["succeeded"] * 2 + ["failed"] + ["skipped"] * 2),
    ],
)
def test_what_does_not_simply_succeed_goes_the_ordinary_way(
    play: Play, odd: Callable[[], Awaitable[Any]], ends: list[str]
) -> None:
    steps = Steps({2: odd})

    async def scenario(harness: Harness) -> Any:
        job_id = await harness.submit("", plan=chain(*["leaf"] * 5))
        await harness.drain()
        while await harness.sweeper.sweep():
            await harness.drain()
        return await statuses(harness, job_id), await outcome(harness, job_id)

    found, (status, outputs, attempts) = play(scenario, ScriptedModel(), steps.tools())
    assert (found, status, attempts[:3]) == (ends, "completed", [1, 1, 1])
    assert steps.calls[2] == 1, "what ended is not carried out again"
    if ends[-1] == "succeeded":
        assert outputs[4] == {"n": 5}


def test_a_failure_that_may_pass_is_tried_again(play: Play) -> None:
    async def once() -> Any:
        if steps.calls[2] == 1:
            raise Transient("try again")

    steps = Steps({2: once})

    async def scenario(harness: Harness) -> Any:
        job_id = await harness.submit("", plan=chain(*["leaf"] * 4))
        await harness.drain()
        assert await statuses(harness, job_id) == ["succeeded", "succeeded", "ready", "pending"]
        await harness.run_one(StepWake(StepRef(job_id, 0, 2), Lane.IO, "leaf"))
        await harness.drain()
        return await outcome(harness, job_id)

    assert play(scenario, ScriptedModel(), steps.tools()) == (
        *("completed", [{"n": n + 1} for n in range(4)]),
        [1, 1, 2, 1],
    )


@pytest.mark.parametrize("change", ["pause", "wind_down"])
def test_where_nothing_may_be_begun_the_next_step_is_ready_for_whoever_goes_on(play: Play, change: str) -> None:
    async def scenario(harness: Harness) -> Any:
        async def changed() -> Any:
            if change == "pause":
                await harness.requests.pause("default", job_id)
            else:
                harness.engine.wind_down()

        steps.odd[1] = changed
        job_id = await harness.submit("", plan=chain(*["leaf"] * 4))
        await harness.run_one(harness.published.pop())
        return await statuses(harness, job_id), harness.published, harness.engine.claims.in_flight

    steps = Steps()
    found, published, in_flight = play(scenario, ScriptedModel(), steps.tools())
    assert found == ["succeeded", "succeeded", "ready", "pending"]
    handed_on = [wake.ref.index for wake in published if isinstance(wake, StepWake)]
    assert (handed_on, in_flight) == ([2] if change == "wind_down" else [], 0)
    assert steps.calls == Counter(range(2))


class Stands:
    """A step that stands still in its first call, until it is cut off."""

    def __init__(self) -> None:
        self.cut_off = 0

    async def __call__(self) -> Any:
        if not self.cut_off:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cut_off += 1
                raise


async def in_the_second_step(harness: Harness, steps: Steps) -> tuple[UUID, asyncio.Task[Any]]:
    job_id = await harness.submit("", plan=chain(*["leaf"] * 3))
    running = asyncio.create_task(harness.run_one(harness.published.pop()))
    await asyncio.wait_for(steps.reached[1].wait(), PATIENCE)
    return job_id, running


def test_a_stopping_process_gives_back_the_step_that_it_carries_out(play: Play) -> None:
    steps = Steps({1: Stands()})

    async def scenario(harness: Harness) -> Any:
        job_id, running = await in_the_second_step(harness, steps)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await statuses(harness, job_id) == ["succeeded", "ready", "pending"]
        await harness.drain()
        return await outcome(harness, job_id), harness.engine.claims.in_flight

    found, in_flight = play(scenario, ScriptedModel(), steps.tools())
    assert (found, in_flight) == (("completed", [{"n": 1}, {"n": 2}, {"n": 3}], [1, 2, 1]), 0)


def test_a_call_under_way_is_cut_off_with_its_job(play: Play) -> None:
    stands = Stands()
    steps = Steps({1: stands})

    async def scenario(harness: Harness) -> Any:
        job_id, running = await in_the_second_step(harness, steps)
        await harness.requests.cancel("default", job_id)
        harness.engine.interrupt(job_id)
        await asyncio.wait_for(running, PATIENCE)
        return await statuses(harness, job_id), harness.engine.claims.in_flight

    assert play(scenario, ScriptedModel(), steps.tools()) == (["succeeded", "cancelled", "cancelled"], 0)
    assert stands.cut_off == 1
