"""What runs here and what is held: cut off, handed back, given back before it began, rejected when it is late."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.states import Pool
from planq.shared.kernel.wakes import Wake
from planq.shared.subjects.metrics.store import TallyStore
from planq.worker.container import WorkerRuntime
from planq.worker.engine.lease import Lease
from planq.worker.runtime.reconcile import LoopInFlight, Reconciler
from planq.worker.tools import tool
from tests.support.claiming import claim_step
from tests.support.harness import LEASE, Harness, ScriptedModel, make_tool

Play = Callable[..., Any]


class BlockingTool:
    """A tool that waits for the test."""

    def __init__(self, effect: str = "read") -> None:
        self.begun = asyncio.Event()
        self.go = asyncio.Event()
        self.has_answered = False

        @tool(name="held", effect=effect)
        async def held() -> dict[str, int]:
            """Wait to be let go."""
            self.begun.set()
            await self.go.wait()
            self.has_answered = True
            return {"done": 1}

        self.tool = make_tool(held)


async def begun(harness: Harness, tool: BlockingTool) -> tuple[UUID, asyncio.Task[Any]]:
    """A job whose only step runs."""
    job_id = await harness.submit("", plan={"calls": [{"tool_name": "held", "arguments": {}}]})
    running = asyncio.create_task(harness.dispatcher.run(harness.published.pop()))
    await asyncio.wait_for(tool.begun.wait(), 60)
    return job_id, running


async def planned(harness: Harness) -> UUID:
    """A job whose only step is ready."""
    job_id = await harness.submit("", plan={"calls": [{"tool_name": "held", "arguments": {}}]})
    harness.dispatcher.wind_down()
    await harness.dispatcher.run(harness.published.pop())
    harness.published.clear()
    return job_id


def reconciler(harness: Harness, lease: Lease | None = None) -> Reconciler:
    runtime = cast(WorkerRuntime, SimpleNamespace(loop=asyncio.get_running_loop()))
    here = LoopInFlight(runtime, harness.dispatcher.in_flight)
    return Reconciler(harness.worker_registry, harness.worker_id, here, lease or Lease(LEASE), harness)


async def take_back(harness: Harness, job_id: UUID) -> None:
    """Do as a sweep that took this worker for lost."""
    async with harness.database.connection() as connection:
        await connection.execute(
            "UPDATE steps SET status = 'ready', worker_id = NULL, wake_at = now() WHERE job_id = %s", [job_id]
        )


async def step_of(harness: Harness, job_id: UUID) -> Any:
    _, [step] = await harness.requests.job("default", job_id)
    return step


def test_an_attempt_that_was_taken_back_is_cut_off_and_writes_nothing(play: Play) -> None:
    held = BlockingTool("unsafe")

    async def scenario(harness: Harness) -> Any:
        job_id, running = await begun(harness, held)
        compare = reconciler(harness)
        assert await compare.beat(timedelta(0))
        assert not running.done(), "what is held goes on"
        await take_back(harness, job_id)
        assert await compare.beat(timedelta(0))
        await asyncio.wait_for(running, 60)
        return await step_of(harness, job_id), harness.dispatcher.in_flight

    step, claims = play(scenario, ScriptedModel(), [held.tool])
    assert (step["status"], step["error"]) == ("ready", None)
    assert (claims.count, claims.late_outcomes) == (0, 0)


def test_a_late_outcome_is_rejected_and_counted(play: Play) -> None:
    held = BlockingTool()

    async def scenario(harness: Harness) -> Any:
        job_id, running = await begun(harness, held)
        await take_back(harness, job_id)
        held.go.set()
        await asyncio.wait_for(running, 60)
        beats = reconciler(harness)
        await beats.beat(timedelta(milliseconds=70))
        [worker] = await harness.worker_registry.live()
        return await step_of(harness, job_id), worker

    step, worker = play(scenario, ScriptedModel(), [held.tool])
    assert (step["status"], step["output"]) == ("ready", None)
    assert (worker["late_outcomes"], worker["in_flight"], worker["lag_ms"]) == (1, 0, 70)


@pytest.mark.parametrize("effect", ["read", "unsafe"])
def test_a_claim_whose_answer_was_lost_is_handed_back_at_the_second_look(play: Play, effect: str) -> None:
    held = BlockingTool(effect)

    async def scenario(harness: Harness) -> Any:
        job_id = await planned(harness)
        ref = StepRef(job_id, 0, 0)
        assert await claim_step(harness.store, ref) is not None
        compare = reconciler(harness)
        await compare.beat(timedelta(0))
        first = (await step_of(harness, job_id))["status"]
        await compare.beat(timedelta(0))
        return first, await step_of(harness, job_id), harness.published, ref

    first, step, published, ref = play(scenario, ScriptedModel(), [held.tool])
    assert (first, step["status"], step["error"]) == ("running", "ready", None), "nothing of it was called"
    assert published == [Wake(ref, Pool.IO, "held", 2)]


@pytest.mark.parametrize("effect", ["read", "unsafe"])
def test_a_worker_that_stops_while_it_claims_gives_back_what_nobody_called(play: Play, effect: str) -> None:
    held = BlockingTool(effect)

    async def scenario(harness: Harness) -> Any:
        job_id = await planned(harness)
        claimed, answer = asyncio.Event(), asyncio.Event()
        real = harness.store.claim

        async def slow(refs: Any) -> Any:
            claim = await real(refs)
            claimed.set()
            await answer.wait()
            return claim

        harness.store.claim = slow  # type: ignore[method-assign]
        ref = StepRef(job_id, 0, 0)
        running = asyncio.create_task(harness.dispatcher.run(Wake(ref, Pool.IO, "held")))
        await asyncio.wait_for(claimed.wait(), 60)
        running.cancel()
        answer.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        return await step_of(harness, job_id), harness.published, ref, held.begun.is_set()

    step, published, ref, was_called = play(scenario, ScriptedModel(), [held.tool])
    assert (step["status"], step["error"], was_called) == ("ready", None, False)
    assert published == [Wake(ref, Pool.IO, "held", 2)]


def test_a_job_that_is_cancelled_while_its_step_is_claimed_calls_nothing(play: Play) -> None:
    held = BlockingTool()

    async def scenario(harness: Harness) -> Any:
        job_id = await planned(harness)
        real = harness.store.claim

        async def overtaken(refs: Any) -> Any:
            claim = await real(refs)
            await harness.requests.cancel("default", job_id)
            harness.dispatcher.interrupt(job_id)
            return claim

        harness.store.claim = overtaken  # type: ignore[method-assign]
        carried = await harness.run_one(Wake(StepRef(job_id, 0, 0), Pool.IO, "held"))
        return carried.text, held.begun.is_set(), (await step_of(harness, job_id))["status"]

    assert play(scenario, ScriptedModel(), [held.tool]) == ("nothing to do", False, "cancelled")


def test_a_worker_whose_lease_is_not_fresh_looks_before_it_writes(play: Play) -> None:
    """After a freeze: the outcome is there first, the comparison comes second, and the outcome waits for it."""
    held = BlockingTool()

    async def scenario(harness: Harness) -> Any:
        now = [100.0]
        lease = Lease(LEASE, clock=lambda: now[0])
        harness.dispatcher.in_flight.lease = lease
        job_id, running = await begun(harness, held)
        now[0] += 60
        held.go.set()
        async with asyncio.timeout(60):
            while not held.has_answered:
                await asyncio.wait([running], timeout=0.01)
        before = (await step_of(harness, job_id))["status"]
        await take_back(harness, job_id)
        compare = reconciler(harness, lease)
        await compare.compare(asked=now[0])
        await asyncio.wait_for(running, 60)
        return before, (await step_of(harness, job_id))["status"], harness.dispatcher.in_flight.late_outcomes

    assert play(scenario, ScriptedModel(), [held.tool]) == ("running", "ready", 0)


def test_a_worker_that_was_frozen_between_claim_and_call_does_not_begin_what_was_taken_back(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would do, after its time, what another one may have done by then."""
    held = BlockingTool("unsafe")

    async def scenario(harness: Harness) -> Any:
        now = [100.0]
        lease = Lease(LEASE, clock=lambda: now[0])
        harness.dispatcher.in_flight.lease = lease
        job_id = await planned(harness)
        claim, claimed = harness.store.claim, asyncio.Event()

        async def claim_and_freeze(refs: Any) -> Any:
            answer = await claim(refs)
            now[0] += 60
            claimed.set()
            return answer

        monkeypatch.setattr(harness.store, "claim", claim_and_freeze)
        running = asyncio.create_task(harness.dispatcher.run(Wake(StepRef(job_id, 0, 0), Pool.IO, "held")))
        await asyncio.wait_for(claimed.wait(), 60)
        await take_back(harness, job_id)
        await reconciler(harness, lease).compare(asked=now[0])
        await asyncio.wait_for(running, 60)
        return held.begun.is_set(), (await step_of(harness, job_id))["status"]

    assert play(scenario, ScriptedModel(), [held.tool]) == (False, "ready")


def test_a_call_that_is_just_being_given_up_is_not_taken_for_one_that_was_never_made(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is cancelled twice leaves before the database has answered, and a comparison may come in between."""
    held = BlockingTool("unsafe")

    async def scenario(harness: Harness) -> Any:
        job_id, running = await begun(harness, held)
        fail, asked, answer, failed = harness.store.fail_step, asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def slow(*arguments: Any, **named: Any) -> Any:
            asked.set()
            await answer.wait()
            try:
                return await fail(*arguments, **named)
            finally:
                failed.set()

        monkeypatch.setattr(harness.store, "fail_step", slow)
        running.cancel()
        await asyncio.wait_for(asked.wait(), 60)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        compare = reconciler(harness)
        for _ in range(3):
            await compare.compare()
        step, published = await step_of(harness, job_id), list(harness.published)
        answer.set()
        await asyncio.wait_for(failed.wait(), 60)
        return step["status"], step["releases"], published

    assert play(scenario, ScriptedModel(), [held.tool]) == ("running", 0, [])


def test_a_database_that_was_away_costs_no_work_that_nobody_took(play: Play) -> None:
    """Every lease has lapsed, no sweep came: the next beat finds all still held."""
    held = BlockingTool("unsafe")

    async def scenario(harness: Harness) -> Any:
        job_id, running = await begun(harness, held)
        async with harness.database.connection() as connection:
            await connection.execute("UPDATE workers SET heartbeat_at = now() - interval '1 minute'")
        assert await reconciler(harness).beat(timedelta(0))
        held.go.set()
        await asyncio.wait_for(running, 60)
        return await step_of(harness, job_id), harness.published, job_id

    step, published, job_id = play(scenario, ScriptedModel(), [held.tool])
    assert (step["status"], step["attempt"]) == ("succeeded", 1)
    assert all(wake == Wake.respond(job_id) for wake in published)


@pytest.mark.parametrize(("effect", "ended"), [("read", ("failed", 5)), ("unsafe", ("ready", 5))])
def test_what_comes_back_for_the_third_time_without_an_end_counts_as_a_loss(
    play: Play, effect: str, ended: tuple[str, int]
) -> None:
    """Else a step whose end cannot be stored is called for ever. An unsafe one that was never called may go on."""

    async def scenario(harness: Harness) -> Any:
        job_id = await planned(harness)
        compare = reconciler(harness)
        for _ in range(5):
            assert await claim_step(harness.store, StepRef(job_id, 0, 0)) is not None
            await compare.beat(timedelta(0))
            await compare.beat(timedelta(0))
            await harness.sweeper.sweep()
        step = await step_of(harness, job_id)
        return step["status"], step["attempt"]

    assert play(scenario, ScriptedModel(), [BlockingTool(effect).tool]) == ended


def test_a_worker_whose_row_was_removed_tells_the_new_one_only_what_came_after(play: Play) -> None:
    """The database keeps what the old row was told; told again, it would count twice."""

    async def scenario(harness: Harness) -> None:
        counted = Counter({("tool_call", "now", "succeeded"): 3})
        runtime = cast(WorkerRuntime, SimpleNamespace(loop=asyncio.get_running_loop()))
        here = LoopInFlight(runtime, harness.dispatcher.in_flight)
        told = Reconciler(
            harness.worker_registry, harness.worker_id, here, Lease(LEASE), harness, counts=lambda: counted
        )
        tallies = TallyStore(harness.database)
        assert await told.tell(timedelta(0))

        for came_after in (2, 5):
            await harness.worker_registry.forget(harness.worker_id)
            counted["tool_call", "now", "succeeded"] += came_after
            assert not await told.tell(timedelta(0))
            await harness.open()
            assert await told.tell(timedelta(0))
            number = (await tallies.counted())["tool_call", "now", "succeeded"]
            assert number == counted["tool_call", "now", "succeeded"]

    play(scenario, ScriptedModel(), [])
