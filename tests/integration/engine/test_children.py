"""A step that lets child jobs do its work: it waits without a worker, gathers once, and nothing outlives it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import pytest

from planq.shared.agentic.models.contract import CutOff
from planq.shared.agentic.models.exchange import Ask, ModelReply
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.limits import Limits
from planq.shared.kernel.states import JobStatus, Priority
from planq.shared.kernel.store.signals import CANCELLED, listen
from planq.shared.kernel.usage import ModelCall, Purpose
from planq.shared.kernel.wakes import Wake
from planq.shared.platform.errors import Cancelled, ErrorRecord
from planq.worker.tools import tool
from tests.support.agents import rows
from tests.support.children import DelegatingTool, child_plan, children_of
from tests.support.harness import Harness, ScriptedModel, make_tool

Play = Callable[..., Any]


@tool(effect="pure")
async def double(number: float) -> dict[str, float]:
    """Return twice the number."""
    return {"result": number * 2}


@tool(effect="pure", pool="cpu")
def halve(number: float) -> dict[str, float]:
    """Return half of the number."""
    return {"result": number / 2}


class Gate:
    """A tool that waits until it is let through; `now` and `most` count those inside."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.inside: asyncio.Queue[None] = asyncio.Queue()
        self.now = self.most = self.cut_off = 0

    def tool(self) -> Any:
        @tool(effect="pure")
        async def pass_gate() -> dict[str, bool]:
            """Return once the gate is open."""
            self.now += 1
            self.most = max(self.most, self.now)
            self.inside.put_nowait(None)
            try:
                await self.open.wait()
            except asyncio.CancelledError:
                self.cut_off += 1
                raise
            finally:
                self.now -= 1
            return {"passed": True}

        return make_tool(pass_gate)


FAST = {"plan": child_plan(("double", {"number": 1}))}
SLOW = {"plan": child_plan(("pass_gate", {}))}
BROKEN = {"agent": "nobody", "input": "x"}


def delegating(*children: Any, **arguments: Any) -> dict[str, Any]:
    return {"calls": [{"tool_name": "delegate", "arguments": {"children": list(children), **arguments}}]}


async def sound(harness: Harness) -> None:
    """Nothing is broken, whatever happened."""
    assert await harness.worker_registry.broken_invariants() == []


async def pump(harness: Harness) -> None:
    """Carry out wake-ups as they are published, until none is left and nothing runs."""
    tasks: set[asyncio.Task[Any]] = set()
    while harness.published or tasks:
        wakes, harness.published = harness.published, []
        tasks |= {asyncio.create_task(harness.dispatcher.run(wake)) for wake in wakes}
        done, tasks = await asyncio.wait(tasks, timeout=0.02, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()


def test_all_that_follows_from_a_bulk_job_is_bulk(play: Play) -> None:
    """Its steps and stages, and its child jobs with theirs."""

    async def scenario(harness: Harness) -> tuple[str, set[Priority], set[type]]:
        told: list[Wake] = []
        publish = harness.publish

        async def record(wakes: Sequence[Wake]) -> bool:
            told.extend(wakes)
            return await publish(wakes)

        harness.publish = record  # type: ignore[method-assign]
        crunching = {"plan": child_plan(("halve", {"number": 2}))}
        job_id = await harness.submit(priority=Priority.BULK, plan=delegating(crunching, FAST, crunching))
        await pump(harness)
        job, _ = await harness.requests.job("default", job_id)
        return job["status"], {wake.priority for wake in told}, {wake.ref.is_stage for wake in told}

    status, priorities, kinds = play(
        scenario, ScriptedModel(), [make_tool(double), make_tool(halve), DelegatingTool()]
    )
    assert (status, priorities) == ("completed", {Priority.BULK})
    assert kinds >= {True, False}, "stages and steps"


async def begun(
    harness: Harness, gate: Gate, plan: Any, count: int, **fields: Any
) -> tuple[UUID, asyncio.Task[None]]:
    """Submit, and wait until so many child jobs stand before the gate."""
    job_id = await harness.submit("", plan=plan, **fields)
    running = asyncio.create_task(pump(harness))
    for _ in range(count):
        await asyncio.wait_for(gate.inside.get(), 60)
    return job_id, running


def test_a_step_waits_for_its_children_and_gathers_once(play: Play) -> None:
    delegate = DelegatingTool()

    async def scenario(harness: Harness) -> Any:
        plan = delegating({**FAST, "key": "a"}, {**FAST, "key": "b"}, must=2)
        plan["calls"].append({"tool_name": "double", "arguments": {"number": 4}, "depends_on": [0]})
        job, steps = await harness.run("", plan=plan)
        await sound(harness)
        return job, steps, await children_of(harness.database, job["id"])

    job, steps, children = play(scenario, ScriptedModel(), [delegate, make_tool(double)])
    assert (job["status"], [step["status"] for step in steps]) == ("completed", ["succeeded"] * 2)
    output = steps[0]["output"]
    assert output["statuses"] == ["completed"] * 2
    assert output["keys"] == ["a", "b"]
    assert output["ids"] == [str(child["id"]) for child in children]
    assert [(c["depth"], c["root_job_id"], c["is_joined"]) for c in children] == [(0, job["id"], True)] * 2
    assert steps[0]["attempt"] == 2
    assert (len(delegate.calls), len(delegate.gathers)) == (1, 1)
    assert delegate.gathers[0].limits == Limits()
    assert delegate.gathers[0].root_job_id == str(job["id"])


def test_no_more_children_are_begun_at_once_than_may_be(play: Play) -> None:
    gate = Gate()

    async def scenario(harness: Harness) -> Any:
        job_id, running = await begun(harness, gate, delegating(*[SLOW] * 7, most=3), 3)
        await asyncio.sleep(0)
        held = [child["is_held"] for child in await children_of(harness.database, job_id)]
        await sound_but_for_leases(harness)
        gate.open.set()
        await asyncio.wait_for(running, 60)
        await sound(harness)
        return held, await harness.requests.job("default", job_id)

    held, (job, steps) = play(scenario, ScriptedModel(), [DelegatingTool(), gate.tool()])
    assert held == [False] * 3 + [True] * 4
    assert gate.most == 3
    assert (job["status"], steps[0]["output"]["statuses"]) == ("completed", ["completed"] * 7)


async def sound_but_for_leases(harness: Harness) -> None:
    broken = await harness.worker_registry.broken_invariants()
    assert [row for row in broken if row["invariant"] != "running_without_lease"] == []


class ThinkingModel(ScriptedModel):
    """Never ends the plan that it is asked for; when it is cut off it has cost 40 tokens."""

    async def plan(self, ask: Ask, tools: Sequence[ToolDefinition], *, cut_off: CutOff | None = None) -> ModelReply:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            assert cut_off is not None
            cut_off(ModelCall(Purpose.PLAN, "thinking", 5, 40, error=ErrorRecord.of(Cancelled("cut off"))))
        raise asyncio.CancelledError


def test_the_first_success_ends_the_wait_and_the_losers(play: Play, database_url: str) -> None:
    gate = Gate()

    async def scenario(harness: Harness) -> Any:
        def heard(ended: UUID | None) -> None:
            if ended is not None:
                harness.dispatcher.interrupt(ended)

        listening = asyncio.create_task(listen(database_url, CANCELLED, heard))
        plan = delegating({"input": "think"}, SLOW, FAST, FAST, until="first_success", most=3)
        job_id, running = await begun(harness, gate, plan, 1)
        await asyncio.wait_for(running, 60)  # the losers were told of their end, or this would not end
        listening.cancel()
        await sound(harness)
        children = await children_of(harness.database, job_id)
        return (
            await harness.requests.job("default", job_id),
            children,
            await harness.requests.job("default", children[0]["id"]),
        )

    tools = [DelegatingTool(), gate.tool(), make_tool(double)]
    (job, steps), children, (thought, _) = play(scenario, ThinkingModel(), tools)
    assert job["status"] == "completed"
    assert steps[0]["output"]["statuses"][2] == "completed"
    assert [child["status"] for child in children] == ["cancelled", "cancelled", "completed", "cancelled"]
    assert [child["is_held"] for child in children] == [False, False, False, True]
    assert (thought["model_calls"], thought["input_tokens"], gate.cut_off) == (1, 40, 1)


@pytest.mark.parametrize("until", ["all", "first_failure"])
def test_a_child_of_an_agent_that_does_not_exist_fails_at_once(play: Play, until: str) -> None:
    async def scenario(harness: Harness) -> Any:
        job, steps = await harness.run("", plan=delegating(FAST, BROKEN, until=until))
        await sound(harness)
        return job, steps, await children_of(harness.database, job["id"])

    job, steps, children = play(scenario, ScriptedModel(), [DelegatingTool(), make_tool(double)])
    assert job["status"] == "completed"
    expected = ["completed", "failed"] if until == "all" else ["queued", "failed"]
    assert steps[0]["output"]["statuses"] == expected
    assert steps[0]["output"]["codes"] == [None, "unknown_agent"]
    assert [child["status"] for child in children] == ["completed" if until == "all" else "cancelled", "failed"]


def test_when_all_children_fail_the_step_says_so(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        job, steps = await harness.run("", plan=delegating(BROKEN, BROKEN, must=1))
        await sound(harness)
        return job, steps

    job, steps = play(scenario, ScriptedModel(), [DelegatingTool()])
    assert (job["status"], job["failed_steps"]) == ("completed", 1)
    assert steps[0]["error"]["code"] == "tool_error"


def test_a_cancelled_parent_takes_everything_below_with_it(play: Play) -> None:
    gate = Gate()

    async def scenario(harness: Harness) -> Any:
        inner = delegating(SLOW, SLOW, SLOW, most=2)
        job_id, running = await begun(harness, gate, delegating({"plan": inner}, SLOW), 3)
        ended, status = await harness.requests.cancel("default", job_id)
        for each in ended:
            harness.dispatcher.interrupt(each)
        await asyncio.wait_for(running, 60)
        await sound(harness)
        children = await children_of(harness.database, job_id)
        below = await children_of(harness.database, children[0]["id"])
        return ended, status, [child["status"] for child in [*children, *below]], {c["root_job_id"] for c in below}

    ended, status, statuses, roots = play(scenario, ScriptedModel(), [DelegatingTool(), gate.tool()])
    assert (len(ended), status, statuses) == (6, JobStatus.CANCELLED, ["cancelled"] * 5)
    assert roots == {ended[0]}
    assert gate.cut_off == 3


def test_a_child_that_never_ends_expires_and_its_parent_is_told(play: Play) -> None:
    gate = Gate()

    async def scenario(harness: Harness) -> Any:
        plan = delegating({**SLOW, "seconds": 60}, FAST)
        job_id, running = await begun(harness, gate, plan, 1)
        children = await children_of(harness.database, job_id)
        await rows(harness, "UPDATE jobs SET expires_at = now() WHERE id = %s RETURNING 1", children[0]["id"])
        while (await children_of(harness.database, job_id))[0]["status"] != "failed":
            await harness.sweeper.sweep()
        for child in harness.interrupted:
            harness.dispatcher.interrupt(child)
        await asyncio.wait_for(running, 60)
        await harness.drain()
        await sound(harness)
        return await harness.requests.job("default", job_id), children

    (job, steps), children = play(scenario, ScriptedModel(), [DelegatingTool(), gate.tool(), make_tool(double)])
    assert children[0]["limits"]["job_timeout_seconds"] == 60
    assert (job["status"], steps[0]["output"]["statuses"]) == ("completed", ["failed", "completed"])
    assert steps[0]["output"]["codes"] == ["job_timeout", None]
    assert gate.cut_off == 1


def test_a_child_gets_no_more_time_than_its_parent_has_left(play: Play) -> None:
    gate = Gate()

    async def scenario(harness: Harness) -> Any:
        limits = Limits(plan_timeout_seconds=20.0)
        plan = delegating({**SLOW, "seconds": 9.0}, SLOW, {**SLOW, "seconds": 1000.0})
        job_id, running = await begun(harness, gate, plan, 3, limits=limits)
        children = await children_of(harness.database, job_id)
        gate.open.set()
        await asyncio.wait_for(running, 60)
        return [child["limits"]["job_timeout_seconds"] for child in children]

    first, second, third = play(scenario, ScriptedModel(), [DelegatingTool(), gate.tool()])
    assert first == 9.0
    assert 10 < second <= 20
    assert second == third


def test_the_end_that_nobody_told_of_is_told_by_the_sweeper(play: Play) -> None:
    gate = Gate()

    async def scenario(harness: Harness) -> Any:
        job_id, running = await begun(harness, gate, delegating(SLOW, SLOW, most=1), 1)
        first, second = [child["id"] for child in await children_of(harness.database, job_id)]
        await harness.requests.cancel("default", first)
        harness.dispatcher.interrupt(first)
        await asyncio.wait_for(running, 60)
        assert Wake.plan(second) not in harness.published
        while Wake.plan(second) not in harness.published:
            await harness.sweeper.sweep()
        gate.open.set()
        await harness.drain()
        await sound(harness)
        return await harness.requests.job("default", job_id)

    job, steps = play(scenario, ScriptedModel(), [DelegatingTool(), gate.tool()])
    assert (job["status"], steps[0]["output"]["statuses"]) == ("completed", ["cancelled", "completed"])


def test_a_pause_stops_the_children_and_resuming_lets_them_go_on(play: Play) -> None:
    gate = Gate()

    async def scenario(harness: Harness) -> Any:
        chain: dict[str, Any] = {"plan": child_plan(("pass_gate", {}), ("double", {"number": 3}))}
        chain["plan"]["calls"][1]["depends_on"] = [0]
        job_id, running = await begun(harness, gate, delegating(chain, chain, most=1), 1)
        assert (await harness.requests.pause("default", job_id)).applied
        gate.open.set()
        await asyncio.wait_for(running, 60)
        paused = await children_of(harness.database, job_id)
        await sound(harness)
        assert (await harness.requests.resume("default", job_id)).applied
        while (await harness.requests.status("default", job_id)) is not JobStatus.COMPLETED:
            await harness.sweeper.sweep()
            await harness.drain()
        await sound(harness)
        return paused, await harness.requests.job("default", job_id)

    paused, (_, steps) = play(scenario, ScriptedModel(), [DelegatingTool(), gate.tool(), make_tool(double)])
    assert [(child["status"], child["paused_at"] is None) for child in paused] == [
        ("executing", False),
        ("queued", False),
    ]
    assert steps[0]["output"]["statuses"] == ["completed"] * 2


def test_a_failed_delegation_is_tried_again_with_new_children(play: Play) -> None:
    delegate = DelegatingTool()

    async def scenario(harness: Harness) -> Any:
        job, _ = await harness.run("", plan=delegating(FAST, FAST, must=3))
        first = await children_of(harness.database, job["id"])
        # A child that has ended belongs to its parent.
        assert not (await harness.requests.resume("default", first[0]["id"], after=0)).applied
        asked = await harness.requests.resume("default", job["id"], after=0)
        assert asked.applied
        harness.published += asked.wakes
        await harness.drain()
        await sound(harness)
        return await harness.requests.job("default", job["id"]), first, await children_of(harness.database, job["id"])

    (job, steps), first, after = play(scenario, ScriptedModel(), [delegate, make_tool(double)])
    assert (job["status"], job["failed_steps"], steps[0]["status"]) == ("completed", 1, "failed")
    assert (len(first), len(after), len(delegate.calls)) == (2, 4, 2)
    assert len(steps[0]["children"]) == 2
    assert not set(steps[0]["children"]) & {child["id"] for child in first}


def test_a_fork_takes_over_what_came_of_the_children(play: Play) -> None:
    delegate = DelegatingTool()

    async def scenario(harness: Harness) -> Any:
        plan = delegating(FAST, FAST)
        plan["calls"].append({"tool_name": "double", "arguments": {"number": 3}, "depends_on": [0]})
        source, steps = await harness.run("", plan=plan)
        job, forked = await harness.run("", plan=plan, forked_from=source["id"], reuse={0: 0})
        await sound(harness)
        return steps, job, forked, await children_of(harness.database, job["id"])

    steps, job, forked, children = play(scenario, ScriptedModel(), [delegate, make_tool(double)])
    assert (job["status"], forked[0]["output"], forked[0]["attempt"]) == ("completed", steps[0]["output"], 0)
    assert (children, len(delegate.calls), forked[1]["attempt"]) == ([], 1, 1)


def test_an_expired_plan_cancels_the_children_of_its_steps(play: Play) -> None:
    gate = Gate()

    async def scenario(harness: Harness) -> Any:
        job_id, running = await begun(harness, gate, delegating(SLOW, SLOW, most=1), 1)
        async with harness.database.connection() as connection:
            await connection.execute(b"UPDATE jobs SET deadline = now() WHERE id = %s", [job_id])
        await harness.sweeper.sweep()
        children = await children_of(harness.database, job_id)
        for child in children:
            harness.dispatcher.interrupt(child["id"])
        await asyncio.wait_for(running, 60)
        await harness.drain()
        await sound(harness)
        return await harness.requests.job("default", job_id), children

    (job, steps), children = play(scenario, ScriptedModel(), [DelegatingTool(), gate.tool()])
    assert (job["status"], steps[0]["status"], steps[0]["error"]["code"]) == ("completed", "failed", "plan_timeout")
    assert [child["status"] for child in children] == ["cancelled"] * 2


def test_a_tool_that_cannot_gather_must_not_delegate(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        return await harness.run("", plan=delegating(FAST))

    _, steps = play(scenario, ScriptedModel(), [DelegatingTool(), make_tool(double)])
    assert steps[0]["status"] == "succeeded"
    job, steps = play(scenario, ScriptedModel(), [Without(), make_tool(double)])
    assert (job["status"], steps[0]["error"]["code"]) == ("completed", "internal")


class Without:
    """A tool that delegates and has no `gather`."""

    def __init__(self) -> None:
        self._whole = DelegatingTool()

    @property
    def definition(self) -> Any:
        return self._whole.definition

    async def call(self, arguments: dict[str, Any], context: Any) -> Any:
        return await self._whole.call(arguments, context)
