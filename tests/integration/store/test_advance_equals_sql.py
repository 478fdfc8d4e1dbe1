"""The SQL transitions do what `advance` says: both get the same events, both end in the same state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture import engine

from planq.shared.agentic.plan.document import Plan
from planq.shared.agentic.references.resolution import as_called
from planq.shared.kernel.claims import StageClaim
from planq.shared.kernel.job_store import ClaimRequest, FollowUp
from planq.shared.kernel.limits import Limits
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import (
    AfterSteps,
    JobStatus,
    JoinPolicy,
    OnFailure,
    Pool,
    Settlement,
    StepStatus,
    Strategy,
)
from planq.shared.kernel.steps import PlannedStep
from planq.shared.kernel.store.transitions import PostgresJobStore
from planq.shared.kernel.submission import Submission
from planq.shared.platform.database import Database
from planq.testing.model.events import (
    AnswerGiven,
    CancelRequested,
    ChildEnded,
    Event,
    JobExpired,
    PauseRequested,
    PlanAccepted,
    PlanExpired,
    Rejected,
    ResumeRequested,
    StageClaimed,
    StageRetried,
    StepAsked,
    StepClaimed,
    StepDelegated,
    StepFailed,
    StepLost,
    StepReleased,
    StepSettled,
    StepSucceeded,
    StepSuspended,
    ToolMissed,
)
from planq.testing.model.simulation import NOW, SimulatedJob
from tests.support.claiming import claim_stage
from tests.support.plans import compiled, plans
from tests.support.requests import OpenRequestStore
from tests.support.stored import StoredJob, least_window
from tests.support.tiers import examples


def simulated_state(job: SimulatedJob) -> tuple[Any, ...]:
    view = job.job
    counters = (
        *(str(view.status), view.open_steps, view.failed_steps, view.halt_index),
        *(view.open_questions, view.is_paused, view.round),
        *(view.places, None if view.places is None else len(out_of(job)), sum(s.held for s in job.steps.values())),
    )
    return counters, [
        (str(s.status), s.attempt, s.pending, s.joined, s.waits_for and str(s.waits_for), s.open_children, s.held)
        for _, s in sorted(job.steps.items())
    ]


def out_of(job: SimulatedJob) -> list[int]:
    return [n for n in job.in_status(StepStatus.READY, StepStatus.RUNNING) if not job.steps[n].held]


def choose(job: SimulatedJob, draw: Callable[[Any], Any]) -> tuple[Event, int]:
    """Draw an event that lands, and the step that it is about."""
    if job.job.is_paused and (draw(st.booleans()) or not job.in_status(StepStatus.RUNNING, StepStatus.WAITING)):
        return ResumeRequested(True, job.unfinished()), 0
    if not job.job.is_paused and draw(st.integers(0, 9)) == 0:
        return PauseRequested(), 0
    ready = [] if job.job.is_paused else job.in_status(StepStatus.READY)
    running = job.in_status(StepStatus.RUNNING)
    ready = [n for n in ready if not (job.steps[n].suspected or job.steps[n].held)]
    index = draw(st.sampled_from(ready + job.in_status(StepStatus.WAITING) + running))
    step = job.steps[index]
    if step.status is StepStatus.READY:
        return (ToolMissed(step.attempt) if draw(st.integers(0, 9)) == 0 else StepClaimed()), index
    if step.asks:
        return StepSettled(draw(st.sampled_from(Settlement))), index
    if step.status is StepStatus.WAITING and step.waits_for is not None and not step.joined:
        return ChildEnded(not job.job.is_paused and draw(st.booleans())), index
    if step.status is StepStatus.WAITING:
        return StepSucceeded(step.attempt), index
    choices: list[Event] = [
        StepSucceeded(step.attempt),
        StepSucceeded(step.attempt),
        StepFailed(step.attempt),
        StepSuspended(step.attempt),
    ]
    if not step.joined:
        children = draw(st.integers(1, 4))
        failed = draw(st.sampled_from([0, 0, 0, 1, children]))
        until = draw(st.sampled_from(JoinPolicy))
        choices += [StepDelegated(step.attempt, children, until, failed)]
    if step.attempt < 3:
        choices += [StepFailed(step.attempt, retry_at=NOW), StepReleased(step.attempt), StepAsked(step.attempt)]
        choices += [StepLost(step.attempt, NOW, again=again) for again in (False, True)]
        if step.joined:
            choices += [StepFailed(step.attempt, retry_at=NOW, anew=True)] * 2
    return draw(st.sampled_from(choices)), index


FOLLOWS = st.builds(FollowUp, st.sampled_from(AfterSteps), st.sampled_from(OnFailure))
TAKES = st.none() | st.builds(ClaimRequest, st.just(Pool.IO), st.integers(0, 3), st.booleans())
FENCED = (StepSucceeded, StepFailed, StepLost, StepSuspended, StepDelegated, StepReleased, StepAsked)


def later(steps: Sequence[PlannedStep], base: int) -> tuple[PlannedStep, ...]:
    """Return the same steps as those of a later round, which has `base` steps before it."""
    return tuple(
        replace(
            step,
            index=step.index + base,
            inputs=tuple(index + base for index in step.inputs),
            depends_on=tuple(index + base for index in step.depends_on),
            dependents=tuple(index + base for index in step.dependents),
        )
        for step in steps
    )


class Both:
    """The simulation and the database under the same history; `past` are events that must not land again."""

    def __init__(self, simulated: SimulatedJob, stored: StoredJob, draw: Callable[[Any], Any]) -> None:
        self.simulated = simulated
        self.stored = stored
        self.draw = draw
        self.past: list[tuple[Event, int]] = [(StepSucceeded(7), 0)]

    async def land(self, event: Event, index: int = 0) -> None:
        """Apply an event that lands in both."""
        effects = self.simulated.apply(event, index)
        assert not isinstance(next(iter(effects), None), Rejected)
        self.stored.take = self.draw(TAKES)
        self.stored.most = self.draw(st.integers(1, 4))
        self.stored.joined = self.simulated.joined()
        assert await self.stored.apply(event, index)
        self.claim_taken()
        if isinstance(event, FENCED):
            self.past.append((event, index))

    def claim_taken(self) -> None:
        """Apply to the simulation, as events of their own, the claims that came with a transition."""
        for claim in self.stored.taken:
            if isinstance(claim, StageClaim):
                effects = self.simulated.apply(StageClaimed())
                assert claim.attempt == self.simulated.job.stage_attempt
            else:
                effects = self.simulated.apply(StepClaimed(), claim.ref.index)
                assert claim.attempt == self.simulated.steps[claim.ref.index].attempt
            assert not isinstance(next(iter(effects), None), Rejected)
        self.stored.taken.clear()

    async def succeed_together(self) -> None:
        """End all running steps at once."""
        running = [(n, self.simulated.steps[n].attempt) for n in self.simulated.in_status(StepStatus.RUNNING)]
        for index, attempt in running:
            self.simulated.apply(StepSucceeded(attempt), index)
            self.past.append((StepSucceeded(attempt), index))
        self.stored.take = self.draw(TAKES)
        self.stored.joined = self.simulated.joined()
        await self.stored.succeed_together(running)
        self.simulated.adopt_window(await self.stored.held())
        self.claim_taken()

    def can_choose(self) -> bool:
        """Return whether anything can happen to a step that is not suspected, or to a paused job."""
        waits = self.simulated.in_status(StepStatus.RUNNING, StepStatus.WAITING)
        free = [n for n in out_of(self.simulated) if not self.simulated.steps[n].suspected]
        return bool(waits or free or self.simulated.job.is_paused)

    async def ask_for_held(self) -> None:
        """Ask for a step that waits for a place: nobody gets it."""
        for index in [n for n, step in self.simulated.steps.items() if step.held][:1]:
            assert isinstance(next(iter(self.simulated.apply(StepClaimed(), index)), None), Rejected)
            assert not await self.stored.apply(StepClaimed(), index)

    async def claim_suspects(self) -> bool:
        """Let a worker in quarantine claim what there is for it; False where there is nothing."""
        suspects = {n for n in self.simulated.in_status(StepStatus.READY) if self.simulated.steps[n].suspected}
        if not suspects or self.simulated.job.is_paused:
            return False
        for index in suspects:
            assert isinstance(next(iter(self.simulated.apply(StepClaimed(), index)), None), Rejected)
            assert not await self.stored.apply(StepClaimed(), index)
        assert await self.stored.claim_suspects() >= suspects
        for index in suspects:
            self.simulated.apply(StepClaimed(in_quarantine=True), index)
        return True

    async def execute(self) -> None:
        """Move on until no step is left, or until the plan, the job or somebody's patience ends."""
        while self.simulated.job.status is JobStatus.EXECUTING:
            assert await self.stored.state() == simulated_state(self.simulated)
            if self.draw(st.integers(0, 19)) == 0:
                await self._cut_short()
                return
            late, where = self.draw(st.sampled_from(self.past))
            assert isinstance(next(iter(self.simulated.apply(late, where)), None), Rejected)
            assert not await self.stored.apply(late, where)
            if self.draw(st.integers(0, 4)) == 0:
                await self.succeed_together()
                continue
            await self.ask_for_held()
            if self.draw(st.integers(0, 9)) == 0 or not out_of(self.simulated):
                self.simulated.open_window()
                await self.stored.open_windows()
            if (self.draw(st.booleans()) or not self.can_choose()) and await self.claim_suspects():
                continue
            event, index = choose(self.simulated, self.draw)
            step = self.simulated.steps[index]
            if isinstance(event, StepSucceeded) and step.status is StepStatus.WAITING:
                self.simulated.apply(event, index)
                assert await self.stored.fire_timer(index, step.attempt)
            else:
                await self.land(event, index)

    async def _cut_short(self) -> None:
        simulated = self.simulated
        begun = simulated.in_status(StepStatus.READY, StepStatus.RUNNING, StepStatus.WAITING)
        ends: list[Event] = [CancelRequested()]
        if simulated.job.is_paused:
            assert isinstance(simulated.apply(PlanExpired(len(begun)))[0], Rejected)
            assert not await self.stored.apply(PlanExpired(0), 0)
        else:
            ends += [PlanExpired(len(begun)), JobExpired()]
        await self.land(self.draw(st.sampled_from(ends)))
        assert not await self.stored.apply(PlanExpired(0), 0)

    async def _retry_respond(self) -> None:
        simulated = self.simulated
        retried = StageRetried(simulated.job.stage_attempt, NOW + timedelta(hours=1))
        assert simulated.apply(retried) == ()
        for late in (retried, StageClaimed()):
            assert isinstance(simulated.apply(late)[0], Rejected)
        await self.stored.retry_respond()
        simulated.job = replace(simulated.job, run_at=NOW)  # its time has come
        assert simulated.apply(StageClaimed()) == ()

    async def plan_again(self, steps: Sequence[PlannedStep]) -> bool:
        """Where a further round is due, plan the same steps once more, after those that there are."""
        if self.simulated.job.status is not JobStatus.PLANNING:
            return False
        assert await self.stored.state() == simulated_state(self.simulated)
        if self.simulated.job.is_paused:
            await self.land(ResumeRequested(True, 0))
        self.simulated.apply(StageClaimed())  # rejected where it was taken over
        shifted = later(steps, len(self.simulated.steps))
        follow = self.draw(FOLLOWS)
        attempt = self.simulated.job.stage_attempt
        self.simulated.apply(
            PlanAccepted(attempt, self.simulated.plan(shifted), follow.after_steps, follow.on_failure)
        )
        self.stored.take = self.draw(TAKES)
        await self.stored.plan_again(shifted, follow)
        self.claim_taken()
        return True

    async def reopen(self) -> bool:
        """Answer where RESPOND is due, then resume; False when the job has ended for good."""
        assert await self.stored.state() == simulated_state(self.simulated)
        if self.simulated.job.is_paused:
            await self.land(ResumeRequested(True, 0))
        if self.simulated.job.status is JobStatus.RESPONDING:
            self.simulated.apply(StageClaimed())  # rejected where it was taken over
            for _ in range(self.draw(st.integers(0, 2))):
                await self._retry_respond()
            self.simulated.apply(AnswerGiven(self.simulated.job.stage_attempt))
            await self.stored.answer()
            assert await self.stored.state() == simulated_state(self.simulated)
        if self.simulated.job.round > 0:
            return False  # what of several rounds is tried again is another test's subject
        resume = ResumeRequested(True, self.simulated.unfinished())
        rejected = isinstance(next(iter(self.simulated.apply(resume, 0)), None), Rejected)
        assert await self.stored.apply(resume, 0) is not rejected
        return self.simulated.job.status is JobStatus.EXECUTING


async def run_both(database_url: str, plan: Plan, data: st.DataObject) -> None:
    steps = compiled(plan)
    simulated = SimulatedJob(least_window=data.draw(st.sampled_from([1, 2, 3, 64])))
    simulated.apply(StageClaimed())
    follow = data.draw(FOLLOWS)
    guided = data.draw(st.integers(0, 4)) == 0
    if guided:
        simulated.apply(PlanAccepted(1, (), AfterSteps.PLANNING, OnFailure.RECORD))
        simulated.apply(StageClaimed())
    attempt = simulated.job.stage_attempt
    simulated.apply(PlanAccepted(attempt, simulated.plan(steps), follow.after_steps, follow.on_failure))
    database = Database(database_url, max_connections=1)
    await database.open()
    try:
        await least_window(database, simulated.least_window or 0)
        stored = StoredJob(database, steps)
        stored.take = data.draw(TAKES)
        await stored.begin(follow, guided=guided)
        both = Both(simulated, stored, data.draw)
        both.claim_taken()
        for _ in range(3):
            await both.execute()
            if not (await both.plan_again(steps) or await both.reopen()):
                break
        assert await stored.state() == simulated_state(simulated)
        assert await stored.broken() == []
    finally:
        await database.close()


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plan=plans(max_steps=8, explicit=True), data=st.data())
def test_sql_and_advance_agree_on_any_history(database_url: str, plan: Plan, data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # A history that fails is made smaller for a while, not for five minutes: each try plays it on a server.
        patch.setattr(engine, "MAX_SHRINKING_SECONDS", 20)
        run(run_both(database_url, plan, data))


def test_what_is_cut_off_is_tried_again_in_both_and_a_recorded_failure_is_not(database_url: str) -> None:
    """Of a resumed job: what failed was recorded, what needed its output was skipped, the others were cut off."""

    async def scenario() -> None:
        first, needing = {"inputs": []}, {"inputs": ["$0.output.value"]}
        arguments = [first, needing, first, {"inputs": ["$2.output.value"]}]
        calls = [{"tool_name": "sim_pure", "arguments": given} for given in arguments]
        steps = compiled(Plan.model_validate({"calls": calls}))
        follow = FollowUp(AfterSteps.RESPONDING, OnFailure.RECORD)
        simulated = SimulatedJob()
        simulated.apply(StageClaimed())
        simulated.apply(PlanAccepted(1, simulated.plan(steps), follow.after_steps, follow.on_failure))
        database = Database(database_url, max_connections=1)
        await database.open()
        stored = StoredJob(database, steps)
        await stored.begin(follow)
        for event in (StepClaimed(), StepFailed(1), JobExpired()):
            simulated.apply(event, 0)
            assert await stored.apply(event, 0)
        resume = ResumeRequested(True, simulated.unfinished())
        simulated.apply(resume, 0)
        assert await stored.apply(resume, 0)
        statuses = [str(step.status) for _, step in sorted(simulated.steps.items())]
        assert statuses == ["failed", "skipped", "ready", "pending"]
        assert await stored.state() == simulated_state(simulated)
        await database.close()

    run(scenario())


@pytest.mark.parametrize("order", ["finish_first", "fail_first"])
def test_two_finishers_at_once_count_every_step_once(database_url: str, order: str) -> None:
    """Thirty steps end at the same moment from ten connections; the last one, whichever it is, opens RESPOND."""

    async def scenario() -> None:
        calls = [{"tool_name": "sim_pure", "arguments": {}} for _ in range(30)]
        steps = compiled(Plan.model_validate({"calls": calls}))
        database = Database(database_url, max_connections=10)
        await database.open()
        stored = StoredJob(database, steps)
        await stored.begin()
        await asyncio.gather(*(stored.apply(StepClaimed(), n) for n in range(30)))
        last: list[Event] = [StepSucceeded(1) for _ in range(30)]
        last[17 if order == "fail_first" else 0] = StepFailed(1)
        applied = await asyncio.gather(*(stored.apply(last[n], n) for n in range(30)))
        assert all(applied)
        counters, _ = await stored.state()
        assert counters[:3] == ("responding", 0, 1)
        await database.close()

    run(scenario())


def test_a_claim_is_made_once_whoever_asks(database_url: str) -> None:
    async def scenario() -> None:
        steps = compiled(Plan.model_validate({"calls": [{"tool_name": "sim_pure", "arguments": {}}]}))
        database = Database(database_url, max_connections=10)
        await database.open()
        stored = StoredJob(database, steps)
        await stored.begin()
        claims = await asyncio.gather(*(stored.apply(StepClaimed(), 0) for _ in range(20)))
        assert sum(claims) == 1
        await database.close()

    run(scenario())


def test_a_stage_is_claimed_once_and_fenced_after_it_was_released(database_url: str) -> None:
    async def scenario() -> None:
        database = Database(database_url, max_connections=4)
        await database.open()
        store = PostgresJobStore(database, new_id(), as_called)
        job_id = new_id()
        requests, statuses = OpenRequestStore(database), [JobStatus.QUEUED, JobStatus.PLANNING]
        await requests.submit(Submission(job_id, "default", "x", Strategy.PLAN, "offline", Limits()))
        claims = await asyncio.gather(*(claim_stage(store, job_id, statuses) for _ in range(10)))
        first = [c for c in claims if c is not None]
        assert len(first) == 1
        assert await store.release(first[0])
        second = await claim_stage(store, job_id, statuses)
        assert isinstance(second, StageClaim)
        assert second.attempt == 2
        assert not await store.end_job(first[0], JobStatus.COMPLETED, "late", None, [])
        assert await store.end_job(second, JobStatus.COMPLETED, "right", None, [])
        job, _ = await requests.job("default", job_id)
        assert (job["status"], job["answer"]) == ("completed", "right")
        await database.close()

    run(scenario())
