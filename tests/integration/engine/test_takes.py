"""What a commit takes over goes on here, counts as here from the moment it may be, and is given back otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from planq.shared.kernel.ids import Attempt, StepRef
from planq.shared.kernel.states import Pool
from planq.shared.kernel.wakes import Wake
from planq.shared.platform.database import Database
from planq.shared.platform.errors import DatabaseUnavailable
from planq.worker.container import WorkerRuntime
from planq.worker.engine.lease import Lease
from planq.worker.engine.slots import Party
from planq.worker.runtime.reconcile import LoopInFlight, Reconciler
from planq.worker.tools import tool
from tests.support.harness import LEASE, Harness, ScriptedModel, make_tool

Play = Callable[..., Any]


@tool(effect="pure")
async def leaf(n: int) -> dict[str, int]:
    """Return n."""
    return {"n": n}


@tool(effect="pure")
async def join(ns: list[int]) -> dict[str, int]:
    """Add up."""
    return {"sum": sum(ns)}


@tool(name="leaf", effect="read")
async def read_leaf(n: int) -> dict[str, int]:
    """Return n; not before it is claimed, since it looks at the world."""
    return {"n": n}


TOOLS = [make_tool(leaf), make_tool(join)]
LOOKING = [make_tool(read_leaf), make_tool(join)]
CHAIN = {
    "calls": [
        {"tool_name": "leaf", "arguments": {"n": 1}},
        *({"tool_name": "leaf", "arguments": {"n": f"${index}.output.n"}} for index in range(2)),
    ]
}


def wide(count: int) -> dict[str, Any]:
    """A fan-out and its join."""
    leaves = [{"tool_name": "leaf", "arguments": {"n": n}} for n in range(count)]
    ns = [f"${n}.output.n" for n in range(count)]
    return {"calls": [*leaves, {"tool_name": "join", "arguments": {"ns": ns}}]}


def reconciler(harness: Harness) -> Reconciler:
    runtime = cast(WorkerRuntime, SimpleNamespace(loop=asyncio.get_running_loop()))
    here = LoopInFlight(runtime, harness.dispatcher.in_flight)
    return Reconciler(harness.worker_registry, harness.worker_id, here, Lease(LEASE), harness)


class Answer:
    """Keeps back the answer of a transition that has applied."""

    def __init__(self, harness: Harness, method: str) -> None:
        self.applied, self.go = asyncio.Event(), asyncio.Event()
        real = getattr(harness.store, method)

        async def kept_back(*arguments: Any, **named: Any) -> Any:
            moved = await real(*arguments, **named)
            self.applied.set()
            await self.go.wait()
            return moved

        setattr(harness.store, method, kept_back)


async def statuses(harness: Harness, job_id: UUID) -> list[str]:
    _, steps = await harness.requests.job("default", job_id)
    return [step["status"] for step in steps]


def test_a_chain_is_carried_out_by_one_wake_up_and_no_claim_of_its_own(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: Any) -> Any:
        raise AssertionError("each claim came with the commit before")

    async def scenario(harness: Harness) -> Any:
        job_id = await harness.submit("", plan=CHAIN)
        claim = harness.store.claim
        monkeypatch.setattr(harness.store, "claim", lambda refs: claim(refs) if refs[0].is_stage else refused())
        await harness.run_one(harness.published.pop())
        assert harness.published == []
        return await harness.requests.job("default", job_id)

    job, steps = play(scenario, ScriptedModel(), TOOLS)
    assert (job["status"], [step["output"] for step in steps]) == ("completed", [{"n": 1}] * 3)


@pytest.mark.parametrize("slots", [4, 300])
def test_a_fan_out_is_carried_out_over_the_slots_of_the_process(database_url: str, slots: int) -> None:
    running, most, all_at_work = 0, 0, asyncio.Event()

    @tool(name="leaf", effect="pure")
    async def counted(n: int) -> dict[str, int]:
        """Return n once as many run as may."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running >= min(slots, 40):
            all_at_work.set()
        await all_at_work.wait()
        running -= 1
        return {"n": n}

    async def scenario() -> Any:
        database = Database(database_url, max_connections=5)
        await database.open()
        harness = Harness(database, ScriptedModel(), [make_tool(counted), make_tool(join)], slots=slots)
        await harness.open()
        try:
            job, steps = await harness.run("", plan=wide(40))
            return job["status"], steps[-1]["output"], {s["attempt"] for s in steps}, harness.dispatcher.slots.free()
        finally:
            await database.close()

    assert asyncio.run(scenario()) == ("completed", {"sum": sum(range(40))}, {1}, slots)
    assert most == min(slots, 40)


def test_each_worker_gets_its_part_of_a_fan_out_in_one_message(database_url: str) -> None:
    async def scenario() -> Any:
        database = Database(database_url, max_connections=5)
        await database.open()
        harness = Harness(database, ScriptedModel(), TOOLS, workers=4)
        await harness.open()
        try:
            job_id = await harness.submit("", plan=wide(60))
            await harness.run_one(harness.published.pop())
            published = list(harness.published)
            await harness.drain()
            return published, await harness.requests.job("default", job_id)
        finally:
            await database.close()

    published, (job, steps) = asyncio.run(scenario())
    assert [len(wake.each) for wake in published] == [15, 15, 15]
    assert (job["status"], steps[-1]["output"], {s["attempt"] for s in steps}) == ("completed", {"sum": 1770}, {1})


def test_a_message_for_several_steps_that_comes_twice_is_harmless(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        job_id = await harness.submit("", plan=wide(12))
        harness.dispatcher.wind_down()
        await harness.run_one(harness.published.pop())
        [wake] = harness.published
        assert bool(wake.more)
        first, second = await asyncio.gather(harness.run_one(wake), harness.run_one(wake))
        again = await harness.run_one(wake)
        harness.published = [wake for wake in harness.published if wake != harness.published[0]]
        await harness.drain()
        return first.text, second.text, again.text, await statuses(harness, job_id)

    first, second, again, found = play(scenario, ScriptedModel(), TOOLS)
    assert {first, second} == {"12 steps", "nothing to do"}
    assert again == "nothing to do"
    assert found[:12] == ["succeeded"] * 12


def test_what_may_just_be_taken_over_is_not_handed_back(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        job_id = await harness.submit("", plan=CHAIN)
        answer = Answer(harness, "accept_plan")
        running = asyncio.create_task(harness.run_one(harness.published.pop()))
        await asyncio.wait_for(answer.applied.wait(), 60)
        assert harness.dispatcher.in_flight.is_here(Attempt(StepRef(job_id, 0, 0), 1))
        compare = reconciler(harness)
        for _ in range(3):
            await compare.beat(timedelta(0))
        answer.go.set()
        await asyncio.wait_for(running, 60)
        _, steps = await harness.requests.job("default", job_id)
        return [(step["status"], step["attempt"]) for step in steps], harness.published

    assert play(scenario, ScriptedModel(), LOOKING) == ([("succeeded", 1)] * 3, [])


def test_what_a_lost_answer_took_over_is_handed_back_at_the_second_look(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The repeat of the write does not land, so nobody here knows what the first one took."""

    async def scenario(harness: Harness) -> Any:
        job_id = await harness.submit("", plan=CHAIN)
        accept, asked = harness.store.accept_plan, 0

        async def lost(*arguments: Any, **named: Any) -> Any:
            nonlocal asked
            asked += 1
            moved = await accept(*arguments, **named)
            if asked == 1:
                raise DatabaseUnavailable("the answer was lost")
            return moved

        monkeypatch.setattr(harness.store, "accept_plan", lost)
        await harness.run_one(harness.published.pop())
        assert (asked, await statuses(harness, job_id)) == (2, ["running", "pending", "pending"])
        compare = reconciler(harness)
        await compare.beat(timedelta(0))
        assert harness.published == []
        await compare.beat(timedelta(0))
        assert harness.published == [Wake(StepRef(job_id, 0, 0), Pool.IO, "leaf", 2)]
        await harness.drain()
        return await harness.requests.job("default", job_id)

    job, steps = play(scenario, ScriptedModel(), LOOKING)
    assert (job["status"], [step["attempt"] for step in steps]) == ("completed", [2, 1, 1])


@pytest.mark.parametrize("how", ["wind down", "cancel"])
def test_what_was_taken_over_by_a_worker_that_stops_is_given_back_at_once(play: Play, how: str) -> None:
    async def scenario(harness: Harness) -> Any:
        job_id = await harness.submit("", plan=wide(3))
        answer = Answer(harness, "accept_plan")
        running = asyncio.create_task(harness.dispatcher.run(harness.published.pop()))
        await asyncio.wait_for(answer.applied.wait(), 60)
        if how == "cancel":
            running.cancel()
        else:
            harness.dispatcher.wind_down()
        answer.go.set()
        await asyncio.wait([running], timeout=60)
        assert running.cancelled() is (how == "cancel")
        assert harness.dispatcher.in_flight.count == 0
        assert harness.dispatcher.slots.free() == 300
        return await statuses(harness, job_id), harness.published, job_id

    found, published, job_id = play(scenario, ScriptedModel(), TOOLS)
    assert found == ["ready"] * 3 + ["pending"]
    assert published == [Wake(StepRef(job_id, 0, n), Pool.IO, "leaf", 2) for n in range(3)]


def test_a_stage_that_was_taken_over_by_a_worker_that_stops_is_given_back_at_once(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        plan = {"calls": [{"tool_name": "leaf", "arguments": {"n": 1}}]}
        job_id = await harness.submit("", plan=plan)
        answer = Answer(harness, "succeed_step")
        running = asyncio.create_task(harness.dispatcher.run(harness.published.pop()))
        await asyncio.wait_for(answer.applied.wait(), 60)
        running.cancel()
        answer.go.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        published = list(harness.published)
        await harness.drain()
        job, _ = await harness.requests.job("default", job_id)
        return job["status"], published, job_id

    status, published, job_id = play(scenario, ScriptedModel(), LOOKING)
    assert (status, published) == ("completed", [Wake.respond(job_id, 3)])


def test_a_job_that_is_cancelled_while_its_step_is_taken_over_calls_nothing(play: Play) -> None:
    called: list[int] = []

    @tool(name="leaf", effect="read")
    async def noted(n: int) -> dict[str, int]:
        """Note the call."""
        called.append(n)
        return {"n": n}

    async def scenario(harness: Harness) -> Any:
        job_id = await harness.submit("", plan=CHAIN)
        answer = Answer(harness, "accept_plan")
        running = asyncio.create_task(harness.run_one(Wake.plan(job_id)))
        await asyncio.wait_for(answer.applied.wait(), 60)
        await harness.requests.cancel("default", job_id)
        harness.dispatcher.interrupt(job_id)
        answer.go.set()
        await asyncio.wait_for(running, 60)
        return await statuses(harness, job_id), harness.dispatcher.in_flight.count

    assert play(scenario, ScriptedModel(), [make_tool(noted)]) == (["cancelled"] * 3, 0)
    assert called == []


def test_steps_that_no_slot_is_free_for_are_for_others_once_this_process_stops(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        job_id = await harness.submit("", plan=wide(12))
        harness.dispatcher.wind_down()
        await harness.run_one(harness.published.pop())
        [wake] = harness.published
        harness.published.clear()
        harness.dispatcher.slots.reserve(300, Party("default"))
        running = asyncio.create_task(harness.dispatcher.run(wake))
        await asyncio.wait([running], timeout=0.05)
        assert await statuses(harness, job_id) == ["ready"] * 12 + ["pending"], "the time of a claimed step runs"
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return harness.published == [wake]

    assert play(scenario, ScriptedModel(), TOOLS) is True
