"""What may have killed its workers is claimed in quarantine, group by group, and by no other worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from planq.shared.agentic.references.resolution import as_called
from planq.shared.kernel.claims import StageClaim, StepClaim
from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import JobStatus, Pool
from planq.shared.kernel.store.transitions import PostgresJobStore
from planq.shared.kernel.wakes import Wake
from planq.worker.tools import tool
from tests.integration.engine.test_takes import Answer, reconciler
from tests.support.claiming import claim_stage, claim_step, claim_steps
from tests.support.harness import Harness, ScriptedModel, make_tool

Play = Callable[..., Any]
STAGES = [JobStatus.QUEUED, JobStatus.PLANNING]
INNOCENTS = 40


@tool(effect="read")
async def look(number: int) -> dict[str, int]:
    """Return the number."""
    return {"number": number}


@tool(effect="read")
async def park(name: str) -> dict[str, int]:
    """Return once the test says so."""
    BEGAN[-1].put_nowait(name)
    await asyncio.wait_for(GO[name].wait(), 60)
    return {"number": 1}


BEGAN: list[asyncio.Queue[str]] = []
GO: dict[str, asyncio.Event] = {}
TOOLS = [make_tool(look), make_tool(park)]


class Worker:
    """A process with a lease, which claims and may die."""

    def __init__(self, harness: Harness) -> None:
        self.harness, self.id = harness, new_id()
        self.store = PostgresJobStore(harness.database, self.id, as_called)

    async def begin(self, pools: Sequence[Pool] = ()) -> Worker:
        await self.harness.worker_registry.register(self.id, "w", pools, [], 1, "test")
        return self

    async def die(self) -> None:
        await self.harness.worker_registry.forget(self.id)
        await self.harness.sweeper.sweep()


async def executing(harness: Harness, count: int) -> UUID:
    calls = [{"tool_name": "look", "arguments": {"number": number}} for number in range(count)]
    job_id = await harness.submit("", plan={"calls": calls})
    claim = await claim_stage(harness.store, job_id, STAGES)
    assert claim is not None
    await harness.carry_out(claim)
    harness.published.clear()
    return job_id


async def lost(harness: Harness, job_id: UUID, count: int, times: int = 2) -> None:
    """Let workers claim the first `count` steps of a job, one after the other, and die."""
    for _ in range(times):
        worker = await Worker(harness).begin([Pool.IO])
        claims = await claim_steps(worker.store, [StepRef(job_id, 0, number) for number in range(count)])
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
        worker = await Worker(harness).begin([Pool.IO])
        claims = await worker.store.claim_suspects(Pool.IO)
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
        for _ in range(2):
            worker = await Worker(harness).begin([Pool.IO])
            assert await claim_stage(worker.store, staged, STAGES) is not None
            await claim_steps(worker.store, [StepRef(job_id, 0, number) for number in range(INNOCENTS + 1)])
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
    assert (job["status"], job["stage_losses"], job["stage_attempt"] <= 4) == ("completed", 0, True)


def test_a_stage_that_kills_is_given_up_and_the_steps_beside_it_are_not(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        job_id = await executing(harness, 8)
        guilty = await harness.submit()
        for _ in range(2):
            worker = await Worker(harness).begin([Pool.IO])
            assert await claim_stage(worker.store, guilty, STAGES) is not None
            await claim_steps(worker.store, [StepRef(job_id, 0, number) for number in range(8)])
            await worker.die()
        await run_until_calm(harness, {guilty})
        return await harness.requests.job("default", job_id), await harness.requests.job("default", guilty)

    (_, steps), (job, _) = play(scenario, ScriptedModel(), TOOLS)
    assert {(step["status"], step["worker_losses"]) for step in steps} == {("succeeded", 0)}
    assert (job["status"], job["error"]["code"], job["error"]["details"]["losses"]) == ("failed", "worker_lost", 3)


def test_a_first_loss_puts_nothing_in_quarantine(play: Play) -> None:
    """It is mostly a deployment. Of the second worker only what was in both losses is suspected."""

    async def scenario(harness: Harness) -> Any:
        job_id = await executing(harness, 4)
        await lost(harness, job_id, 3, times=1)
        none = await harness.store.claim_suspects(Pool.IO)
        await lost(harness, job_id, 2, times=1)
        free = await claim_steps(harness.store, [StepRef(job_id, 0, number) for number in range(4)])
        suspects = [await harness.store.claim_suspects(Pool.IO) for _ in range(3)]
        _, steps = await harness.requests.job("default", job_id)
        tries = [claim.tries for group in (free, *suspects) for claim in group if isinstance(claim, StepClaim)]
        return none, free, suspects, {step["worker_losses"] for step in steps}, tries

    none, free, suspects, losses, tries = play(scenario, ScriptedModel(), TOOLS)
    assert list(none) == []
    assert [claim.ref.index for claim in free] == [2, 3]
    assert sorted(claim.ref.index for group in suspects for claim in group) == [0, 1]
    assert (losses, set(tries)) == ({0}, {1}), "nothing is charged, and no try is lost"


def test_what_was_lost_before_and_has_run_since_is_not_suspected(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        job_id = await executing(harness, 2)
        refs = [StepRef(job_id, 0, number) for number in range(2)]
        await lost(harness, job_id, 2, times=1)
        for claim in await claim_steps(harness.store, refs):
            assert (await harness.store.release(claim)).applied
        await lost(harness, job_id, 2, times=1)
        return await harness.store.claim_suspects(Pool.IO), await claim_steps(harness.store, refs)

    suspects, claims = play(scenario, ScriptedModel(), TOOLS)
    assert (list(suspects), len(claims)) == ([], 2)


def test_a_step_with_a_process_of_its_own_is_never_in_quarantine(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        job_id = await executing(harness, 2)
        refs = [StepRef(job_id, 0, number) for number in range(2)]
        for _ in range(2):
            worker = Worker(harness)
            await harness.worker_registry.register(worker.id, "w", [Pool.IO], [], 2, "test", has_processes=True)
            assert len(await claim_steps(worker.store, refs)) == 2
            async with harness.database.connection() as connection:
                await connection.execute("UPDATE workers SET heartbeat_at = 'epoch' WHERE id = %s", [worker.id])
            await harness.sweeper.sweep()
        return await harness.store.claim_suspects(Pool.IO), await claim_steps(harness.store, refs)

    suspects, claims = play(scenario, ScriptedModel(), TOOLS)
    assert list(suspects) == []
    assert [claim.worker_losses for claim in claims] == [0, 0]


def test_half_of_the_workers_are_in_quarantine_at_most_and_no_more_than_groups_wait(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        registry = harness.worker_registry
        await registry.forget(harness.worker_id)
        workers = [await Worker(harness).begin([Pool.IO]) for _ in range(4)]
        at_rest = await registry.enter_quarantine(workers[0].id, Pool.IO)
        await lost(harness, await executing(harness, 8), 8)
        all_ = [await registry.enter_quarantine(worker.id, Pool.IO) for worker in workers]
        again = await registry.enter_quarantine(workers[0].id, Pool.IO)
        await registry.leave_quarantine(workers[0].id)
        other = await registry.enter_quarantine(workers[3].id, Pool.IO)
        await registry.forget(workers[3].id)
        dead = await registry.enter_quarantine(workers[2].id, Pool.IO)
        await registry.forget(workers[1].id)
        await registry.forget(workers[2].id)
        await run_until_calm(harness, ())
        return at_rest, all_, again, other, dead, await registry.enter_quarantine(workers[0].id, Pool.IO)

    at_rest, all_, again, other, dead, done = play(scenario, ScriptedModel(), TOOLS)
    assert (at_rest, done) == (False, False)
    assert all_ == [True, True, False, False]
    assert (again, other, dead) == (True, True, False), "of three one, of two one"


def test_a_worker_of_another_pool_carries_out_no_suspects(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        await lost(harness, await executing(harness, 1), 1)
        other, gpu = Worker(harness), Pool("gpu")
        await harness.worker_registry.register(other.id, "w", [gpu], [], 1, "test")
        return await harness.worker_registry.enter_quarantine(other.id, gpu), await other.store.claim_suspects(gpu)

    assert play(scenario, ScriptedModel(), TOOLS) == (False, [])


def test_a_worker_that_is_alone_enters_quarantine(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        await lost(harness, await executing(harness, 1), 1)
        return await harness.worker_registry.enter_quarantine(harness.worker_id, Pool.IO)

    assert play(scenario, ScriptedModel(), TOOLS)


def test_suspects_are_claimed_by_no_other_worker_until_they_have_waited_for_half_an_hour(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        job_id = await executing(harness, 2)
        await lost(harness, job_id, 2)
        early = await claim_step(harness.store, StepRef(job_id, 0, 0))
        again = "SELECT extract(epoch FROM run_at - now())::float8 AS run, run_at = wake_at AS wakes FROM steps"
        waits = await rows(harness, again)
        await rows(harness, "UPDATE steps SET run_at = now(), wake_at = now() WHERE index = 0")
        harness.published.clear()
        await harness.sweeper.sweep()
        woken = list(harness.published)
        claimed = await claim_step(harness.store, StepRef(job_id, 0, 0))
        late = [c.ref.index for c in await harness.store.claim_suspects(Pool.IO) if isinstance(c, StepClaim)]
        late += [c.ref.index for c in await harness.store.claim_suspects(Pool.IO) if isinstance(c, StepClaim)]
        return early, waits, woken, claimed, late

    early, waits, woken, claimed, late = play(scenario, ScriptedModel(), TOOLS)
    assert early is None
    assert all(1790 < row["run"] <= 1800 and row["wakes"] for row in waits)
    assert len(woken) == 1
    assert claimed is not None
    assert late == [1], "what a worker has taken is no suspect any more"


def test_a_group_is_claimed_once(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        await lost(harness, await executing(harness, 8), 8)
        claimed = await asyncio.gather(*(harness.store.claim_suspects(Pool.IO) for _ in range(9)))
        claimed += [await harness.store.claim_suspects(Pool.IO) for _ in range(5)]
        return [claim.ref.index for claims in claimed for claim in claims if isinstance(claim, StepClaim)], claimed

    claims, claimed = play(scenario, ScriptedModel(), TOOLS)
    assert sorted(claims) == list(range(8))
    assert {len(group) for group in claimed} == {0, 2}


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
        claims = [await harness.store.claim_suspects(Pool.IO) for _ in range(3)]
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
        harness.published.clear()
        barred = await harness.dispatcher.run_suspects(lambda: False)
        carried = await harness.dispatcher.run_suspects()
        nothing = await harness.dispatcher.run_suspects()
        assert barred == nothing == 0
        return carried, nothing, harness.published, await harness.requests.job("default", job_id)

    steps, nothing, published, (job, _) = play(scenario, ScriptedModel(), TOOLS)
    assert (steps, nothing) == (1, 0)
    assert job["status"] == "responding"
    assert len(published) == 1


def test_a_suspect_runs_once_all_else_has_ended_and_other_work_waits_for_its_end(play: Play) -> None:
    async def scenario(harness: Harness) -> None:
        BEGAN.append(began := asyncio.Queue())
        GO.update((name, asyncio.Event()) for name in "abc")
        wakes = {}
        for name in "abc":
            call = {"tool_name": "park", "arguments": {"name": name}}
            job_id = await harness.submit("", plan={"calls": [call]})
            claim = await claim_stage(harness.store, job_id, STAGES)
            assert claim is not None
            await harness.carry_out(claim)
            wakes[name] = Wake(StepRef(job_id, 0, 0), Pool.IO, "park")
        await lost(harness, wakes["b"].ref.job_id, 1)

        tasks = [asyncio.create_task(harness.dispatcher.run(wakes["a"]))]
        assert await asyncio.wait_for(began.get(), 60) == "a"
        tasks += [asyncio.create_task(harness.dispatcher.run_suspects())]
        await asyncio.sleep(0)
        tasks += [asyncio.create_task(harness.dispatcher.run(wakes["c"]))]
        await asyncio.sleep(0)
        held = await rows(harness, "SELECT 1 FROM steps WHERE status = 'running'")
        assert len(held) == 1
        GO["a"].set()
        assert await asyncio.wait_for(began.get(), 60) == "b"
        assert await rows(harness, "SELECT job_id FROM steps WHERE status = 'running'") == [
            {"job_id": wakes["b"].ref.job_id}
        ]
        GO["b"].set()
        assert await asyncio.wait_for(began.get(), 60) == "c"
        GO["c"].set()
        await asyncio.gather(*tasks)

    play(scenario, ScriptedModel(), TOOLS)


def test_what_a_claim_of_suspects_has_brought_is_not_handed_back_while_its_answer_is_read(play: Play) -> None:
    """A comparison found the step held and not here: another worker repeated what was just about to begin."""

    async def scenario(harness: Harness) -> Any:
        job_id = await executing(harness, 1)
        await lost(harness, job_id, 1)
        answer = Answer(harness, "claim_suspects")
        running = asyncio.create_task(harness.dispatcher.run_suspects())
        await asyncio.wait_for(answer.applied.wait(), 60)
        compare = reconciler(harness)
        for _ in range(3):
            await compare.beat(timedelta(0))
        answer.go.set()
        await asyncio.wait_for(running, 60)
        _, steps = await harness.requests.job("default", job_id)
        return [(step["status"], step["attempt"], step["releases"]) for step in steps]

    assert play(scenario, ScriptedModel(), TOOLS) == [("succeeded", 3, 0)]
