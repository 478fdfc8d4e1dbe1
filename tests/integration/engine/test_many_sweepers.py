"""Five sweepers find the same thing at the same moment: it is put right once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from planq.shared.kernel.claims import StepClaim
from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.states import JobStatus, Pool
from planq.shared.kernel.wakes import Wake
from planq.shared.platform.database import Database
from planq.shared.platform.errors import ErrorRecord
from planq.worker.engine import Sweeper
from planq.worker.tools import tool
from tests.support.claiming import claim_stage, claim_step
from tests.support.harness import SWEEP, Harness, ScriptedModel, make_tool
from tests.support.stored import DID_IT

SWEEPERS = 5
LOST = ErrorRecord("worker_lost", "the worker was lost")


@tool(effect="pure")
async def double(number: float) -> dict[str, float]:
    """Return twice the number."""
    return {"result": number * 2}


CHAIN: list[tuple[str, dict[str, Any]]] = [("double", {"number": 4}), ("double", {"number": "$0.output.result"})]
Prepare = Callable[[Harness], Awaitable[UUID]]


async def change(harness: Harness, statement: str, *parameters: Any) -> None:
    async with harness.database.connection() as connection:
        await connection.execute(statement.encode(), parameters)


async def accepted(harness: Harness) -> UUID:
    job_id = await harness.submit()
    claim = await claim_stage(harness.store, job_id, [JobStatus.QUEUED])
    assert claim is not None
    await harness.carry_out(claim)
    return job_id


async def running(harness: Harness) -> StepClaim:
    claim = await claim_step(harness.store, StepRef(await accepted(harness), 0, 0))
    assert claim is not None
    return claim


async def due_timer(harness: Harness) -> UUID:
    claim = await running(harness)
    assert await harness.store.suspend_step(claim, timedelta(0), {"result": 8})
    return claim.ref.job_id


async def lost_step(harness: Harness) -> UUID:
    claim = await running(harness)
    await change(harness, "DELETE FROM workers")
    return claim.ref.job_id


async def step_lost_again(harness: Harness) -> UUID:
    job_id = await lost_step(harness)
    await change(
        harness,
        "INSERT INTO suspects (tenant_id, job_id, round, index, attempt, pool) "
        "SELECT tenant_id, job_id, round, index, 0, 'io' FROM steps",
    )
    return job_id


async def step_lost_too_often(harness: Harness) -> UUID:
    job_id = await lost_step(harness)
    await change(harness, "UPDATE steps SET worker_losses = 2")
    return job_id


async def late_step(harness: Harness) -> UUID:
    claim = await running(harness)
    await change(harness, "UPDATE steps SET deadline = now() - interval '1 hour' WHERE status = 'running'")
    return claim.ref.job_id


async def unanswered_question(harness: Harness) -> UUID:
    claim = await running(harness)
    assert await harness.store.ask_step(claim, DID_IT, LOST)
    await change(harness, "UPDATE steps SET wake_at = now() - interval '1 second' WHERE status = 'waiting'")
    return claim.ref.job_id


async def lost_stage(harness: Harness) -> UUID:
    job_id = await harness.submit()
    assert await claim_stage(harness.store, job_id, [JobStatus.QUEUED]) is not None
    await change(harness, "DELETE FROM workers")
    return job_id


async def stage_lost_again(harness: Harness) -> UUID:
    job_id = await lost_stage(harness)
    await change(
        harness,
        "INSERT INTO suspects (tenant_id, job_id, round, index, attempt, pool) "
        "SELECT tenant_id, id, 0, -1, 0, 'io' FROM jobs",
    )
    return job_id


async def stage_lost_too_often(harness: Harness) -> UUID:
    job_id = await lost_stage(harness)
    await change(harness, "UPDATE jobs SET stage_losses = 2")
    return job_id


async def stage_lost_too_often_in_company(harness: Harness) -> UUID:
    """It may be the other one that ends its workers, so it is tried once more, in quarantine."""
    await stage_lost_too_often(harness)
    return await stage_lost_again(harness)


async def late_plan(harness: Harness) -> UUID:
    job_id = await accepted(harness)
    await change(harness, "UPDATE jobs SET deadline = now() - interval '1 second'")
    return job_id


async def late_job(harness: Harness) -> UUID:
    job_id = await accepted(harness)
    await change(harness, "UPDATE jobs SET expires_at = now() - interval '1 second'")
    return job_id


async def late_in_the_queue(harness: Harness) -> UUID:
    job_id = await harness.submit()
    await change(harness, "UPDATE jobs SET expires_at = now() - interval '1 second'")
    return job_id


async def unheard_job(harness: Harness) -> UUID:
    job_id = await harness.submit()
    await change(harness, "UPDATE jobs SET wake_at = now()")
    return job_id


async def unheard_step(harness: Harness) -> UUID:
    job_id = await accepted(harness)
    await change(harness, "UPDATE steps SET wake_at = now() WHERE status = 'ready'")
    return job_id


@dataclass(frozen=True)
class Case:
    """What a sweep finds, and all that comes of it: events, wake-ups, suspects, ends that are announced."""

    prepare: Prepare
    events: list[str] = field(default_factory=list)
    wakes: Callable[[UUID], list[Wake]] = lambda _: []
    ends: bool = False
    locks: bool = True
    suspects: int = 0


def step_wake(index: int) -> Callable[[UUID], list[Wake]]:
    return lambda job_id: [Wake(StepRef(job_id, 0, index), Pool.IO, "double")]


CASES = [
    Case(due_timer, ["step_succeeded"], step_wake(1)),
    Case(step_lost_again, ["step_retrying"], suspects=1),
    Case(step_lost_too_often, ["step_failed"], lambda job_id: [Wake.respond(job_id)]),
    Case(late_step, ["step_retrying"], step_wake(0)),
    Case(unanswered_question, ["step_settled", "step_failed"], lambda job_id: [Wake.respond(job_id)]),
    Case(stage_lost_again, ["stage_released"], suspects=1),
    Case(stage_lost_too_often, ["job_failed"], ends=True),
    Case(stage_lost_too_often_in_company, ["stage_released"], suspects=2),
    Case(late_plan, ["plan_expired"], lambda job_id: [Wake.respond(job_id)]),
    Case(late_job, ["job_failed"], ends=True),
    Case(late_in_the_queue, ["job_failed"], ends=True),
    Case(unheard_job, [], lambda job_id: [Wake.plan(job_id)], locks=False),
    Case(unheard_step, [], step_wake(0), locks=False),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.prepare.__name__)
def test_what_five_sweepers_find_is_put_right_once(database_url: str, case: Case) -> None:
    async def scenario(harness: Harness) -> None:
        job_id = await case.prepare(harness)
        before = await events(harness, job_id)
        harness.published.clear()
        await sweep_at_once(harness, job_id, hold=case.locks)

        told = await events(harness, job_id)
        told.subtract(before)
        assert +told == Counter(case.events)
        published = [wake.ref for wake in harness.published]
        assert published == [wake.ref for wake in case.wakes(job_id)]
        claimed = await asyncio.gather(*(harness.store.claim_suspects(Pool.IO) for _ in range(SWEEPERS)))
        assert sum(map(len, claimed)) == case.suspects
        assert harness.silent.ended_jobs == ([job_id] if case.ends else [])
        await harness.open()
        assert await harness.worker_registry.broken_invariants() == []

    play(database_url, scenario)


def play(database_url: str, scenario: Callable[[Harness], Awaitable[None]]) -> None:
    async def inside() -> None:
        database = Database(database_url, max_connections=SWEEPERS + 3)
        await database.open()
        try:
            harness = Harness(database, ScriptedModel.planning(*CHAIN), [make_tool(double)])
            await harness.open()
            await scenario(harness)
        finally:
            await database.close()

    asyncio.run(inside())


async def sweep_at_once(harness: Harness, job_id: UUID, *, hold: bool) -> None:
    """Let five sweepers make a pass; with `hold` none can act before all have found."""
    sweepers = [
        Sweeper(
            SWEEP,
            harness.worker_registry,
            harness,
            harness,
            harness.silent.job_ended,
            lambda: 0.0,
            interrupt=harness.interrupted.append,
            duties=harness.duties,
        )
        for _ in range(SWEEPERS)
    ]
    if not hold:
        await asyncio.gather(*(sweeper.sweep() for sweeper in sweepers))
        return
    async with harness.database.connection() as connection, connection.transaction():
        await connection.execute("SELECT FROM jobs WHERE id = %s FOR UPDATE", [job_id])
        passes = [asyncio.create_task(sweeper.sweep()) for sweeper in sweepers]
        async with asyncio.timeout(60):
            while await waiting(harness) < SWEEPERS:
                assert not any(one.done() for one in passes)
    await asyncio.gather(*passes)


async def waiting(harness: Harness) -> int:
    """How many statements wait for a lock."""
    async with harness.database.connection() as connection:
        cursor = await connection.execute("SELECT count(DISTINCT pid)::int AS n FROM pg_locks WHERE NOT granted")
        row = await cursor.fetchone()
        return int(row["n"]) if row else 0


async def events(harness: Harness, job_id: UUID) -> Counter[str]:
    async with harness.database.connection() as connection:
        cursor = await connection.execute("SELECT kind FROM events WHERE job_id = %s", [job_id])
        return Counter(row["kind"] for row in await cursor.fetchall())
