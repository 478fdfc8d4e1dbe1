"""Many connections move the same few jobs at once, at random: the counters stay right, and every job can still end.

After the storm only what the sweeper is told moves a job on: what nothing would ever wake again would be seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from random import Random
from typing import Any
from uuid import UUID

import pytest

from planq.shared.agentic.plan.document import Plan
from planq.shared.agentic.references.resolution import as_called
from planq.shared.kernel.claims import StageClaim, StepClaim
from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.job_store import ClaimRequest, TransitionResult
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.questions import FailStep
from planq.shared.kernel.states import JobStatus, Pool, Settlement
from planq.shared.kernel.store.transitions import PostgresJobStore
from planq.shared.kernel.sweep import ExpiredJob, ExpiredPlan
from planq.shared.platform.database import Database
from planq.shared.platform.errors import ErrorRecord, InternalFault
from planq.shared.subjects.jobs.store import Verdict
from planq.shared.subjects.questions.store import QuestionSweep
from tests.integration.store.test_control import BOOM, Rows
from tests.support.claiming import claim_stage, claim_step, claim_steps
from tests.support.plans import compiled
from tests.support.stored import DID_IT
from tests.support.tiers import some

PEOPLE = 8
MOVES = 150
JOBS = 3
UNKNOWN = ErrorRecord("outcome_unknown", "cut off")
CALLS: list[dict[str, Any]] = [
    {"tool_name": "sim_read", "arguments": {}},
    {"tool_name": "sim_read", "arguments": {}},
    {"tool_name": "sim_pure", "arguments": {"inputs": ["$0.output.value", "$1.output.value"]}},
    {"tool_name": "sim_unsafe", "arguments": {}},
    {"tool_name": "sim_read", "arguments": {"inputs": ["$3.output.value"]}},
    {"tool_name": "sim_idempotent", "arguments": {}},
    {"tool_name": "sim_pure", "arguments": {"inputs": ["$2.output.value"]}},
    {"tool_name": "sim_unsafe", "arguments": {}, "depends_on": [0]},
]
STEPS = compiled(Plan.model_validate({"calls": CALLS}))
TAKES = [
    None,
    ClaimRequest(Pool.IO),
    ClaimRequest(Pool.IO, 3),
    ClaimRequest(Pool.IO, 0),
    ClaimRequest(Pool.IO, 1, stage=False),
]
HOW = ["plan", "plan", "fail", "release"]
STAGES = [JobStatus.QUEUED, JobStatus.PLANNING, JobStatus.RESPONDING]


class Storm(Rows):
    """`held` are claims, stale ones too: whoever draws one concludes it or is told that it is over."""

    def __init__(self, database: Database, seed: int) -> None:
        super().__init__(database)
        self.random = Random(seed)
        self.jobs: list[UUID] = []
        self.held: list[tuple[PostgresJobStore, StepClaim]] = []
        self.stages: list[tuple[PostgresJobStore, StageClaim]] = []
        self.workers = [new_id() for _ in range(3)]  # the last one is dead: it never registers
        self.stores = [PostgresJobStore(database, worker, as_called) for worker in self.workers]
        self.moves: list[tuple[int, Callable[[UUID, StepRef], Awaitable[Any]]]] = [
            (30, self.take),
            (40, self.conclude),
            (20, self.conclude_stage),
            (12, self.sweep),
            (8, self.claim_suspects),
            (4, self.let_time_pass),
            (2, self.pause),
            (9, self.resume),
            (9, self.settle),
            (1, self.expire_plan),
            (1, self.expire_job),
            (4, self.fork),
        ]

    async def begin(self) -> None:
        for worker in self.workers[:2]:
            await self.worker_registry.register(worker, "w", [Pool.IO], [], 1, "1")
        self.jobs = [await self.submit() for _ in range(JOBS)]

    async def rage(self) -> None:
        """Make one random move after the other."""
        weights, moves = [weight for weight, _ in self.moves], [move for _, move in self.moves]
        for _ in range(MOVES):
            job = self.random.choice(self.jobs[-2 * JOBS :])
            ref = StepRef(job, 0, self.random.randrange(len(CALLS)))
            await self.random.choices(moves, weights)[0](job, ref)

    async def take(self, job: UUID, ref: StepRef) -> None:
        store = self.random.choice(self.stores)
        stage = await claim_stage(store, job, STAGES)
        if stage is not None:
            self.stages.append((store, stage))
        refs = [StepRef(job, 0, index) for index in range(len(CALLS)) if self.random.random() < 0.3]
        self.keep(store, await claim_steps(store, refs))

    async def claim_suspects(self, job: UUID, ref: StepRef) -> None:
        store = self.random.choice(self.stores)
        self.keep(store, await store.claim_suspects(Pool.IO))

    async def conclude(self, job: UUID, ref: StepRef) -> None:
        if not self.held:
            return
        # Mostly one that is under way; now and then one that is long over.
        owner, claim = self.random.choice(self.held[-6:] if self.random.random() < 0.8 else self.held)
        store = owner if self.random.random() < 0.9 else self.random.choice(self.stores)
        soon, output = timedelta(milliseconds=self.random.choice([0, 0, 5])), {"value": "v"}
        take = self.random.choice(TAKES)
        ways: list[Callable[[], Awaitable[Any]]] = [
            lambda: store.succeed_step(claim, output, None, take=take),
            lambda: store.succeed_step(claim, output, None, take=take),
            lambda: store.succeed_step(claim, output, None, take=take),
            lambda: store.fail_step(claim, BOOM, None, take=take),
            lambda: store.fail_step(claim, BOOM, soon, take=take),
            lambda: store.suspend_step(claim, soon, output),
            lambda: store.release(claim),
            lambda: store.ask_step(claim, DID_IT, UNKNOWN),
        ]
        moved = await self.random.choice(ways)()
        if isinstance(moved, TransitionResult):
            self.keep(store, moved.taken)

    def keep(self, store: PostgresJobStore, claims: Iterable[StageClaim | StepClaim]) -> None:
        """Hold what a worker has claimed."""
        for claim in claims:
            if isinstance(claim, StageClaim):
                self.stages.append((store, claim))
            else:
                self.held.append((store, claim))

    async def conclude_stage(self, job: UUID, ref: StepRef) -> None:
        if self.stages:
            await self.finish_stage(*self.random.choice(self.stages[-3:]), self.random.choice(HOW))

    async def finish_stage(self, store: PostgresJobStore, stage: StageClaim, how: str) -> None:
        if how == "release":
            await store.release(stage)
        elif stage.status is JobStatus.RESPONDING:
            status = JobStatus.FAILED if how == "fail" else JobStatus.COMPLETED
            await store.end_job(stage, status, "a", BOOM if how == "fail" else None, [])
        else:
            try:
                take = self.random.choice(TAKES) if how != "end" else None
                moved = await store.accept_plan(stage, "caller", {}, STEPS, [], take=take)
                self.keep(store, moved.taken)
            except InternalFault:  # a fork whose source was removed
                await store.end_job(stage, JobStatus.FAILED, None, BOOM, [])

    async def sweep(self, *_: Any) -> list[Any]:
        """What `Sweeper` does; a lost attempt is tried again, asked about or given up, as the dice fall."""
        for timer in await self.worker_registry.due_timers(100):
            await self.worker_registry.fire_timer(timer)
        for step in await self.worker_registry.lost_steps(100, timedelta(0)):
            if self.random.random() < 0.2:
                await self.worker_registry.ask_lost_step(step, DID_IT, UNKNOWN)
            else:
                again = timedelta(0) if self.random.random() < 0.7 else None
                await self.worker_registry.take_back_step(step, BOOM, again)
        for stage in await self.worker_registry.lost_stages(100):
            await self.worker_registry.take_back_stage(stage)
        for question in await QuestionSweep(self.database).expired(100):
            await QuestionSweep(self.database).expire(question, FailStep(UNKNOWN))
        return list(await self.worker_registry.take_due_wakes(100))

    async def let_time_pass(self, *_: Any) -> None:
        """Everything that has a time is due; what somebody is just moving is passed over, as by the sweeper."""
        steps = (
            "UPDATE steps SET {0} = now() WHERE (job_id, round, index) IN (SELECT job_id, round, index FROM steps "
        )
        steps += "WHERE {0} > now() AND status IN ('ready', 'waiting') FOR NO KEY UPDATE SKIP LOCKED)"
        await self.run(steps.format("wake_at"))
        await self.run(steps.format("run_at"))
        for column in ("wake_at", "run_at"):
            jobs = f"SELECT id FROM jobs WHERE {column} > now() FOR NO KEY UPDATE SKIP LOCKED"
            await self.run(f"UPDATE jobs SET {column} = now() WHERE id IN ({jobs})")

    async def pause(self, job: UUID, ref: StepRef) -> None:
        await self.requests.pause("default", job)

    async def resume(self, job: UUID, ref: StepRef) -> None:
        row, _ = await self.requests.planned("default", job)
        after = row["resumes"] if JobStatus(row["status"]).is_terminal else None
        await self.requests.resume("default", job, after=after)

    async def settle(self, job: UUID, ref: StepRef) -> None:
        _, steps = await self.requests.planned("default", job)
        for step in steps:
            if step["asks"] is not None:
                outcome = self.random.choice(list(Settlement))
                output = {"value": "v"} if outcome is Settlement.HAPPENED else None
                verdict = Verdict(outcome, output, None if output else UNKNOWN)
                await self.requests.settle("default", job, step["index"], verdict)
                return

    async def expire_plan(self, job: UUID, ref: StepRef) -> None:
        await self.run("UPDATE jobs SET deadline = now() WHERE id = %s AND deadline IS NOT NULL", job)
        await self.worker_registry.expire_plan(ExpiredPlan(job, 300.0), BOOM)

    async def expire_job(self, job: UUID, ref: StepRef) -> None:
        if self.random.random() < 0.1:
            await self.requests.cancel("default", job)
            return
        await self.run("UPDATE jobs SET expires_at = now() WHERE id = %s", job)
        await self.worker_registry.expire_job(ExpiredJob(job, False, 1.0), BOOM)

    async def fork(self, job: UUID, ref: StepRef) -> None:
        _, steps = await self.requests.planned("default", job)
        done = {step["index"]: step["index"] for step in steps if step["status"] == "succeeded"}
        unfinished = await self.run("SELECT id FROM jobs WHERE finished_at IS NULL")
        if len(unfinished) < JOBS:
            self.jobs.append(await self.submit(forked_from=job, reuse=done, plan={"calls": CALLS}))

    async def calm(self) -> None:
        """Every worker dies; a new one carries out what it is woken for, until nothing is left that wakes it."""
        for worker in self.workers:
            await self.worker_registry.forget(worker)
        await self.worker_registry.register(worker := new_id(), "w", [Pool.IO], [], 1, "1")
        store = PostgresJobStore(self.database, worker, as_called)
        quiet = 0
        for _ in range(200):
            await self.let_time_pass()
            wakes = await self.sweep()
            for wake in wakes:
                if not wake.ref.is_stage:
                    claim = await claim_step(store, wake.ref)
                    if claim is not None:
                        assert (await store.succeed_step(claim, {"value": "v"}, None)).applied
                elif (stage := await claim_stage(store, wake.job_id, STAGES)) is not None:
                    await self.finish_stage(store, stage, "end")
            # The sweep itself may have opened a stage, whose wake-up is due only after time has passed once more.
            still = not wakes and not await self.run("SELECT 1 FROM steps WHERE status IN ('running', 'waiting')")
            quiet = quiet + 1 if still else 0
            if quiet == 2:
                return
        raise AssertionError("something goes on for ever")


async def storm(database: Database, seed: int) -> None:
    rows = Storm(database, seed)
    await rows.begin()
    await asyncio.gather(*(rows.rage() for _ in range(PEOPLE)))
    broken = await rows.worker_registry.broken_invariants()
    assert [b for b in broken if b["invariant"] != "running_without_lease"] == []
    for job in rows.jobs:
        row, _ = await rows.requests.planned("default", job)
        if row["paused_at"] is not None:
            assert (await rows.requests.resume("default", job)).applied
    await rows.calm()
    assert await rows.run("SELECT id, status FROM jobs WHERE finished_at IS NULL") == []
    for job in rows.jobs:
        await rows.resume(job, StepRef(job, 0, 0))
        row, _ = await rows.requests.planned("default", job)
        while JobStatus(row["status"]) in (JobStatus.EXECUTING, *STAGES):
            await rows.calm()
            await rows.resume(job, StepRef(job, 0, 0))
            row, _ = await rows.requests.planned("default", job)
        assert row["status"] in ("completed", "cancelled"), row
    assert await rows.worker_registry.broken_invariants() == []


@pytest.mark.parametrize("seed", some(range(4), 0))
def test_whatever_happens_at_once_the_counters_stay_right_and_every_job_ends(database_url: str, seed: int) -> None:
    async def inside() -> None:
        database = Database(database_url, max_connections=PEOPLE)
        await database.open()
        try:
            await storm(database, seed)
        finally:
            await database.close()

    asyncio.run(inside())
