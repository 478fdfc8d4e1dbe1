"""What a worker stops when its lease is over, what it says of that, and when others may look into it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from planq.shared.agentic.tools.contract import ToolContext
from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.states import Effect
from planq.shared.kernel.store.worker_registry import WorkerRegistry
from planq.worker.engine.lease import Lease
from planq.worker.tools import NotHappened, OwnershipLost, tool
from tests.support.claiming import claim_step
from tests.support.harness import LEASE, Harness, ScriptedModel, make_tool
from tests.support.waiting import PATIENCE, until

Play = Callable[..., Any]


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


async def not_happened() -> NotHappened:
    return NotHappened()


class BlockingTool:
    """A tool that tells when it has begun, when it was stopped, and does not answer before it is let go."""

    def __init__(self, effect: str, **options: Any) -> None:
        self.begun, self.go, self.stopped = asyncio.Event(), asyncio.Event(), asyncio.Event()

        @tool(name="held", effect=effect, **options)
        async def held() -> dict[str, int]:
            """Wait to be let go."""
            self.begun.set()
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.stopped.set()
                raise
            return {"done": 1}

        self.tool = make_tool(held)


class Stuck:
    """The same in a thread of the `io` pool, which nobody can stop; `seen` is what `confirm_sync` said at its end."""

    def __init__(self, *, database: bool = False, **options: Any) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        self.seen: list[str] = []

        @tool(name="held", effect="unsafe", pool="io", **options)
        def stuck(context: ToolContext) -> dict[str, int]:
            """Wait to be let go."""
            self.begun.set()
            assert self.go.wait(PATIENCE)
            try:
                context.confirm_sync(database=database)
                self.seen.append("owner")
            except OwnershipLost as lost:
                self.seen.append(lost.message)
            return {"done": 1}

        self.tool = make_tool(stuck)


def leased(harness: Harness) -> tuple[Lease, Clock]:
    """Give the engine's worker a lease on a clock of the test's."""
    clock = Clock()
    lease = Lease(LEASE, clock=clock)
    harness.dispatcher.in_flight.lease = lease
    return lease, clock


async def begun(harness: Harness, is_begun: Callable[[], bool]) -> tuple[UUID, asyncio.Task[Any]]:
    """A job whose only step runs."""
    job_id = await harness.submit("", plan={"calls": [{"tool_name": "held", "arguments": {}}]})
    running = asyncio.create_task(harness.dispatcher.run(harness.published.pop()))
    await until(is_begun)
    return job_id, running


async def step_of(harness: Harness, job_id: UUID) -> Any:
    _, [step] = await harness.requests.job("default", job_id)
    return step


async def take_back(harness: Harness, job_id: UUID) -> None:
    """Do as a sweep that took this worker for lost."""
    async with harness.database.connection() as connection:
        await connection.execute(
            "UPDATE steps SET status = 'ready', worker_id = NULL, wake_at = now() WHERE job_id = %s", [job_id]
        )


@pytest.mark.parametrize(
    ("effect", "options", "status", "code", "in_doubt"),
    [
        ("unsafe", {"find_out": not_happened}, "ready", "outcome_unknown", True),
        ("unsafe", {"recovery": "ask"}, "waiting", "outcome_unknown", False),
        ("unsafe", {}, "failed", "outcome_unknown", False),
        ("idempotent", {}, "ready", None, False),
    ],
)
def test_a_write_is_stopped_when_the_lease_is_over_and_that_is_said_when_it_is_back(
    play: Play, effect: str, options: dict[str, Any], status: str, code: str | None, in_doubt: bool
) -> None:
    held = BlockingTool(effect, **options)

    async def scenario(harness: Harness) -> Any:
        lease, clock = leased(harness)
        job_id, running = await begun(harness, held.begun.is_set)
        clock.now += 60
        harness.dispatcher.in_flight.fence()
        await asyncio.wait_for(held.stopped.wait(), PATIENCE)
        before = await step_of(harness, job_id)
        assert (before["status"], running.done()) == ("running", False), "nothing is said without a lease"
        lease.renewed(clock.now)
        await asyncio.wait_for(running, PATIENCE)
        return await step_of(harness, job_id), harness.dispatcher.in_flight

    step, claims = play(scenario, ScriptedModel(), [held.tool])
    error = step["error"]
    assert (step["status"], error and error["code"], step["in_doubt"]) == (status, code, in_doubt)
    assert (claims.count, claims.late_outcomes, claims.writes.acting) == (0, 0, [])
    assert step["attempt"] - step["releases"] == (0 if effect == "idempotent" else 1), "no retry is used up"


def test_what_was_stopped_is_left_to_those_who_took_it_over(play: Play) -> None:
    held = BlockingTool("unsafe", find_out=not_happened)

    async def scenario(harness: Harness) -> Any:
        lease, clock = leased(harness)
        job_id, running = await begun(harness, held.begun.is_set)
        clock.now += 60
        harness.dispatcher.in_flight.fence()
        await asyncio.wait_for(held.stopped.wait(), PATIENCE)
        await take_back(harness, job_id)
        harness.dispatcher.in_flight.cut_off(harness.dispatcher.in_flight.attempts())
        lease.renewed(clock.now)
        await asyncio.wait_for(running, PATIENCE)
        return await step_of(harness, job_id), harness.dispatcher.in_flight.count

    step, in_flight = play(scenario, ScriptedModel(), [held.tool])
    assert (step["status"], step["error"], in_flight) == ("ready", None, 0)


def test_a_read_goes_on_without_a_lease_and_its_result_waits_for_it(play: Play) -> None:
    held = BlockingTool("read")

    async def scenario(harness: Harness) -> Any:
        lease, clock = leased(harness)
        job_id, running = await begun(harness, held.begun.is_set)
        clock.now += 60
        harness.dispatcher.in_flight.fence()
        held.go.set()
        await asyncio.wait([running], timeout=0.3)
        assert (await step_of(harness, job_id))["status"] == "running"
        lease.renewed(clock.now)
        await asyncio.wait_for(running, PATIENCE)
        return await step_of(harness, job_id), held.stopped.is_set()

    step, was_stopped = play(scenario, ScriptedModel(), [held.tool])
    assert (step["status"], step["attempt"], was_stopped) == ("succeeded", 1, False)


def test_a_thread_that_nobody_can_stop_is_not_said_to_have_stopped(play: Play) -> None:
    """Where somebody will look whether it has happened, the answer must not be overtaken."""
    stuck = Stuck(find_out=not_happened)

    async def scenario(harness: Harness) -> Any:
        lease, clock = leased(harness)
        job_id, running = await begun(harness, stuck.begun.is_set)
        claims = harness.dispatcher.in_flight
        clock.now += 60
        claims.fence()
        lease.renewed(clock.now)
        await asyncio.wait([running], timeout=0.5)
        [attempt] = claims.writes.acting
        assert (await step_of(harness, job_id))["status"] == "running"
        assert claims.is_here(attempt), "a comparison does not hand it back"
        stuck.go.set()
        await asyncio.wait_for(running, PATIENCE)
        return await step_of(harness, job_id), claims.writes.acting

    step, acting = play(scenario, ScriptedModel(), [stuck.tool])
    assert (step["status"], step["in_doubt"], acting) == ("ready", True, [])
    assert stuck.seen == ["the call was broken off: nothing may be done in its name any more"]


@pytest.mark.parametrize("recovery", ["find_out", "fail"])
def test_a_thread_past_its_time_is_waited_for_where_somebody_will_look(play: Play, recovery: str) -> None:
    options: dict[str, Any] = {"find_out": not_happened} if recovery == "find_out" else {}
    stuck = Stuck(timeout_seconds=0.2, **options)

    async def scenario(harness: Harness) -> Any:
        job_id, running = await begun(harness, stuck.begun.is_set)
        await until(lambda: (harness.dispatcher.in_flight.writes.acting and running.done()) or recovery == "find_out")
        if recovery == "find_out":
            await asyncio.wait([running], timeout=0.5)
            assert (await step_of(harness, job_id))["status"] == "running"
        stuck.go.set()
        await asyncio.wait_for(running, PATIENCE)
        await until(lambda: not harness.dispatcher.in_flight.writes.acting)
        return await step_of(harness, job_id)

    step = play(scenario, ScriptedModel(), [stuck.tool])
    expected = ("ready", True) if recovery == "find_out" else ("failed", False)
    assert (step["status"], step["in_doubt"]) == expected
    assert step["error"]["code"] == ("outcome_unknown" if recovery == "find_out" else "timeout")


def test_a_stopping_worker_gives_back_no_call_of_which_a_thread_still_runs(play: Play) -> None:
    stuck = Stuck(recovery="ask")

    async def scenario(harness: Harness) -> Any:
        job_id, running = await begun(harness, stuck.begun.is_set)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(running, PATIENCE)
        step = await step_of(harness, job_id)
        stuck.go.set()
        await until(lambda: not harness.dispatcher.in_flight.writes.acting)
        return step

    assert play(scenario, ScriptedModel(), [stuck.tool])["status"] == "running"


# Who looks when


async def claimed(harness: Harness) -> Callable[[], Any]:
    """A worker took a step; returns what looks whether that is lost."""
    job_id = await harness.submit("", plan={"calls": [{"tool_name": "held", "arguments": {}}]})
    harness.dispatcher.wind_down()
    await harness.dispatcher.run(harness.published.pop())
    assert await claim_step(harness.store, StepRef(job_id, 0, 0)) is not None

    async def lost() -> list[tuple[str, str]]:
        found = await harness.worker_registry.lost_steps(10, timedelta(seconds=10))
        looked = await harness.worker_registry.look(timedelta(seconds=10), timedelta(0))
        assert ("steps" in [str(part) for part in looked.parts]) == bool(found), "a look finds what there is"
        return [(step.tool_name, str(step.seen)) for step in found]

    return lost


async def change(harness: Harness, statement: str) -> None:
    async with harness.database.connection() as connection:
        await connection.execute(statement.encode())


SILENT = "UPDATE workers SET heartbeat_at = now() - interval '1 hour'"
GONE = "UPDATE workers SET heartbeat_at = 'epoch'"
FORGOTTEN = "DELETE FROM workers"
ABANDONED = "UPDATE steps SET worker_id = NULL"


@pytest.mark.parametrize(
    ("options", "struck", "past", "found"),
    [
        # A lease that is over proves nothing of a worker that stands still, or whose clock does.
        ({"find_out": not_happened}, SILENT, 0, []),
        ({"recovery": "ask"}, SILENT, 0, []),
        ({"find_out": not_happened}, SILENT, 62, []),
        ({"find_out": not_happened}, SILENT, 64, [("held", "lease")]),
        ({"recovery": "ask"}, SILENT, 64, [("held", "lease")]),
        # It has gone, or said so.
        ({"find_out": not_happened}, GONE, 0, [("held", "gone")]),
        ({"recovery": "ask"}, GONE, 0, [("held", "gone")]),
        ({"find_out": not_happened}, FORGOTTEN, 0, [("held", "lease")]),
        ({"find_out": not_happened}, ABANDONED, 0, [("held", "abandoned")]),
        # Nobody repeats it.
        ({}, SILENT, 0, [("held", "lease")]),
        # It lives, and says so itself.
        ({"find_out": not_happened}, "SELECT 1", 300, []),
        ({}, "SELECT 1", 300, [("held", "lease")]),
    ],
)
def test_a_call_is_looked_into_when_it_can_act_no_more(
    play: Play, options: dict[str, Any], struck: str, past: float, found: list[tuple[str, str]]
) -> None:
    held = BlockingTool("unsafe", timeout_seconds=60, **options)

    async def scenario(harness: Harness) -> Any:
        harness.worker_registry = WorkerRegistry(harness.database, LEASE, timedelta(seconds=3))
        lost = await claimed(harness)
        await change(harness, struck)
        await change(harness, f"UPDATE steps SET deadline = deadline - interval '{past} seconds'")
        return await lost()

    assert play(scenario, ScriptedModel(), [held.tool]) == found


@pytest.mark.parametrize("effect", ["read", "idempotent"])
def test_what_may_be_done_twice_is_taken_over_as_soon_as_the_lease_is_over(play: Play, effect: str) -> None:
    held = BlockingTool(effect, timeout_seconds=60)

    async def scenario(harness: Harness) -> Any:
        lost = await claimed(harness)
        await change(harness, SILENT)
        return await lost()

    assert play(scenario, ScriptedModel(), [held.tool]) == [("held", "lease")]


def test_an_attempt_that_had_to_find_out_first_may_act_for_twice_as_long(play: Play) -> None:
    held = BlockingTool("unsafe", timeout_seconds=60, find_out=not_happened)

    async def scenario(harness: Harness) -> Any:
        harness.worker_registry = WorkerRegistry(harness.database, LEASE, timedelta(seconds=3))
        lost = await claimed(harness)
        await change(harness, SILENT)
        await change(harness, "UPDATE steps SET in_doubt = true, deadline = deadline - interval '64 seconds'")
        before = await lost()
        assert not await harness.worker_registry.broken_invariants(), "it is waited for"
        await change(harness, "UPDATE steps SET deadline = deadline - interval '60 seconds'")
        assert [row["invariant"] for row in await harness.worker_registry.broken_invariants()] == [
            "running_without_lease"
        ]
        return before, await lost()

    assert play(scenario, ScriptedModel(), [held.tool]) == ([], [("held", "lease")])


# confirm


class Confirming:
    """A tool that asks, when it is let go, whether it may act."""

    def __init__(self, effect: str = "unsafe", *, database: bool) -> None:
        self.begun, self.go = asyncio.Event(), asyncio.Event()
        self.seen: list[str] = []

        @tool(name="held", effect=effect)
        async def confirming(context: ToolContext) -> dict[str, int]:
            """Ask just before the effect."""
            self.begun.set()
            await self.go.wait()
            try:
                await context.confirm(database=database)
            except OwnershipLost as lost:
                self.seen.append(lost.message)
                raise
            self.seen.append("owner")
            return {"done": 1}

        self.tool = make_tool(confirming)


@pytest.mark.parametrize("database", [False, True])
def test_the_owner_is_confirmed(play: Play, database: bool) -> None:
    asking = Confirming(database=database)

    async def scenario(harness: Harness) -> Any:
        leased(harness)
        job_id, running = await begun(harness, asking.begun.is_set)
        asking.go.set()
        await asyncio.wait_for(running, PATIENCE)
        return await step_of(harness, job_id)

    assert play(scenario, ScriptedModel(), [asking.tool])["status"] == "succeeded"
    assert asking.seen == ["owner"]


@pytest.mark.parametrize("effect", list(Effect))
def test_nobody_is_confirmed_without_a_lease(play: Play, effect: str) -> None:
    asking = Confirming(str(effect), database=False)

    async def scenario(harness: Harness) -> Any:
        lease, clock = leased(harness)
        job_id, running = await begun(harness, asking.begun.is_set)
        clock.now += 60
        asking.go.set()
        await until(lambda: asking.seen)
        lease.renewed(clock.now)
        await asyncio.wait_for(running, PATIENCE)
        return await step_of(harness, job_id)

    step = play(scenario, ScriptedModel(), [asking.tool])
    assert "renew its lease" in asking.seen[0]
    assert step["error"]["code"] == "ownership_lost"
    assert step["status"] == ("failed" if effect == "unsafe" else "ready")


@pytest.mark.parametrize(("database", "seen"), [(False, "owner"), (True, "the attempt is over")])
def test_the_database_knows_of_what_was_taken_over(play: Play, database: bool, seen: str) -> None:
    asking = Confirming(database=database)

    async def scenario(harness: Harness) -> Any:
        leased(harness)
        job_id, running = await begun(harness, asking.begun.is_set)
        await take_back(harness, job_id)
        asking.go.set()
        await asyncio.wait_for(running, PATIENCE)
        return (await step_of(harness, job_id))["status"]

    assert play(scenario, ScriptedModel(), [asking.tool]) == "ready"
    assert asking.seen[0].startswith(seen)


def test_a_database_that_does_not_answer_is_no_confirmation(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    asking = Confirming(database=True)

    async def scenario(harness: Harness) -> Any:
        lease, clock = leased(harness)

        async def never(*_: Any) -> bool:
            return await asyncio.get_running_loop().create_future()

        monkeypatch.setattr(harness.store, "holds_step", never)
        _, running = await begun(harness, asking.begun.is_set)
        clock.now = lease.ends_at - 0.2
        asking.go.set()
        await asyncio.wait_for(running, PATIENCE)

    play(scenario, ScriptedModel(), [asking.tool])
    assert "did not say in time" in asking.seen[0]


@pytest.mark.parametrize("database", [False, True])
def test_a_synchronous_tool_is_confirmed_in_its_thread(play: Play, database: bool) -> None:
    stuck = Stuck(database=database)

    async def scenario(harness: Harness) -> Any:
        leased(harness)
        job_id, running = await begun(harness, stuck.begun.is_set)
        stuck.go.set()
        await asyncio.wait_for(running, PATIENCE)
        return await step_of(harness, job_id)

    assert play(scenario, ScriptedModel(), [stuck.tool])["status"] == "succeeded"
    assert stuck.seen == ["owner"]


def test_a_synchronous_tool_learns_that_its_step_was_taken_over(play: Play) -> None:
    stuck = Stuck(database=True)

    async def scenario(harness: Harness) -> Any:
        leased(harness)
        job_id, running = await begun(harness, stuck.begun.is_set)
        await take_back(harness, job_id)
        stuck.go.set()
        await asyncio.wait_for(running, PATIENCE)

    play(scenario, ScriptedModel(), [stuck.tool])
    assert stuck.seen[0].startswith("the attempt is over")


def test_a_call_whose_time_is_over_is_not_confirmed(play: Play) -> None:
    """Though the loop, which would break it off, has not come to that."""
    asking = Confirming(database=False)

    async def scenario(harness: Harness) -> Any:
        lease, clock = leased(harness)
        _, running = await begun(harness, asking.begun.is_set)
        clock.now += 61
        lease.renewed(clock.now)
        asking.go.set()
        await asyncio.wait_for(running, PATIENCE)

    play(scenario, ScriptedModel(), [asking.tool])
    assert asking.seen == ["the time of the call has run out"]
