"""Chains of pure steps are stored in one commit; and what becomes of them when it does not come so far."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from planq.shared.agentic.tools.contract import Suspended, ToolContext
from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.states import Pool
from planq.shared.kernel.wakes import Wake
from planq.shared.platform.errors import DatabaseUnavailable, ExecutionFailed, OwnershipLost, Transient
from planq.worker.tools import tool
from tests.integration.engine.test_takes import statuses
from tests.support.harness import Harness, ScriptedModel, make_tool

Play = Callable[..., Any]
PATIENCE = 60


class Steps:
    """Tools `leaf` (pure) and `look` (reads) that count their calls; `odd` says what comes of a call."""

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

        @tool(name="look", effect="read", output_schema=schema)
        async def look(n: int) -> dict[str, Any]:
            """Return what comes after n."""
            return await self.run(n)

        return [make_tool(leaf), make_tool(look)]


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


async def kinds(harness: Harness, job_id: UUID) -> list[tuple[str, int]]:
    async with harness.database.connection() as connection:
        rows = await connection.execute(
            b"SELECT kind, data->>'index' AS index FROM events "
            b"WHERE job_id = %s AND kind LIKE 'step%%' ORDER BY sequence",
            [job_id],
        )
        return [(row["kind"].removeprefix("step_"), int(row["index"])) for row in await rows.fetchall()]


def units(harness: Harness) -> list[int]:
    """Return where the sizes of the units appear that the harness stores from now on."""
    sizes: list[int] = []
    real = harness.store.succeed_step

    async def counted(*arguments: Any, **named: Any) -> Any:
        sizes.append(1 + len(named["unit"]))
        return await real(*arguments, **named)

    harness.store.succeed_step = counted  # type: ignore[method-assign]
    return sizes


def test_a_chain_of_pure_steps_ends_in_one_commit_and_each_step_is_shown(play: Play) -> None:
    steps = Steps()

    async def scenario(harness: Harness) -> Any:
        sizes, shown = units(harness), list[tuple[str, int, int]]()

        def show(kind: str) -> Callable[..., None]:
            return lambda claim, *_: shown.append((kind, claim.ref.index, claim.attempt))

        harness.silent.started, harness.silent.ended = show("started"), show("ended")  # type: ignore[method-assign]
        job_id = await harness.submit("", plan=chain(*["leaf"] * 5))
        await harness.run_one(harness.published.pop())
        assert await kinds(harness, job_id) == [(kind, n) for n in range(5) for kind in ("started", "succeeded")]
        return sizes, await outcome(harness, job_id), shown, harness.dispatcher.in_flight.count

    sizes, found, shown, in_flight = play(scenario, ScriptedModel(), steps.tools())
    assert found == ("completed", [{"n": n + 1} for n in range(5)], [1] * 5)
    assert sorted(shown[:10]) == sorted((kind, n, 1) for n in range(5) for kind in ("started", "ended"))
    assert (sizes, in_flight) == ([5], 0)
    assert steps.calls == Counter(range(5))


@pytest.mark.parametrize(
    ("tools", "bound", "sizes"),
    [
        (["leaf"] * 8, ("MAX_FUSED_STEPS", 2), [3, 3, 2]),
        (["leaf"] * 3, ("FUSED_SECONDS", 0.0), [1, 1, 1]),
        (["leaf", "leaf", "look", "leaf", "leaf"], ("MAX_FUSED_STEPS", 2), [2, 1, 2]),
    ],
    ids=["so many", "so long", "what looks at the world"],
)
def test_a_unit_ends_there(
    play: Play, monkeypatch: pytest.MonkeyPatch, tools: list[str], bound: tuple[str, float], sizes: list[int]
) -> None:
    async def scenario(harness: Harness) -> Any:
        found = units(harness)
        job_id = await harness.submit("", plan=chain(*tools))
        await harness.drain()
        return found, await outcome(harness, job_id)

    monkeypatch.setattr(f"planq.worker.handlers.step.{bound[0]}", bound[1])
    count = len(tools)
    ended = ("completed", [{"n": n + 1} for n in range(count)], [1] * count)
    assert play(scenario, ScriptedModel(), Steps().tools()) == (sizes, ended)


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
        await harness.run_one(Wake(StepRef(job_id, 0, 2), Pool.IO, "leaf"))
        await harness.drain()
        return await outcome(harness, job_id)

    assert play(scenario, ScriptedModel(), steps.tools()) == (
        *("completed", [{"n": n + 1} for n in range(4)]),
        [1, 1, 2, 1],
    )


def test_a_process_that_winds_down_stores_what_has_run_and_begins_no_further_step(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        async def winds_down() -> Any:
            harness.dispatcher.wind_down()

        steps.odd[1] = winds_down
        job_id = await harness.submit("", plan=chain(*["leaf"] * 4))
        await harness.run_one(harness.published.pop())
        return await statuses(harness, job_id), harness.published, harness.dispatcher.in_flight.count

    steps = Steps()
    found, published, in_flight = play(scenario, ScriptedModel(), steps.tools())
    assert found == ["succeeded", "succeeded", "ready", "pending"]
    handed_on = [wake.ref.index for wake in published if not wake.ref.is_stage]
    assert (handed_on, in_flight) == ([2], 0)
    assert steps.calls == Counter(range(2))


def test_what_has_run_of_a_unit_is_thrown_away_where_its_job_is_paused_by_then(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        async def paused() -> Any:
            if steps.calls[1] == 1:
                assert (await harness.requests.pause("default", job_id)).applied

        steps.odd[1] = paused
        job_id = await harness.submit("", plan=chain("leaf", "leaf", "leaf", "look"))
        await harness.run_one(harness.published.pop())
        before = await statuses(harness, job_id)
        await harness.publish((await harness.requests.resume("default", job_id)).wakes)
        await harness.drain()
        return before, await outcome(harness, job_id)

    steps = Steps()
    before, found = play(scenario, ScriptedModel(), steps.tools())
    assert before == ["succeeded", "ready", "pending", "pending"]
    assert found == ("completed", [{"n": n + 1} for n in range(4)], [1] * 4)
    assert steps.calls == Counter({0: 1, 1: 2, 2: 2, 3: 1})


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


def test_a_stopping_process_gives_back_the_unit_that_it_carries_out(play: Play) -> None:
    steps = Steps({1: Stands()})

    async def scenario(harness: Harness) -> Any:
        job_id, running = await in_the_second_step(harness, steps)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await statuses(harness, job_id) == ["ready", "pending", "pending"]
        await harness.drain()
        return await outcome(harness, job_id), harness.dispatcher.in_flight.count

    found, in_flight = play(scenario, ScriptedModel(), steps.tools())
    assert (found, in_flight) == (("completed", [{"n": 1}, {"n": 2}, {"n": 3}], [2, 1, 1]), 0)
    assert steps.calls == Counter({0: 2, 1: 2, 2: 1}), "what was thrown away of a unit runs again"


def test_a_call_under_way_is_cut_off_with_its_job(play: Play) -> None:
    stands = Stands()
    steps = Steps({1: stands})

    async def scenario(harness: Harness) -> Any:
        job_id, running = await in_the_second_step(harness, steps)
        await harness.requests.cancel("default", job_id)
        harness.dispatcher.interrupt(job_id)
        await asyncio.wait_for(running, PATIENCE)
        return await statuses(harness, job_id), harness.dispatcher.in_flight.count

    assert play(scenario, ScriptedModel(), steps.tools()) == (["cancelled"] * 3, 0)
    assert stands.cut_off == 1


@pytest.mark.parametrize("edge", ["before", "after"])
def test_a_unit_is_stored_once_although_the_database_went_away(play: Play, edge: str) -> None:
    """Where it did land and only its answer was lost, what it claimed is held for nothing until that is noticed."""
    steps = Steps()

    async def scenario(harness: Harness) -> Any:
        real, tries = harness.store.succeed_step, []

        async def failing(*arguments: Any, **named: Any) -> Any:
            tries.append(1 + len(named["unit"]))
            if len(tries) == 1 and edge == "before":
                raise DatabaseUnavailable("gone")
            moved = await real(*arguments, **named)
            if len(tries) == 1:
                raise DatabaseUnavailable("the answer is lost")
            return moved

        harness.store.succeed_step = failing  # type: ignore[method-assign]
        job_id = await harness.submit("", plan=chain(*["leaf"] * 3))
        await harness.run_one(harness.published.pop())
        return tries, await outcome(harness, job_id), harness.dispatcher.in_flight.late_outcomes

    tries, (status, outputs, attempts), late = play(scenario, ScriptedModel(), steps.tools())
    assert (tries, outputs, attempts) == ([3, 3], [{"n": n + 1} for n in range(3)], [1] * 3)
    assert (status, late) == (("completed", 0) if edge == "before" else ("responding", 1))
    assert steps.calls == Counter(range(3))


def test_a_step_of_a_unit_may_act_while_the_first_one_is_held(play: Play) -> None:
    told: list[Any] = []

    @tool(name="leaf", effect="pure", output_schema={"type": "object", "properties": {"n": {"type": "integer"}}})
    async def sure(n: int, context: ToolContext) -> dict[str, int]:
        """Return what comes after n, if that may be."""
        await context.confirm(database=True)
        if n == 1:
            _, steps = await harnesses[0].requests.job("default", UUID(context.job_id))
            told.append([step["status"] for step in steps])
            await harnesses[0].requests.cancel("default", UUID(context.job_id))
            try:
                await context.confirm(database=True)
            except OwnershipLost as lost:
                told.append(lost.code)
        return {"n": n + 1}

    harnesses: list[Harness] = []

    async def scenario(harness: Harness) -> Any:
        harnesses.append(harness)
        job_id = await harness.submit("", plan=chain(*["leaf"] * 3))
        await harness.run_one(harness.published.pop())
        return await statuses(harness, job_id)

    assert play(scenario, ScriptedModel(), [make_tool(sure)]) == ["cancelled"] * 3
    assert told == [["running", "pending", "pending"], OwnershipLost.code]
