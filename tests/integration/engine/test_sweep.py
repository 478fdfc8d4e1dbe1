"""Recovery: whatever a job stands before, something moves it on, also when a worker, a server or a word is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from planq.shared.kernel.ids import PLAN, RESPOND, Attempt, StepRef
from planq.shared.kernel.limits import Limits
from planq.shared.kernel.states import JobStatus, Pool, StepStatus
from planq.shared.kernel.store.worker_registry import WorkerRegistry
from planq.shared.kernel.sweep import ExpiredPlan
from planq.shared.kernel.wakes import Wake
from planq.shared.platform.errors import DatabaseUnavailable, ErrorRecord
from planq.worker.engine import Sweeper
from planq.worker.tools import tool
from tests.support.claiming import claim_stage, claim_step
from tests.support.harness import LEASE, SWEEP, Harness, ScriptedModel, make_tool

Play = Callable[..., Any]
LATE = ErrorRecord("timeout", "the plan did not end within 300 s")


@tool(effect="pure")
async def double(number: float) -> dict[str, float]:
    """Return twice the number."""
    return {"result": number * 2}


@tool(effect="pure", pool="cpu")
async def crunch(number: float) -> dict[str, float]:
    """Return the number; only `cpu` workers take it."""
    return {"result": number}


CHAIN: list[tuple[str, dict[str, Any]]] = [("double", {"number": 4}), ("double", {"number": "$0.output.result"})]
TOOLS = [make_tool(double), make_tool(crunch)]


async def set_back(harness: Harness, job_id: UUID, column: str) -> None:
    """Let a time of a job have passed."""
    async with harness.database.connection() as connection:
        await connection.execute(f"UPDATE jobs SET {column} = now() - interval '1 second' WHERE id = %s", [job_id])


async def accepted(harness: Harness, **fields: Any) -> UUID:
    """Submit a job and carry out its PLAN stage only."""
    job_id = await harness.submit(**fields)
    claim = await claim_stage(harness.store, job_id, [JobStatus.QUEUED])
    assert claim is not None
    await harness.carry_out(claim)
    harness.published.clear()
    return job_id


def test_the_answer_tells_of_a_step_that_no_worker_took_in_time(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        job_id = await harness.submit()
        await harness.drain_pool(Pool.IO)
        assert await harness.requests.status("default", job_id) == JobStatus.EXECUTING
        await set_back(harness, job_id, "deadline")
        await harness.sweeper.sweep()
        harness.published = [wake for wake in harness.published if wake.ref.index == RESPOND]
        await harness.drain()
        return await harness.requests.job("default", job_id)

    model = ScriptedModel.planning(("double", {"number": 4}), ("crunch", {"number": "$0.output.result"}))
    job, steps = play(scenario, model, TOOLS)
    assert [step["status"] for step in steps] == ["succeeded", "failed"]
    assert (job["status"], job["open_steps"], job["failed_steps"]) == ("completed", 0, 1)
    told = model.asked[1][1].results
    assert [result.error for result in told] == [None, "the plan did not end within 300 s"]


@pytest.mark.parametrize("move", ["claim", "release"])
def test_a_plan_expires_whole_while_a_step_moves(play: Play, move: str) -> None:
    """The step's row is locked by a claim or a release that commits while the plan expires."""

    async def scenario(harness: Harness) -> Any:
        job_id = await accepted(harness)
        if move == "release":
            assert await claim_step(harness.store, StepRef(job_id, 0, 0)) is not None
        await set_back(harness, job_id, "deadline")
        async with harness.database.connection() as connection, connection.transaction():
            if move == "claim":
                await connection.execute("SELECT planq_claim_steps(%s, 0, '{0}', %s)", [job_id, harness.worker_id])
            else:
                await connection.execute("SELECT planq_hand_back_step(%s, 0, 0, 1, NULL)", [job_id])
            expiring = asyncio.create_task(harness.worker_registry.expire_plan(ExpiredPlan(job_id, 300.0), LATE))
            await _until_somebody_waits_for_a_lock(harness)
        assert await expiring
        return await harness.requests.job("default", job_id)

    job, steps = play(scenario, ScriptedModel.planning(*CHAIN), TOOLS)
    assert (job["status"], job["open_steps"], job["failed_steps"]) == ("responding", 0, 1)
    assert [step["status"] for step in steps] == ["failed", "skipped"]


async def _until_somebody_waits_for_a_lock(harness: Harness) -> None:
    async with asyncio.timeout(60):
        while True:
            async with harness.database.connection() as connection:
                cursor = await connection.execute("SELECT count(*) AS n FROM pg_locks WHERE NOT granted")
                row = await cursor.fetchone()
                if row is not None and row["n"]:
                    return


def test_a_stage_whose_claim_never_arrived_is_taken_back_from_a_living_worker(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        job_id = await harness.submit()
        harness.published.clear()
        lost = await claim_stage(harness.store, job_id, [JobStatus.QUEUED])
        assert lost is not None
        await harness.sweeper.sweep()
        assert harness.published == [], "the worker lives and has time left"
        await set_back(harness, job_id, "deadline")
        await harness.sweeper.sweep()
        assert harness.published == [Wake.plan(job_id, 2)] * 2, "one copy for a worker that is frozen"
        await harness.drain()
        assert not await harness.store.end_job(lost, JobStatus.COMPLETED, "late", None, [])
        return await harness.requests.job("default", job_id)

    job, _ = play(scenario, ScriptedModel("Hello!"), TOOLS)
    assert (job["status"], job["answer"], job["deadline"]) == ("completed", "Hello!", None)


@pytest.mark.parametrize("method", ["tools", "accept_plan", "succeed_step", "end_job"])
def test_a_short_loss_of_the_database_ends_no_work(play: Play, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    async def scenario(harness: Harness) -> Any:
        target = harness.catalogue if method == "tools" else harness.store
        real = getattr(target, method)
        calls: list[int] = []

        async def away_at_first(*arguments: Any, **named: Any) -> Any:
            calls.append(1)
            if len(calls) == 1:
                raise DatabaseUnavailable("the database does not answer")
            return await real(*arguments, **named)

        monkeypatch.setattr(target, method, away_at_first)
        return await harness.run()

    job, steps = play(scenario, ScriptedModel.planning(*CHAIN), TOOLS)
    assert job["status"] == "completed"
    assert [step["attempt"] for step in steps] == [1, 1]


def test_wake_ups_go_out_at_once_when_the_broker_is_back(play: Play) -> None:
    class Broker:
        """A broker that may be away; keeps what each batch held."""

        is_there = False

        def __init__(self) -> None:
            self.batches: list[list[Wake]] = []

        async def publish(self, wakes: Sequence[Wake]) -> bool:
            self.batches.append(list(wakes))
            return self.is_there

    async def scenario(harness: Harness) -> Any:
        broker = Broker()
        sweeper = Sweeper(
            SWEEP,
            harness.worker_registry,
            broker,
            harness,
            harness.silent.job_ended,
            lambda: 0.0,
            interrupt=lambda _: None,
        )
        queued = [await harness.submit() for _ in range(3)]
        executing = await accepted(harness)
        for job_id in queued:
            await set_back(harness, job_id, "wake_at")
        async with harness.database.connection() as connection:
            await connection.execute("UPDATE steps SET wake_at = now() WHERE status = 'ready'")
        for _ in range(12):
            await sweeper.sweep()
        broker.is_there = True
        for _ in range(2):
            await sweeper.sweep()
        await sweeper.sweep()
        return broker.batches, queued, executing

    batches, queued, executing = play(scenario, ScriptedModel.planning(*CHAIN), TOOLS)
    refused, delivered = batches[:12], [wake for batch in batches[12:] for wake in batch]
    assert all(refused), "each sweep tries again, with some of them at least"
    assert {wake.job_id for wake in delivered if wake.ref.index == PLAN} == set(queued)
    assert Wake(StepRef(executing, 0, 0), Pool.IO, "double", 1) in delivered
    assert len(delivered) == 4, "once each"


def test_steps_that_are_due_together_are_published_together(play: Play) -> None:
    """One by one they filled the windows of all workers, and a lone job of another tenant waited for 50 s."""

    async def scenario(harness: Harness) -> Any:
        job_id = await accepted(harness)
        async with harness.database.connection() as connection:
            await connection.execute(
                "UPDATE steps SET wake_at = now() - interval '1 second' WHERE job_id = %s", [job_id]
            )
        await harness.sweeper.sweep()
        published = list(harness.published)
        await harness.drain()
        return published, await harness.requests.job("default", job_id)

    model = ScriptedModel.planning(*[("double", {"number": number}) for number in range(8)])
    published, (_, steps) = play(scenario, model, TOOLS)
    assert [[one.ref.index for one in wake.each] for wake in published] == [list(range(8))]
    assert all(step["status"] == "succeeded" for step in steps)


def test_a_part_of_the_sweep_that_fails_leaves_the_others_to_do_their_work(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: Any) -> Any:
        raise ValueError("a row that cannot be read")

    async def scenario(harness: Harness) -> Any:
        job_id = await harness.submit("", plan={"calls": [{"tool_name": "quick", "arguments": {}}]})
        harness.published.clear()
        async with harness.database.connection() as connection:
            await connection.execute("UPDATE jobs SET wake_at = now()")
        monkeypatch.setattr("planq.shared.kernel.store.worker_registry.WorkerRegistry.lost_steps", broken)
        await harness.sweeper.sweep()
        return job_id, list(harness.published)

    job_id, published = play(scenario, ScriptedModel(), [])
    assert published == [Wake.plan(job_id)]


def test_who_was_cut_off_gives_the_others_time_before_taking_them_for_dead(play: Play) -> None:
    """The database was away for a minute: the first sweeper that is back finds every heartbeat old."""

    async def scenario(harness: Harness) -> list[int]:
        now = [1000.0]
        other = WorkerRegistry(harness.database, LEASE, clock=lambda: now[0])
        await harness.worker_registry.heartbeat(harness.worker_id, timedelta(0))
        await other.heartbeat(harness.worker_id, timedelta(0))
        job_id = await accepted(harness)
        assert await claim_step(harness.store, StepRef(job_id, 0, 0)) is not None
        found = []

        async def look(heartbeat_age: int) -> None:
            async with harness.database.connection() as connection:
                await connection.execute(
                    "UPDATE workers SET heartbeat_at = now() - make_interval(secs => %s)", [heartbeat_age]
                )
            found.append(len(await other.lost_steps(10, timedelta(0))))

        now[0] += 60
        await look(60)
        await other.heartbeat(harness.worker_id, timedelta(0))
        await look(61)
        now[0] += 10
        await other.heartbeat(harness.worker_id, timedelta(0))
        await look(71)
        now[0] += 10
        await other.heartbeat(harness.worker_id, timedelta(0))
        await look(81)
        return found

    assert play(scenario, ScriptedModel.planning(*CHAIN), TOOLS) == [0, 0, 0, 1]


def test_a_late_word_of_a_dead_process_leaves_the_next_attempt_alone(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        job_id = await accepted(harness)
        ref = StepRef(job_id, 0, 0)
        first = await claim_step(harness.store, ref)
        assert first is not None
        moved = await harness.store.fail_step(first, LATE, timedelta(0))
        assert moved.status is StepStatus.READY
        assert await claim_step(harness.store, ref) is not None
        late = await harness.worker_registry.abandon(harness.worker_id, Attempt(ref, 1))
        assert await harness.worker_registry.lost_steps(10, timedelta(0)) == []
        right = await harness.worker_registry.abandon(harness.worker_id, Attempt(ref, 2))
        return late, right, len(await harness.worker_registry.lost_steps(10, timedelta(0)))

    assert play(scenario, ScriptedModel.planning(*CHAIN), TOOLS) == (False, True, 1)


def test_a_worker_that_winds_down_leaves_the_next_step_to_others(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        job_id = await accepted(harness)
        harness.dispatcher.wind_down()
        carried = await harness.run_one(Wake(StepRef(job_id, 0, 0), Pool.IO, "double"))
        _, steps = await harness.requests.job("default", job_id)
        return carried.text, [step["status"] for step in steps], harness.published, job_id

    text, statuses, published, job_id = play(scenario, ScriptedModel.planning(*CHAIN), TOOLS)
    assert (text, statuses) == ("succeeded", ["succeeded", "ready"])
    assert published == [Wake(StepRef(job_id, 0, 1), Pool.IO, "double")]


@pytest.mark.parametrize(
    ("begun", "code", "limits"),
    [
        ("nothing", "queue_timeout", Limits(queue_timeout_seconds=7)),
        ("planning", "job_timeout", Limits(job_timeout_seconds=7)),
        ("running", "job_timeout", Limits(job_timeout_seconds=7)),
        ("responding", "job_timeout", Limits(job_timeout_seconds=7)),
    ],
)
def test_a_job_that_has_used_up_its_time_ends_wherever_it_stands(
    play: Play, begun: str, code: str, limits: Limits
) -> None:
    """The worker that should see to it is dead, but for its lease; another one sweeps."""

    async def scenario(harness: Harness) -> Any:
        job_id = await harness.submit(limits=limits)
        if begun == "planning":
            assert await claim_stage(harness.store, job_id, [JobStatus.QUEUED]) is not None
        elif begun in ("running", "responding"):
            claim = await claim_stage(harness.store, job_id, [JobStatus.QUEUED])
            assert claim is not None
            await harness.carry_out(claim)
            for index in range(2) if begun == "responding" else (0,):
                step = await claim_step(harness.store, StepRef(job_id, 0, index))
                assert step is not None
                if begun == "responding":
                    await harness.store.succeed_step(step, {"result": 1.0}, None)
        child = await _child_of(harness, job_id)
        await harness.sweeper.sweep()
        assert harness.silent.ended_jobs == [], "its time is not over"
        await set_back(harness, job_id, "expires_at")
        await harness.sweeper.sweep()
        await harness.sweeper.sweep()
        job, steps = await harness.requests.job("default", job_id)
        return job, steps, {job_id, child}, harness, await harness.requests.status("default", child)

    job, steps, ended, harness, child = play(scenario, ScriptedModel.planning(*CHAIN), TOOLS)
    assert (job["status"], job["error"]["code"], job["error"]["retryable"]) == ("failed", code, False)
    assert "within 7 s" in job["error"]["message"]
    assert {step["status"] for step in steps} <= {"cancelled", "succeeded"}
    assert child == JobStatus.CANCELLED
    assert len(harness.silent.ended_jobs) == len(harness.interrupted) == 2
    assert set(harness.silent.ended_jobs) == set(harness.interrupted) == ended


async def _child_of(harness: Harness, job_id: UUID) -> UUID:
    child = await harness.submit()
    async with harness.database.connection() as connection:
        await connection.execute("UPDATE jobs SET parent_job_id = %s WHERE id = %s", [job_id, child])
    return child


def test_a_plan_expires_though_its_worker_is_dead(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        job_id = await accepted(harness)
        assert await claim_step(harness.store, StepRef(job_id, 0, 0)) is not None
        await harness.worker_registry.forget(harness.worker_id)
        await set_back(harness, job_id, "deadline")
        await harness.sweeper.sweep()
        return await harness.requests.job("default", job_id)

    job, steps = play(scenario, ScriptedModel.planning(*CHAIN), TOOLS)
    assert (job["status"], steps[0]["status"]) == ("responding", "failed")
    assert (steps[0]["error"]["code"], steps[0]["error"]["retryable"]) == ("plan_timeout", False)


def test_a_call_that_hangs_in_a_living_worker_uses_up_a_try_and_counts_as_no_loss(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        job_id = await accepted(harness)
        tries = 0
        async with harness.database.connection() as connection:
            while await claim_step(harness.store, StepRef(job_id, 0, 0)) is not None:
                tries += 1
                hung = (
                    "UPDATE steps SET deadline = now() - interval '1 hour' WHERE job_id = %s AND status = 'running'"
                )
                await connection.execute(hung.encode(), [job_id])
                await harness.sweeper.sweep()
                await connection.execute(b"UPDATE steps SET run_at = now() WHERE status = 'ready'")
            cursor = await connection.execute(b"SELECT retry, releases, worker_losses FROM steps WHERE index = 0")
            counted = await cursor.fetchone()
        return tries, counted, (await harness.requests.job("default", job_id))[1][0]

    tries, counted, step = play(scenario, ScriptedModel.planning(*CHAIN), TOOLS)
    assert (counted["releases"], counted["worker_losses"]) == (0, 0)
    assert tries == 1 + counted["retry"]["retries"] > 1
    assert (step["status"], step["error"]["code"]) == ("failed", "timeout")


def test_a_step_that_kills_its_workers_is_quarantined_with_its_history(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        job_id = await accepted(harness)
        assert await claim_step(harness.store, StepRef(job_id, 0, 0)) is not None
        for losses in (1, 2, 3):
            await harness.worker_registry.forget(harness.worker_id)
            await harness.sweeper.sweep()
            await harness.open()
            again = await claim_step(harness.store, StepRef(job_id, 0, 0))
            assert (again is None) == (losses > 1), "then not beside anything else"
            await harness.store.claim_suspects(Pool.IO)
        async with harness.database.connection() as connection:
            cursor = await connection.execute(
                "SELECT kind, data->'error'->'details'->>'losses' AS losses FROM events "
                "WHERE job_id = %s AND kind IN ('step_retrying', 'step_failed') ORDER BY sequence",
                [job_id],
            )
            told = await cursor.fetchall()
        return await harness.requests.job("default", job_id), told

    (job, steps), told = play(scenario, ScriptedModel.planning(*CHAIN), TOOLS)
    assert (job["status"], [step["status"] for step in steps]) == ("responding", ["failed", "skipped"])
    error = steps[0]["error"]
    assert (error["code"], error["details"]) == ("worker_lost", {"losses": 3, "attempts": 3})
    assert [(row["kind"], row["losses"]) for row in told] == [
        ("step_retrying", "1"),
        ("step_retrying", "2"),
        ("step_failed", "3"),
    ]


def test_a_sweep_is_bounded_and_goes_on_with_the_next(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        sweeper = Sweeper(
            replace(SWEEP, batch=2),
            harness.worker_registry,
            harness,
            harness,
            harness.silent.job_ended,
            lambda: 0.0,
            interrupt=harness.interrupted.append,
        )
        for _ in range(5):
            await set_back(harness, await harness.submit(), "expires_at")
        counts = []
        for _ in range(4):
            await sweeper.sweep()
            counts.append(len(harness.silent.ended_jobs))
        return counts

    assert play(scenario, ScriptedModel(), []) == [2, 4, 5, 5]
