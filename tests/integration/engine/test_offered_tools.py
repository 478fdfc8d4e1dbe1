"""Workers with different tools on one database: each runs what it has, and hands on what it has not."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import Pool, StepStatus
from planq.worker.container import Tools, WorkerIdentity, announce
from planq.worker.tools import tool
from planq.worker.tools.registry import Registry
from tests.support.clock import move_clock
from tests.support.harness import Harness, ScriptedModel, make_tool

Play = Callable[..., Any]

OLD = {"calls": [{"tool_name": "old", "arguments": {}}]}
BOTH = {"calls": [{"tool_name": name, "arguments": {}} for name in ("old", "new", "old", "new")]}
NEW = {"calls": [{"tool_name": "new", "arguments": {}}]}


@tool(name="old", effect="read")
async def old_tool() -> dict[str, int]:
    """Be there before and after."""
    return {"value": 1}


@tool(name="new", effect="read")
async def new_tool() -> dict[str, int]:
    """Come with a deployment."""
    return {"value": 2}


async def beside(harness: Harness, *tools: Any) -> Harness:
    """Return another worker on the same database, with tools of its own."""
    other = Harness(harness.database, ScriptedModel(), [make_tool(one) for one in tools])
    await other.open()
    return other


async def drain(*workers: Harness, most: int = 100) -> None:
    """Let each worker carry out all wake-ups that there are, in turn: the first gets every one of them first."""
    for _ in range(most):
        wakes = [wake for worker in workers for wake in worker.published]
        if not wakes:
            return
        for worker in workers:
            worker.published = []
        chosen, workers = workers[0], (*workers[1:], workers[0])
        for wake in wakes:
            await chosen.dispatcher.run(wake)
    raise AssertionError("the wake-ups go round")


def test_a_wake_up_that_reaches_the_wrong_worker_is_handed_on_and_counts_no_attempt(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        both = await beside(harness, old_tool, new_tool)
        job_id = await harness.submit("", plan=BOTH)
        await drain(harness, both)
        return await harness.requests.job("default", job_id)

    job, steps = play(scenario, ScriptedModel(), [make_tool(old_tool)])
    assert job["status"] == "completed"
    assert [(step["status"], step["attempt"], step["releases"]) for step in steps] == [("succeeded", 1, 0)] * 4


def test_a_step_whose_tool_no_live_worker_has_waits_says_so_and_fails_in_the_end(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        both = await beside(harness, old_tool, new_tool)
        job_id = await harness.submit("", plan=NEW)
        await both.worker_registry.forget(both.worker_id)
        await drain(harness)
        waiting = await harness.requests.job("default", job_id)
        assert await harness.sweeper.sweep() == 0, "nothing to be done about it"
        await move_clock(harness.database, timedelta(minutes=4))
        assert await harness.worker_registry.heartbeat(harness.worker_id, timedelta(0))
        await harness.sweeper.sweep()
        assert harness.published == [], "nobody is woken in vain"
        async with harness.database.connection() as connection:
            await connection.execute(b"UPDATE jobs SET deadline = deadline + interval '1 hour'")
        await move_clock(harness.database, timedelta(minutes=11))
        assert await harness.worker_registry.heartbeat(harness.worker_id, timedelta(0))
        await harness.sweeper.sweep()
        await drain(harness)
        return waiting, await harness.requests.job("default", job_id)

    (_, [waits]), (job, [failed]) = play(scenario, ScriptedModel(), [make_tool(old_tool)])
    assert (waits["status"], waits["attempt"]) == ("ready", 0)
    assert waits["tool_away_since"] is not None
    assert (failed["status"], failed["attempt"], failed["error"]["code"]) == ("failed", 0, "unknown_tool")
    assert "no live worker of the pool io has had the tool 'new' for 600 s" in failed["error"]["message"]
    assert job["status"] == "completed"


def test_a_plan_whose_time_ends_while_it_waits_for_a_tool_says_which(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        both = await beside(harness, old_tool, new_tool)
        job_id = await harness.submit("", plan=NEW)
        await both.worker_registry.forget(both.worker_id)
        await drain(harness)
        await move_clock(harness.database, timedelta(minutes=6))
        await harness.sweeper.sweep()
        _, [step] = await harness.requests.job("default", job_id)
        return step["error"]

    error = play(scenario, ScriptedModel(), [make_tool(old_tool)])
    assert error["code"] == "plan_timeout"
    assert "wait for tools that no live worker has: 'new'" in error["message"]


def test_a_tool_that_comes_back_is_called_at_once(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        both = await beside(harness, old_tool, new_tool)
        job_id = await harness.submit("", plan=NEW)
        await both.worker_registry.forget(both.worker_id)
        await drain(harness)
        await both.open()
        await harness.sweeper.sweep()
        assert [wake.ref.is_stage for wake in harness.published] == [False]
        await drain(harness, both)
        return await harness.requests.job("default", job_id)

    job, [step] = play(scenario, ScriptedModel(), [make_tool(old_tool)])
    assert (job["status"], step["status"], step["attempt"]) == ("completed", "succeeded", 1)


def test_a_tool_that_goes_between_the_claim_and_the_call_costs_no_try(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        job_id = await harness.submit("", plan=OLD)
        await beside(harness, old_tool)
        harness.registry.replace(harness.registry.find("old").definition.source, [])  # type: ignore[union-attr]
        await drain(harness)
        return await harness.requests.job("default", job_id)

    _, [step] = play(scenario, ScriptedModel(), [make_tool(old_tool)])
    assert (step["status"], step["releases"], step["error"]) == (StepStatus.READY, 1, None)


@pytest.mark.parametrize("is_alive", [True, False], ids=["it lives", "it has gone"])
def test_a_step_goes_to_the_worker_with_the_schemas_of_its_plan_as_long_as_it_lives(
    play: Play, is_alive: bool
) -> None:
    @tool(name="old", effect="read")
    async def changed() -> dict[str, str]:
        """Answer in another form."""
        return {"value": "1"}

    async def scenario(harness: Harness) -> Any:
        other = await beside(harness, changed)
        await harness.open()  # its definition is the one that plans are checked against
        job_id = await harness.submit("", plan=OLD)
        harness.dispatcher.wind_down()
        await harness.dispatcher.run(harness.published.pop())
        (wake,) = harness.published
        harness.published = []
        if not is_alive:
            await harness.worker_registry.forget(harness.worker_id)
        await other.dispatcher.run(wake)
        _, [step] = await harness.requests.job("default", job_id)
        return step, other.published

    step, handed_on = play(scenario, ScriptedModel(), [make_tool(old_tool)])
    if is_alive:
        assert (step["status"], step["attempt"]) == ("ready", 0)
        assert [wake.ref.index for wake in handed_on] == [0]
    else:
        assert (step["status"], step["output"]) == ("succeeded", {"value": "1"})


def test_a_worker_that_starts_logs_which_of_its_tools_others_have_otherwise(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    @tool(name="old", effect="read", version="2")
    async def changed() -> dict[str, str]:
        """Answer in another form."""
        return {"value": "1"}

    async def scenario(harness: Harness) -> None:
        identity = WorkerIdentity(new_id(), "newcomer", Pool.IO, 1, 1)
        registry = Registry()
        registry.extend([make_tool(changed), make_tool(new_tool)])
        tools = SimpleNamespace(registry=registry, planners=SimpleNamespace(names=()))
        await announce(harness.worker_registry, identity, cast(Tools, tools))

    with caplog.at_level(logging.WARNING, "planq.worker"):
        play(scenario, ScriptedModel(), [make_tool(old_tool)])
    told = {(record.tool, record.version, *record.workers) for record in caplog.records}  # type: ignore[attr-defined]
    assert told == {("old", "", "test"), ("old", "2", "newcomer")}
