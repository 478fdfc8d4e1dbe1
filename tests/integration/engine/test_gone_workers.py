"""A worker whose process has gone: its lease is ended at once, once, and by nobody else's word than the kernel's."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from planq.shared.kernel.claims import StepClaim
from planq.shared.kernel.ids import Attempt, StepRef
from planq.shared.kernel.processes import Process
from planq.shared.kernel.states import JobStatus, Pool
from planq.shared.kernel.sweep import LossKind
from planq.worker.engine import Sweeper
from planq.worker.tools import tool
from tests.support.claiming import claim_stage, claim_step, claim_steps
from tests.support.harness import SWEEP, Harness, ScriptedModel, make_tool

Play = Callable[..., Any]

HERE = Process("5f6a", 4026531836, 4026531834, pid=700, started=9000, group=700)
ELSEWHERE = Process("5f6a", 4026531999, 4026531834, pid=700, started=9000, group=700)


@tool(effect="pure")
async def double(number: float) -> dict[str, float]:
    """Return twice the number."""
    return {"result": number * 2}


TOOLS = [make_tool(double)]
MODEL = ScriptedModel.planning(("double", {"number": 4}))


class Machine:
    """The port `LocalPeers`: a machine on which the processes `gone` have gone; `asked` are those looked for."""

    def __init__(self, *gone: str, place: str | None = HERE.place) -> None:
        self.place = place
        self.gone = set(gone)
        self.asked: list[str] = []

    def has_gone(self, process: str) -> bool:
        self.asked.append(process)
        return process in self.gone


def sweeper_on(harness: Harness, machine: Machine) -> Sweeper:
    return Sweeper(
        SWEEP,
        harness.worker_registry,
        harness,
        harness,
        harness.silent.job_ended,
        lambda: 0.0,
        interrupt=harness.interrupted.append,
        local_peers=machine,
    )


async def lives_as(harness: Harness, process: Process | None) -> UUID:
    """Let the harness's worker be this process, and begin the PLAN stage of a job."""
    await tell(harness, process)
    job_id = await harness.submit()
    harness.published.clear()
    assert await claim_stage(harness.store, job_id, [JobStatus.QUEUED]) is not None
    return job_id


async def tell(harness: Harness, process: Process | None) -> None:
    async with harness.database.connection() as connection:
        await connection.execute("DELETE FROM workers")
    text = process.text if process is not None else None
    await harness.worker_registry.register(harness.worker_id, "one", [Pool.IO], [], 10, "test", process=text)


def test_what_a_gone_worker_held_is_taken_back_in_the_same_pass(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        await tell(harness, HERE)
        job_id = await harness.submit()
        claim = await claim_stage(harness.store, job_id, [JobStatus.QUEUED])
        assert claim is not None
        await harness.carry_out(claim)
        step = await claim_step(harness.store, StepRef(job_id, 0, 0))
        assert step is not None
        harness.published.clear()
        sweeper = sweeper_on(harness, Machine(HERE.text))
        await sweeper.sweep()
        assert await harness.worker_registry.live() == []
        _, steps = await harness.requests.job("default", job_id)
        again = await claim_steps(harness.store, [step.ref])
        return again, [(s["status"], s["worker_losses"], s["worker_id"]) for s in steps], sweeper.counts

    again, steps, counts = play(scenario, MODEL, TOOLS)
    assert steps == [("ready", 1, None)]
    assert [(type(claim), claim.attempt) for claim in again] == [(StepClaim, 2)]
    assert counts == Counter({("lost", "gone"): 1})


def test_a_stage_of_a_gone_worker_is_taken_back_and_a_late_outcome_of_it_refused(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        await tell(harness, HERE)
        job_id = await harness.submit()
        harness.published.clear()
        claim = await claim_stage(harness.store, job_id, [JobStatus.QUEUED])
        assert claim is not None
        sweeper = sweeper_on(harness, Machine(HERE.text))
        await sweeper.sweep()
        late = await harness.store.end_job(claim, JobStatus.COMPLETED, "late", None, [])
        again = await claim_stage(harness.store, job_id, [JobStatus.PLANNING])
        return job_id, again, late, sweeper.counts

    job_id, again, late, counts = play(scenario, MODEL, TOOLS)
    assert (again.job_id, again.attempt) == (job_id, 2)
    assert not late
    assert counts == Counter({("lost", "gone"): 1})


@pytest.mark.parametrize(
    ("process", "machine"),
    [
        (HERE, Machine()),
        (ELSEWHERE, Machine(ELSEWHERE.text)),
        (None, Machine(HERE.text)),
        (HERE, Machine(HERE.text, place=None)),
    ],
    ids=["it lives", "it lives elsewhere", "it does not tell", "nobody can be seen"],
)
def test_a_worker_that_is_not_seen_to_have_gone_keeps_its_lease(
    play: Play, process: Process | None, machine: Machine
) -> None:
    async def scenario(harness: Harness) -> Any:
        await lives_as(harness, process)
        await sweeper_on(harness, machine).sweep()
        return [row["id"] for row in await harness.worker_registry.live()], harness.worker_id, harness.published

    live, worker, published = play(scenario, MODEL, TOOLS)
    assert live == [worker]
    assert published == []
    assert machine.asked == ([HERE.text] if process is HERE and machine.place else []), "none of another place"


def test_a_lease_is_ended_once_however_many_see_it(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        await lives_as(harness, HERE)
        sweepers = [sweeper_on(harness, Machine(HERE.text)) for _ in range(5)]
        found = await harness.worker_registry.look(timedelta(0), timedelta(0), HERE.place)
        assert found.peers == {HERE.text}
        applied = await asyncio.gather(*(harness.worker_registry.end_lease(HERE.text) for _ in sweepers))
        await asyncio.gather(*(sweeper.sweep() for sweeper in sweepers))
        return applied, sum((sweeper.counts for sweeper in sweepers), Counter())

    applied, counts = play(scenario, MODEL, TOOLS)
    assert sorted(map(str, applied)) == ["None"] * 4 + ["one"]
    assert counts == Counter({("lost", "gone"): 1}), "the stage was taken back once"


def test_the_lease_of_another_process_than_was_seen_is_not_ended(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        await lives_as(harness, HERE)
        other = Process(HERE.boot, HERE.pids, HERE.times, HERE.pid, HERE.started + 1, HERE.group)
        applied = await harness.worker_registry.end_lease(other.text)
        return applied, len(await harness.worker_registry.live())

    assert play(scenario, MODEL, TOOLS) == (None, 1)


def test_a_beat_that_arrives_after_the_death_costs_one_pass(play: Play) -> None:
    """It was on its way when the process was killed, and a claim with it."""

    async def scenario(harness: Harness) -> Any:
        job_id = await lives_as(harness, HERE)
        machine = Machine()
        sweeper = sweeper_on(harness, machine)
        await sweeper.sweep()  # the first pass also tidies up
        machine.gone.add(HERE.text)
        await sweeper.sweep()
        assert await harness.worker_registry.heartbeat(harness.worker_id, timedelta(0))
        assert await claim_stage(harness.store, job_id, [JobStatus.PLANNING]) is not None
        alive = len(await harness.worker_registry.live())
        await sweeper.sweep()
        return alive, len(await harness.worker_registry.live()), sweeper.counts

    alive, afterwards, counts = play(scenario, MODEL, TOOLS)
    assert (alive, afterwards) == (1, 0)
    assert counts == Counter({("lost", "gone"): 2})


def test_how_a_loss_was_seen_is_told(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        await tell(harness, HERE)
        claims = []
        for _ in range(3):
            job_id = await harness.submit()
            claim = await claim_stage(harness.store, job_id, [JobStatus.QUEUED])
            assert claim is not None
            await harness.carry_out(claim)
            claims.append(await claim_step(harness.store, StepRef(job_id, 0, 0)))
        abandoned, *others = [claim for claim in claims if claim is not None]
        assert await harness.worker_registry.abandon(harness.worker_id, Attempt(abandoned.ref, abandoned.attempt))
        sweeper = sweeper_on(harness, Machine())
        await sweeper.sweep()
        assert sweeper.counts == Counter({("lost", "abandoned"): 1})
        async with harness.database.connection() as connection:
            await connection.execute("UPDATE workers SET heartbeat_at = now() - interval '1 hour'")
        seen = [step.seen for step in await harness.worker_registry.lost_steps(10, SWEEP.deadline_grace)]
        assert await harness.worker_registry.end_lease(HERE.text)
        seen += [step.seen for step in await harness.worker_registry.lost_steps(10, SWEEP.deadline_grace)]
        return seen, len(others)

    seen, count = play(scenario, MODEL, TOOLS)
    assert seen == [LossKind.LEASE] * count + [LossKind.GONE] * count


def test_a_worker_that_was_ended_is_forgotten_by_the_next_tidying(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        await lives_as(harness, HERE)
        await sweeper_on(harness, Machine(HERE.text)).sweep()
        async with harness.database.connection() as connection:
            return await (await connection.execute("SELECT id FROM workers")).fetchall()

    assert play(scenario, MODEL, TOOLS) == []
