"""What was in flight in a lost worker is claimed by processes for suspects, group by group, and by nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from planq.shared.domain.jobs.ids import StepRef
from planq.shared.domain.jobs.states import JobStatus, Lane
from planq.shared.ports import StageClaim, StepClaim
from planq.shared.store.ids import new_id
from planq.shared.store.jobs.transitions import PostgresJobStore
from planq.worker.tools import tool
from tests.integration.engine.test_takes import Answer, reconciler
from tests.support.harness import Harness, ScriptedModel, make_tool

Play = Callable[..., Any]
STAGES = [JobStatus.QUEUED, JobStatus.PLANNING]
INNOCENTS = 40


@tool(effect="read")
async def look(number: int) -> dict[str, int]:
    """Return the number."""
    return {"number": number}


TOOLS = [make_tool(look)]


class Worker:
    """A process with a lease, which claims and may die."""

    def __init__(self, harness: Harness) -> None:
        self.harness, self.id = harness, new_id()
        self.store = PostgresJobStore(harness.database, self.id)

    async def begin(self, lanes: Sequence[Lane] = ()) -> Worker:
        await self.harness.worker_registry.register(self.id, "w", lanes, [], 1, "test")
        return self

    async def die(self) -> None:
        await self.harness.worker_registry.forget(self.id)
        await self.harness.sweeper.sweep()


async def executing(harness: Harness, count: int) -> UUID:
    calls = [{"tool_name": "look", "arguments": {"number": number}} for number in range(count)]
    job_id = await harness.submit("", plan={"calls": calls})
    claim = await harness.store.claim_stage(job_id, STAGES)
    assert claim is not None
    await harness.carry_out(claim)
    harness.published.clear()
    return job_id


async def lost(harness: Harness, job_id: UUID, count: int) -> None:
    """Let a worker claim so many steps of a job, and die."""
    worker = await Worker(harness).begin([Lane.IO])
    claims = await worker.store.claim_steps([StepRef(job_id, 0, number) for number in range(count)])
    assert len(claims) == count
    await worker.die()


async def rows(harness: Harness, query: str, *parameters: Any) -> list[Any]:
    async with harness.database.connection() as connection:
        cursor = await connection.execute(query.encode(), parameters)
        return await cursor.fetchall() if cursor.description else []


async def run_until_calm(harness: Harness, guilty: Collection[Any]) -> int:
    """Run groups of suspects until there are none; one with a guilty attempt dies. Returns how many have died."""
    died = 0
    while True:
        worker = await Worker(harness).begin()
        claims = await worker.store.claim_suspects(None, Lane.IO)
        if not claims:
            return died
        if any((c.ref if isinstance(c, StepClaim) else c.job_id) in guilty for c in claims):
            died += 1
            await worker.die()
            continue
        for claim in claims:
            if isinstance(claim, StageClaim):
                await worker.store.end_job(claim, JobStatus.COMPLETED, "done", None, [])
            else:
                assert (await worker.store.succeed_step(claim, {"number": 1}, None)).applied


def test_only_the_step_that_kills_is_given_up(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        job_id = await executing(harness, INNOCENTS + 1)
        staged = await harness.submit()
        worker = await Worker(harness).begin([Lane.IO])
        assert await worker.store.claim_stage(staged, STAGES) is not None
        await worker.store.claim_steps([StepRef(job_id, 0, number) for number in range(INNOCENTS + 1)])
        await worker.die()
        died = await run_until_calm(harness, {StepRef(job_id, 0, 17)})
        return died, await harness.requests.job("default", job_id), await harness.requests.job("default", staged)

    died, (_, steps), (job, _) = play(scenario, ScriptedModel(), TOOLS)
    assert [step["index"] for step in steps if step["status"] != "succeeded"] == [17]
    assert (steps[17]["status"], steps[17]["error"]["code"], steps[17]["worker_losses"]) == (
        "failed",
        "worker_lost",
        3,
    )
    assert {step["worker_losses"] for step in steps if step["index"] != 17} == {0}
    assert died == 2 + 3, "in a group of 11, of 3, and three times alone"
    assert (job["status"], job["stage_losses"], job["stage_attempt"] <= 3) == ("completed", 0, True)


def test_a_stage_that_kills_is_given_up_and_the_steps_beside_it_are_not(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        job_id = await executing(harness, 8)
        guilty = await harness.submit()
        worker = await Worker(harness).begin([Lane.IO])
        assert await worker.store.claim_stage(guilty, STAGES) is not None
        await worker.store.claim_steps([StepRef(job_id, 0, number) for number in range(8)])
        await worker.die()
        await run_until_calm(harness, {guilty})
        return await harness.requests.job("default", job_id), await harness.requests.job("default", guilty)

    (_, steps), (job, _) = play(scenario, ScriptedModel(), TOOLS)
    assert {(step["status"], step["worker_losses"]) for step in steps} == {("succeeded", 0)}
    assert (job["status"], job["error"]["code"], job["error"]["details"]["losses"]) == ("failed", "worker_lost", 3)


def test_suspects_are_claimed_by_nobody_else_until_they_have_waited_for_minutes(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        job_id = await executing(harness, 2)
        await lost(harness, job_id, 2)
        early = await harness.store.claim_step(StepRef(job_id, 0, 0))
        again = "SELECT extract(epoch FROM run_at - now())::float8 AS run, run_at = wake_at AS wakes FROM steps"
        waits = await rows(harness, again)
        await rows(harness, "UPDATE steps SET run_at = now(), wake_at = now() WHERE index = 0")
        await harness.sweeper.sweep()
        woken = list(harness.published)
        claimed = await harness.store.claim_step(StepRef(job_id, 0, 0))
        late = [c.ref.index for c in await harness.store.claim_suspects(None, Lane.IO) if isinstance(c, StepClaim)]
        late += [c.ref.index for c in await harness.store.claim_suspects(None, Lane.IO) if isinstance(c, StepClaim)]
        return early, waits, woken, claimed, late

    early, waits, woken, claimed, late = play(scenario, ScriptedModel(), TOOLS)
    assert early is None
    assert all(110 < row["run"] <= 120 and row["wakes"] for row in waits)
    assert len(woken) == 1
    assert claimed is not None
    assert late == [1], "what a worker has taken is no suspect any more"


def test_a_group_is_taken_once_and_again_when_its_process_did_not_come(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        await lost(harness, await executing(harness, 8), 8)
        taken = [await harness.worker_registry.take_suspects(Lane.IO) for _ in range(5)]
        others = await harness.worker_registry.take_suspects(Lane.CPU)
        none = await harness.store.claim_suspects(None, Lane.IO)
        await rows(harness, "UPDATE suspects SET taken_until = now() WHERE group_id = %s", taken[2])
        again = await harness.worker_registry.take_suspects(Lane.IO)
        claims = await harness.store.claim_suspects(again, Lane.IO)
        return taken, others, none, again, len(claims), await harness.store.claim_suspects(again, Lane.IO)

    taken, others, none, again, claimed, nothing = play(scenario, ScriptedModel(), TOOLS)
    assert len(set(taken[:4])) == 4
    assert (taken[4], others, list(none)) == (None, None, [])
    assert again == taken[2]
    assert (claimed, list(nothing)) == (2, [])


def test_the_time_that_a_loss_has_cost_counts_against_nobody(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        job_id = await executing(harness, 8)
        await lost(harness, job_id, 8)
        await rows(harness, "UPDATE suspects SET noted_at = noted_at - interval '1 minute'")
        before = await rows(harness, "SELECT deadline, expires_at FROM jobs WHERE id = %s", job_id)
        await run_until_calm(harness, ())
        after = await rows(harness, "SELECT expires_at FROM jobs WHERE id = %s", job_id)
        return (after[0]["expires_at"] - before[0]["expires_at"]).total_seconds()

    assert 60 <= play(scenario, ScriptedModel(), TOOLS) < 90, "once, not for each suspect"


@pytest.mark.parametrize("what", ["pause", "cancel"])
def test_suspects_of_a_job_that_goes_on_otherwise_are_left_alone(play: Play, what: str) -> None:
    async def scenario(harness: Harness) -> Any:
        job_id = await executing(harness, 2)
        await lost(harness, job_id, 2)
        await getattr(harness.requests, what)("default", job_id)
        claims = [await harness.store.claim_suspects(None, Lane.IO) for _ in range(3)]
        if what == "pause":
            asked = await harness.requests.resume("default", job_id, after=None)
            await harness.publish(asked.wakes)
            await harness.drain()
        assert await harness.worker_registry.broken_invariants() == []
        return claims, await harness.requests.job("default", job_id)

    claims, (job, _) = play(scenario, ScriptedModel(), TOOLS)
    assert [list(found) for found in claims] == [[], [], []]
    assert job["status"] == ("completed" if what == "pause" else "cancelled")


def test_the_engine_carries_out_a_group_and_nothing_that_follows(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        job_id = await executing(harness, 1)
        await lost(harness, job_id, 1)
        carried = await harness.dispatcher.run_suspects(None)
        nothing = await harness.dispatcher.run_suspects(None)
        return carried.steps, nothing.steps, harness.published, await harness.requests.job("default", job_id)

    steps, nothing, published, (job, _) = play(scenario, ScriptedModel(), TOOLS)
    assert (steps, nothing) == (1, 0)
    assert job["status"] == "responding"
    assert len(published) == 1


def test_what_a_claim_of_suspects_has_brought_is_not_handed_back_while_its_answer_is_read(play: Play) -> None:
    """A comparison found the step held and not here: another worker repeated what was just about to begin."""

    async def scenario(harness: Harness) -> Any:
        job_id = await executing(harness, 1)
        await lost(harness, job_id, 1)
        answer = Answer(harness, "claim_suspects")
        running = asyncio.create_task(harness.dispatcher.run_suspects(None))
        await asyncio.wait_for(answer.applied.wait(), 60)
        compare = reconciler(harness)
        for _ in range(3):
            await compare.beat(timedelta(0))
        answer.go.set()
        await asyncio.wait_for(running, 60)
        _, steps = await harness.requests.job("default", job_id)
        return [(step["status"], step["attempt"], step["releases"]) for step in steps]

    assert play(scenario, ScriptedModel(), TOOLS) == [("succeeded", 2, 0)]
