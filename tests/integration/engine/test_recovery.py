"""Unsafe calls that were cut off: their step fails, asks a person, or its tool finds out; none happens twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from planq.shared.kernel.claims import StepClaim
from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.states import JobStatus, Pool, Settlement
from planq.shared.kernel.wakes import Wake
from planq.shared.platform.errors import RateLimited, Transient
from planq.shared.subjects.jobs.again import steps_with_unknown_outcome
from planq.shared.subjects.jobs.store import Verdict
from planq.worker.tools import NotHappened, ToolContext, ToolError, tool
from tests.support.claiming import claim_stage, claim_step
from tests.support.harness import LEASE, Harness, ScriptedModel, make_tool

Play = Callable[..., Any]


class Bank:
    """The other side of the calls: what it was asked, and what it did."""

    def __init__(self) -> None:
        self.paid: list[str] = []
        self.asked: list[str] = []
        self.away = 0
        self.entered = asyncio.Event()

    def tools(
        self, recovery: str, *, hangs: bool = False, timeout_seconds: float = 5.0, pool: str = "io"
    ) -> list[Any]:
        """A tool that pays, with this recovery. Where it `hangs`, its answer to the first call never arrives."""

        async def look_up(context: ToolContext) -> dict[str, str] | NotHappened:
            self.asked.append(context.idempotency_key)
            if len(self.asked) <= self.away:
                raise Transient("the bank is closed")
            return {"receipt": "looked up"} if context.idempotency_key in self.paid else NotHappened()

        options: dict[str, Any] = {"find_out": look_up} if recovery == "find_out" else {"recovery": recovery}

        @tool(effect="unsafe", pool=pool, timeout_seconds=timeout_seconds, **options)
        async def pay(context: ToolContext) -> dict[str, str]:
            """Pay once."""
            self.paid.append(context.idempotency_key)
            if hangs and len(self.paid) == 1:
                self.entered.set()
                await asyncio.Event().wait()
            return {"receipt": "paid"}

        @tool(effect="pure")
        async def file(receipt: str) -> dict[str, str]:
            """Keep the receipt."""
            return {"filed": receipt}

        return [make_tool(pay), make_tool(file)]


PLAN = {
    "calls": [
        {"tool_name": "pay", "arguments": {}},
        {"tool_name": "file", "arguments": {"receipt": "$0.output.receipt"}},
    ]
}


async def executing(harness: Harness, plan: Any = PLAN) -> UUID:
    """Submit the plan and carry out its PLAN stage only."""
    job_id = await harness.submit("", plan=plan)
    claim = await claim_stage(harness.store, job_id, [JobStatus.QUEUED])
    assert claim is not None
    await harness.carry_out(claim)
    harness.published.clear()
    return job_id


async def let_waits_pass(harness: Harness) -> None:
    """Let every step that waits for its next attempt be due."""
    async with harness.database.connection() as connection:
        await connection.execute("UPDATE steps SET run_at = now(), wake_at = now() WHERE status = 'ready'")


async def lose_the_worker(harness: Harness, job_id: UUID, index: int = 0) -> None:
    """Let a worker claim a step and die; another one sweeps."""
    claim = await claim_step(harness.store, StepRef(job_id, 0, index))
    assert claim is not None
    await harness.worker_registry.forget(harness.worker_id)
    await harness.sweeper.sweep()
    await harness.open()


async def go_on(harness: Harness) -> None:
    """Carry out what is due; waits between attempts have passed."""
    await let_waits_pass(harness)
    await harness.sweeper.sweep()
    await harness.drain()


async def seen(harness: Harness, job_id: UUID) -> tuple[Any, list[Any]]:
    job, steps = await harness.requests.job("default", job_id)
    return job, list(steps)


@pytest.mark.parametrize("had_happened", [True, False])
def test_a_tool_that_can_finds_out_what_a_lost_worker_did(play: Play, had_happened: bool) -> None:
    bank = Bank()

    async def scenario(harness: Harness) -> Any:
        job_id = await executing(harness)
        if had_happened:
            bank.paid.append(f"{job_id}/0")
        await lose_the_worker(harness, job_id)
        _, steps = await seen(harness, job_id)
        assert (steps[0]["status"], steps[0]["error"]["code"]) == ("ready", "outcome_unknown")
        await go_on(harness)
        return job_id, await seen(harness, job_id)

    job_id, (job, steps) = play(scenario, ScriptedModel(), bank.tools("find_out"))
    assert job["status"] == "completed"
    assert [step["status"] for step in steps] == ["succeeded", "succeeded"]
    assert steps[1]["output"] == {"filed": "looked up" if had_happened else "paid"}
    assert (bank.asked, bank.paid) == ([f"{job_id}/0"], [f"{job_id}/0"])


def test_an_answer_that_never_arrived_is_looked_up(play: Play) -> None:
    """The worker lives: the call is cut off at its timeout, after it took effect."""
    bank = Bank()

    async def scenario(harness: Harness) -> Any:
        job_id = await executing(harness)
        await harness.run_one(Wake(StepRef(job_id, 0, 0), Pool.IO, "pay"))
        _, steps = await seen(harness, job_id)
        assert (steps[0]["status"], bank.asked) == ("ready", []), "what is on its way gets time to arrive"
        await go_on(harness)
        return await seen(harness, job_id)

    _, steps = play(scenario, ScriptedModel(), bank.tools("find_out", hangs=True, timeout_seconds=0.05))
    assert [step["status"] for step in steps] == ["succeeded", "succeeded"]
    assert (len(bank.paid), len(bank.asked)) == (1, 1)


@pytest.mark.parametrize(("away", "status"), [(2, "succeeded"), (3, "failed")])
def test_finding_out_is_tried_like_a_read(play: Play, away: int, status: str) -> None:
    bank = Bank()
    bank.away = away

    async def scenario(harness: Harness) -> Any:
        job_id = await executing(harness)
        await harness.run_one(Wake(StepRef(job_id, 0, 0), Pool.IO, "pay"))
        for _ in range(4):
            await go_on(harness)
        return await seen(harness, job_id)

    job, steps = play(scenario, ScriptedModel(), bank.tools("find_out", hangs=True, timeout_seconds=0.05))
    assert (job["status"], steps[0]["status"], len(bank.asked)) == ("completed", status, 3)
    if status == "failed":
        error = steps[0]["error"]
        assert (error["code"], error["details"]) == ("outcome_unknown", {"cause": "transient"})
        assert "the bank is closed" in error["message"]
    assert len(bank.paid) == 1


def test_workers_that_die_while_they_find_out_are_not_killed_for_ever(play: Play) -> None:
    bank = Bank()

    async def scenario(harness: Harness) -> Any:
        job_id = await executing(harness)
        for _ in range(3):
            await lose_the_worker(harness, job_id)
            await let_waits_pass(harness)
        return await seen(harness, job_id)

    _, steps = play(scenario, ScriptedModel(), bank.tools("find_out"))
    assert (steps[0]["status"], steps[0]["error"]["code"]) == ("failed", "outcome_unknown")
    assert steps[0]["error"]["details"] == {"losses": 3, "attempts": 3}
    assert bank.paid == []


@pytest.mark.parametrize(
    ("verdict", "paid", "filed"),
    [
        (Verdict(Settlement.HAPPENED, {"receipt": "by hand"}), 0, "by hand"),
        (Verdict(Settlement.DID_NOT_HAPPEN), 1, "paid"),
    ],
)
def test_a_person_says_what_became_of_a_lost_call(play: Play, verdict: Verdict, paid: int, filed: str) -> None:
    bank = Bank()

    async def scenario(harness: Harness) -> Any:
        job_id = await executing(harness)
        await lose_the_worker(harness, job_id)
        job, steps = await seen(harness, job_id)
        assert (job["status"], steps[0]["status"]) == ("input_required", "waiting")
        assert steps[0]["question_id"] is not None
        await go_on(harness)
        assert bank.paid == [], "nothing goes on without a word"
        asked = await harness.requests.settle("default", job_id, 0, verdict)
        await harness.publish(asked.wakes)
        await harness.drain()
        return await seen(harness, job_id)

    job, steps = play(scenario, ScriptedModel(), bank.tools("ask"))
    assert (job["status"], len(bank.paid)) == ("completed", paid)
    assert steps[1]["output"] == {"filed": filed}


def test_a_question_that_nobody_answers_ends_with_a_code_of_its_own(play: Play) -> None:
    bank = Bank()

    async def scenario(harness: Harness) -> Any:
        job_id = await executing(harness)
        await lose_the_worker(harness, job_id)
        async with harness.database.connection() as connection:
            await connection.execute("UPDATE steps SET wake_at = now() WHERE status = 'waiting'")
        await harness.sweeper.sweep()
        await harness.drain()
        return await seen(harness, job_id)

    job, steps = play(scenario, ScriptedModel(), bank.tools("ask"))
    assert [step["status"] for step in steps] == ["failed", "skipped"]
    assert (job["status"], steps[0]["error"]["code"]) == ("completed", "human_wait_timeout")
    assert bank.paid == []


@pytest.mark.parametrize(
    ("recovery", "pool", "status", "code"),
    [
        ("fail", "io", "failed", "timeout"),
        ("ask", "cpu", "waiting", "timeout"),
        ("find_out", "cpu", "ready", "outcome_unknown"),
    ],
)
def test_a_living_worker_that_does_not_enforce_a_deadline_is_overruled(
    play: Play, recovery: str, pool: str, status: str, code: str
) -> None:
    """Whoever then finds out gives it the time of a lease to kill the process, or to lose its lease."""

    async def scenario(harness: Harness) -> Any:
        job_id = await executing(harness)
        claim = await overdue(harness, job_id)
        async with harness.database.connection() as connection:
            await connection.execute(b"UPDATE workers SET has_processes = %s", [pool == "cpu"])
        await harness.sweeper.sweep()
        late = await harness.store.succeed_step(claim, {"receipt": "late"}, None)
        assert not late.applied
        return await seen(harness, job_id)

    _, steps = play(scenario, ScriptedModel(), Bank().tools(recovery, pool=pool))
    assert (steps[0]["status"], steps[0]["error"]["code"]) == (status, code)
    if recovery == "find_out":
        assert steps[0]["run_at"] - steps[0]["started_at"] >= LEASE


@pytest.mark.parametrize("recovery", ["ask", "find_out"])
def test_a_living_worker_that_cannot_stop_a_thread_is_waited_for(play: Play, recovery: str) -> None:
    """Nobody looks into a call that still acts."""

    async def scenario(harness: Harness) -> Any:
        job_id = await executing(harness)
        claim = await overdue(harness, job_id)
        await harness.sweeper.sweep()
        late = await harness.store.succeed_step(claim, {"receipt": "late"}, None)
        assert late.applied
        return await seen(harness, job_id)

    _, steps = play(scenario, ScriptedModel(), Bank().tools(recovery))
    assert (steps[0]["status"], steps[0]["attempt"]) == ("succeeded", 1)


async def overdue(harness: Harness, job_id: UUID) -> StepClaim:
    """A step that runs for a minute longer than it may."""
    claim = await claim_step(harness.store, StepRef(job_id, 0, 0))
    assert claim is not None
    async with harness.database.connection() as connection:
        await connection.execute("UPDATE steps SET deadline = now() - interval '1 minute' WHERE status = 'running'")
    return claim


@pytest.mark.parametrize(("recovery", "status"), [("fail", "failed"), ("ask", "waiting"), ("find_out", "ready")])
def test_a_worker_that_stops_in_the_middle_leaves_the_call_as_its_tool_says(
    play: Play, recovery: str, status: str
) -> None:
    bank = Bank()

    async def scenario(harness: Harness) -> Any:
        job_id = await executing(harness)
        running = asyncio.create_task(harness.dispatcher.run(Wake(StepRef(job_id, 0, 0), Pool.IO, "pay")))
        await bank.entered.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        before = await seen(harness, job_id)
        await go_on(harness)
        return before, await seen(harness, job_id)

    (_, before), (job, after) = play(scenario, ScriptedModel(), bank.tools(recovery, hangs=True))
    assert (before[0]["status"], before[0]["error"]["code"]) == (status, "outcome_unknown")
    assert len(bank.paid) == 1
    ended = {"fail": ("completed", "failed"), "ask": ("input_required", "waiting")}
    assert (job["status"], after[0]["status"]) == ended.get(recovery, ("completed", "succeeded"))


def test_a_worker_with_an_older_version_of_the_tool_calls_nothing_in_doubt(play: Play) -> None:
    """The step asks to find out, and the tool of this worker has no way to."""
    bank = Bank()

    async def scenario(harness: Harness) -> Any:
        job_id = await executing(harness)
        async with harness.database.connection() as connection:
            await connection.execute("UPDATE steps SET in_doubt = true, recovery = 'find_out' WHERE index = 0")
        await go_on(harness)
        return await seen(harness, job_id)

    _, steps = play(scenario, ScriptedModel(), bank.tools("fail"))
    assert (steps[0]["status"], steps[0]["error"]["code"], bank.paid) == ("failed", "outcome_unknown", [])


def test_the_other_sides_wish_waits_in_the_database_unless_the_plan_ends_first(play: Play) -> None:
    wishes = [timedelta(seconds=30), timedelta(hours=1)]

    @tool(effect="read", retries=5)
    async def busy() -> dict[str, str]:
        """Ask for time."""
        raise RateLimited("slow down", retry_after=wishes.pop(0))

    async def scenario(harness: Harness) -> Any:
        job_id = await harness.submit("", plan={"calls": [{"tool_name": "busy", "arguments": {}}]})
        await harness.drain()
        async with harness.database.connection() as connection:
            cursor = await connection.execute(
                "SELECT status, extract(epoch FROM run_at - now())::float8 AS wait FROM steps WHERE job_id = %s",
                [job_id],
            )
            row = await cursor.fetchone()
        harness.published.append(Wake(StepRef(job_id, 0, 0), Pool.IO, "busy"))
        await harness.drain()
        assert len(wishes) == 1, "no wake-up is early enough"
        await go_on(harness)
        return row, await seen(harness, job_id)

    waiting, (job, steps) = play(scenario, ScriptedModel(), [make_tool(busy)])
    assert waiting["status"] == "ready"
    assert 25 < waiting["wait"] <= 30
    assert (job["status"], steps[0]["error"]["code"], steps[0]["attempt"]) == ("completed", "rate_limited", 2)
    assert "3600 s at the earliest" in steps[0]["error"]["message"]


def test_waits_that_the_other_side_asks_for_use_up_no_retries(play: Play) -> None:
    """Two 429s were all the tries of a read: a fault after them failed the step."""
    wait = RateLimited("slow down", retry_after=timedelta(seconds=30))
    faults: list[Exception] = [wait] * 5 + [Transient("gone for a moment"), wait, wait]
    given: list[float] = []

    @tool(effect="read", retries=1)
    async def busy() -> dict[str, int]:
        """Ask for time, fail once, and succeed."""
        if faults:
            raise faults.pop(0)
        return {"seen": 1}

    async def scenario(harness: Harness) -> Any:
        job_id = await harness.submit("", plan={"calls": [{"tool_name": "busy", "arguments": {}}]})
        await harness.drain()
        for _ in range(8):
            async with harness.database.connection() as connection:
                cursor = await connection.execute("SELECT error FROM steps WHERE job_id = %s", [job_id])
                row = await cursor.fetchone()
            given.append(row["error"]["details"].get("waited_seconds"))
            await go_on(harness)
        return await seen(harness, job_id)

    _, steps = play(scenario, ScriptedModel(), [make_tool(busy)])
    assert (steps[0]["status"], steps[0]["attempt"]) == ("succeeded", 9)
    assert given[:5] == sorted(given[:5])
    assert given[4] >= 150, "the sum of what was waited for, which has a bound"
    assert given[5] == given[4]


def test_a_doubt_outlives_being_skipped(play: Play) -> None:
    """The tool was about to find out when an earlier step failed for good; the job is resumed later."""
    bank = Bank()
    outcomes = ["failed"]

    @tool(effect="read")
    async def look() -> dict[str, str]:
        """Fail at first."""
        if outcomes:
            raise ToolError(outcomes.pop())
        return {"seen": "all"}

    calls = [
        {"tool_name": "look", "arguments": {}},
        {"tool_name": "pay", "arguments": {}, "depends_on": []},
    ]

    async def scenario(harness: Harness) -> Any:
        job_id = await executing(harness, {"calls": calls})
        bank.paid.append(f"{job_id}/1")
        await lose_the_worker(harness, job_id, 1)
        harness.published = [Wake(StepRef(job_id, 0, 0), Pool.IO, "look")]
        await harness.drain()
        _, before = await seen(harness, job_id)
        async with harness.database.connection() as connection:  # nobody can be in the call any more
            await connection.execute("UPDATE steps SET finished_at = finished_at - interval '1 minute'")
        job, planned = await harness.requests.planned("default", job_id)
        in_doubt = steps_with_unknown_outcome(job, planned, repeat_unsafe=False)
        asked = await harness.requests.resume("default", job_id, after=job["resumes"], in_doubt=in_doubt)
        await harness.publish(asked.wakes)
        await harness.drain()
        return before, await seen(harness, job_id)

    before, (job, after) = play(scenario, ScriptedModel(), [*bank.tools("find_out"), make_tool(look)])
    assert [step["status"] for step in before] == ["failed", "skipped"]
    assert (job["status"], [step["status"] for step in after]) == ("completed", ["succeeded", "succeeded"])
    assert after[1]["output"] == {"receipt": "looked up"}
    assert len(bank.paid) == 1
