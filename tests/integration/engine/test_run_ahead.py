"""Pure steps run while the commit that claims them is under way, and count once their own commit has landed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from shared.domain.errors import DatabaseUnavailable, ExecutionFailed, Transient
from shared.domain.ids import StepRef
from shared.domain.states import Lane
from shared.ports import PlanWake, StepWake, Suspended, Wake
from tests.integration.engine.test_takes import Answer, statuses
from tests.support.harness import Harness, ScriptedModel, make_tool
from worker.tools import tool

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


def paid(*tools: str) -> ScriptedModel:
    """A model that plans such a chain; what has been paid for is stored before any of it counts."""
    model: ScriptedModel = ScriptedModel.planning(*((c["tool_name"], c["arguments"]) for c in chain(*tools)["calls"]))
    return model


class Commits:
    """Counts the commits of a harness that end steps, and how many steps each was to end."""

    def __init__(self, harness: Harness) -> None:
        self.ended: list[int] = []
        for name, steps in (("succeed_step", 0), ("succeed_run", 1)):
            setattr(harness.store, name, self.counted(getattr(harness.store, name), steps))

    def counted(self, method: Callable[..., Awaitable[Any]], has_run: int) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any, **named: Any) -> Any:
            self.ended.append(1 + (len(arguments[3]) if has_run else 0))
            return await method(*arguments, **named)

        return call


async def submitted(harness: Harness) -> tuple[UUID, asyncio.Task[Any], Answer]:
    """Let a job be planned, and go as far as to the answer to the acceptance of its plan, which is kept back."""
    job_id = await harness.submit(model="openai:gpt-5")
    answer = Answer(harness, "accept_plan")
    running = asyncio.create_task(harness.run_one(PlanWake(job_id)))
    await asyncio.wait_for(answer.landed.wait(), PATIENCE)
    harness.published.clear()
    return job_id, running, answer


async def outcome(harness: Harness, job_id: UUID) -> tuple[str, list[Any], list[int]]:
    job, steps = await harness.requests.job("default", job_id)
    return job["status"], [step["output"] for step in steps], [step["attempt"] for step in steps]


async def kinds(harness: Harness, job_id: UUID) -> list[tuple[str, Any]]:
    async with harness.database.connection() as connection:
        rows = await connection.execute(
            b"SELECT kind, data->>'index' AS index FROM events "
            b"WHERE job_id = %s AND kind LIKE 'step%%' ORDER BY sequence",
            [job_id],
        )
        return [(row["kind"].removeprefix("step_"), int(row["index"])) for row in await rows.fetchall()]


def test_a_chain_runs_while_its_plan_is_stored_and_ends_in_one_commit(play: Play) -> None:
    steps = Steps()

    async def scenario(harness: Harness) -> Any:
        commits = Commits(harness)
        shown: list[tuple[str, Wake, int]] = []
        harness.silent.started = lambda wake, attempt: shown.append(("started", wake, attempt))  # type: ignore[method-assign]
        harness.silent.ended = lambda wake, attempt, *_: shown.append(("ended", wake, attempt))  # type: ignore[method-assign]
        job_id, running, answer = await submitted(harness)
        await asyncio.wait_for(steps.reached[4].wait(), PATIENCE)
        assert await statuses(harness, job_id) == ["running", *["pending"] * 4], "nothing counts yet"
        answer.go.set()
        await asyncio.wait_for(running, PATIENCE)
        told = [(kind, n) for n in range(5) for kind in ("started", "succeeded")]
        assert await kinds(harness, job_id) == told
        seen = [(kind, wake.ref.index, attempt) for kind, wake, attempt in shown if isinstance(wake, StepWake)]
        assert sorted(seen) == sorted((kind, n, 1) for n in range(5) for kind in ("started", "ended"))
        return commits.ended, await outcome(harness, job_id), harness.engine.claims.in_flight

    ended, found, in_flight = play(scenario, paid(*["leaf"] * 5), steps.tools())
    assert found == ("completed", [{"n": n + 1} for n in range(5)], [1] * 5)
    assert (ended, in_flight) == ([5], 0)
    assert steps.calls == Counter(range(5)), "and nothing ran twice"


def test_each_next_run_goes_on_where_the_one_before_ended(play: Play) -> None:
    steps = Steps()

    async def scenario(harness: Harness) -> Any:
        commits = Commits(harness)
        job_id = await harness.submit(model="openai:gpt-5")
        await harness.drain()
        assert await kinds(harness, job_id) == [(kind, n) for n in range(8) for kind in ("started", "succeeded")]
        return commits.ended, await outcome(harness, job_id)

    ended, found = play(scenario, paid(*["leaf"] * 8), steps.tools())
    assert found == ("completed", [{"n": n + 1} for n in range(8)], [1] * 8)
    assert sum(ended) == 8
    assert steps.calls == Counter(range(8))


@pytest.mark.parametrize("change", ["cancel", "pause"])
def test_what_ran_ahead_is_thrown_away_when_the_job_is_cancelled_or_paused(play: Play, change: str) -> None:
    steps = Steps()

    async def scenario(harness: Harness) -> Any:
        real = harness.store.accept_plan

        async def late(*arguments: Any, **named: Any) -> Any:
            await asyncio.wait_for(steps.reached[2].wait(), PATIENCE)
            await getattr(harness.requests, change)("default", job_id)
            return await real(*arguments, **named)

        harness.store.accept_plan = late  # type: ignore[method-assign]
        job_id = await harness.submit("", plan=chain(*["leaf"] * 3))
        await harness.run_one(harness.published.pop())
        before = await statuses(harness, job_id)
        if change == "pause":
            harness.published += (await harness.requests.resume("default", job_id)).wakes
        await harness.drain()
        return before, await outcome(harness, job_id), harness.engine.claims.in_flight

    before, found, in_flight = play(scenario, ScriptedModel(), steps.tools())
    assert in_flight == 0
    if change == "cancel":
        assert (before, found[0]) == ([], "cancelled")
    else:
        assert before == ["ready", "pending", "pending"]
        assert found == ("completed", [{"n": n + 1} for n in range(3)], [1] * 3)
        assert steps.calls == Counter({0: 2, 1: 2, 2: 2}), "of pure steps twice is no more than once"


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


def test_a_step_that_looks_at_the_world_waits_for_its_claim(play: Play) -> None:
    steps = Steps()

    async def scenario(harness: Harness) -> Any:
        commits = Commits(harness)
        job_id, running, answer = await submitted(harness)
        await asyncio.wait_for(steps.reached[1].wait(), PATIENCE)
        answer.go.set()
        await asyncio.wait_for(running, PATIENCE)
        began = [step for step in await kinds(harness, job_id) if step[0] == "started"]
        return commits.ended, await outcome(harness, job_id), began

    ended, found, began = play(scenario, paid("leaf", "leaf", "look", "leaf", "leaf"), steps.tools())
    assert found == ("completed", [{"n": n + 1} for n in range(5)], [1] * 5)
    assert (ended[:2], sum(ended), [n for _, n in began]) == ([2, 1], 5, [0, 1, 2, 3, 4])


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


def test_a_stopping_process_gives_back_the_step_that_it_has_claimed(play: Play) -> None:
    async def stands() -> Any:
        if steps.calls[1] == 1:
            await asyncio.Event().wait()

    steps = Steps({1: stands})

    async def scenario(harness: Harness) -> Any:
        job_id, running, answer = await submitted(harness)
        await asyncio.wait_for(steps.reached[1].wait(), PATIENCE)
        answer.go.set()
        while await statuses(harness, job_id) != ["succeeded", "running", "pending"]:
            await asyncio.wait([running], timeout=0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await statuses(harness, job_id) == ["succeeded", "ready", "pending"]
        await harness.drain()
        return await outcome(harness, job_id), harness.engine.claims.in_flight

    found, in_flight = play(scenario, paid("leaf", "leaf", "leaf"), steps.tools())
    assert (found, in_flight) == (("completed", [{"n": 1}, {"n": 2}, {"n": 3}], [1, 2, 1]), 0)


def test_a_process_that_winds_down_begins_no_further_step(play: Play) -> None:
    steps = Steps()

    async def scenario(harness: Harness) -> Any:
        job_id, running, answer = await submitted(harness)
        await asyncio.wait_for(steps.reached[3].wait(), PATIENCE)
        harness.engine.wind_down()
        answer.go.set()
        await asyncio.wait_for(running, PATIENCE)
        return await statuses(harness, job_id), harness.published, harness.engine.claims.in_flight

    found, published, in_flight = play(scenario, paid(*["leaf"] * 4), steps.tools())
    assert found == ["ready", "pending", "pending", "pending"]
    assert ([wake.ref.index for wake in published if isinstance(wake, StepWake)], in_flight) == ([0], 0)


def test_a_call_under_way_is_cut_off_with_its_job(play: Play) -> None:
    cut_off = []

    async def stands() -> Any:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cut_off.append(1)
            raise

    steps = Steps({1: stands})

    async def scenario(harness: Harness) -> Any:
        job_id, running, answer = await submitted(harness)
        answer.go.set()
        await asyncio.wait_for(steps.reached[1].wait(), PATIENCE)
        while await statuses(harness, job_id) != ["succeeded", "running", "pending"]:
            await asyncio.wait([running], timeout=0.01)
        await harness.requests.cancel("default", job_id)
        harness.engine.interrupt(job_id)
        await asyncio.wait_for(running, PATIENCE)
        return await statuses(harness, job_id), harness.engine.claims.in_flight

    assert play(scenario, paid("leaf", "leaf", "leaf"), steps.tools()) == (["succeeded", "cancelled", "cancelled"], 0)
    assert cut_off == [1]


@pytest.mark.parametrize("edge", ["before", "after"])
def test_a_run_is_stored_once_although_the_database_went_away(play: Play, edge: str) -> None:
    """Where it did land and only its answer was lost, what it claimed is held for nothing until that is noticed."""
    steps = Steps()

    async def scenario(harness: Harness) -> Any:
        real, tries = harness.store.succeed_run, []

        async def failing(*arguments: Any, **named: Any) -> Any:
            tries.append(1)
            if len(tries) == 1 and edge == "before":
                raise DatabaseUnavailable("gone")
            moved = await real(*arguments, **named)
            if len(tries) == 1:
                raise DatabaseUnavailable("the answer is lost")
            return moved

        harness.store.succeed_run = failing  # type: ignore[method-assign]
        job_id, running, answer = await submitted(harness)
        await asyncio.wait_for(steps.reached[2].wait(), PATIENCE)
        answer.go.set()
        await asyncio.wait_for(running, PATIENCE)
        return len(tries), await outcome(harness, job_id), harness.engine.claims.late_outcomes

    tries, (status, outputs, attempts), late = play(scenario, paid(*["leaf"] * 3), steps.tools())
    assert (tries, outputs, attempts) == (2, [{"n": n + 1} for n in range(3)], [1] * 3)
    assert (status, late) == (("completed", 0) if edge == "before" else ("responding", 1))
    assert steps.calls == Counter(range(3))
