"""`advance`: any plan, any order of completion, any late or doubled event."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planq.shared.agentic.plan.document import Plan
from planq.shared.kernel.states import TERMINAL_JOB, TERMINAL_STEP, Effect, JobStatus, Settlement, StepStatus
from planq.shared.kernel.steps import PlannedStep
from planq.testing.model.advance import advance
from planq.testing.model.events import (
    AnswerGiven,
    CancelRequested,
    DispatchStage,
    Event,
    JobEnded,
    JobExpired,
    JobView,
    Neighbourhood,
    PauseRequested,
    PlanAccepted,
    PlanExpired,
    PlanRefused,
    Rejected,
    ResumeRequested,
    StageClaimed,
    StageFailed,
    StageReleased,
    StageRetried,
    StepAsked,
    StepClaimed,
    StepFailed,
    StepReleased,
    StepSettled,
    StepsSkipped,
    StepSucceeded,
    StepSuspended,
    StepView,
    ToolMissed,
)
from planq.testing.model.simulation import NOW, SimulatedJob
from tests.model.states import JOB_TRANSITIONS, STEP_TRANSITIONS
from tests.support.plans import compiled, plans
from tests.support.tiers import examples


def started(steps: Sequence[PlannedStep]) -> SimulatedJob:
    job = SimulatedJob()
    job.apply(StageClaimed())
    job.apply(PlanAccepted(1, job.plan(steps)))
    return job


def check(job: SimulatedJob, steps: Sequence[PlannedStep], order: list[int]) -> None:
    assert job.job.status is JobStatus.RESPONDING
    assert job.open_steps() == job.job.open_steps == 0
    position = {index: n for n, index in enumerate(order)}
    for step in steps:
        if step.index in position:
            assert all(d in position and position[d] < position[step.index] for d in step.depends_on)


@settings(max_examples=examples(150), deadline=None)
@given(plan=plans(explicit=True), data=st.data())
def test_every_job_ends_and_no_step_starts_early_or_ends_twice(plan: Plan, data: st.DataObject) -> None:
    """Steps end in any order, some fail, some fail and are tried again, and every event comes twice or late."""
    steps = compiled(plan)
    job = started(steps)
    ended: list[int] = []
    succeeded: list[int] = []
    past: list[tuple[Event, int]] = []
    while job.job.status is JobStatus.EXECUTING:
        runnable = job.in_status(StepStatus.READY)
        running = job.in_status(StepStatus.RUNNING, StepStatus.WAITING)
        assert runnable or running, "a job that executes has something to run"
        index = data.draw(st.sampled_from(runnable + running))
        step = job.steps[index]
        if step.status is StepStatus.READY:
            assert all(d in succeeded for d in steps[index].depends_on)
            event: Event = StepClaimed()
        elif step.status is StepStatus.WAITING:
            event = StepSucceeded(step.attempt)
        else:
            event = data.draw(
                st.sampled_from(
                    [
                        StepSucceeded(step.attempt),
                        StepFailed(step.attempt),
                        StepFailed(step.attempt, retry_at=NOW) if step.attempt < 3 else StepFailed(step.attempt),
                        StepSuspended(step.attempt),
                    ]
                )
            )
        effects = job.apply(event, index)
        assert not any(isinstance(e, Rejected) for e in effects)
        if job.steps[index].status in TERMINAL_STEP:
            ended.append(index)
            if job.steps[index].status is StepStatus.SUCCEEDED:
                succeeded.append(index)
        if not isinstance(event, StepClaimed):
            past.append((event, index))
            late, where = data.draw(st.sampled_from(past))
            before = (job.job, dict(job.steps))
            assert isinstance(job.apply(late, where)[0], Rejected)
            assert (job.job, job.steps) == before
        assert job.job.open_steps == job.open_steps()
    assert len(ended) == len(set(ended))
    check(job, steps, succeeded)


@dataclass
class World:
    """What simulated tools read and change: an append-only ledger and a set of keys."""

    ledger: list[str] = field(default_factory=list)

    def call(self, step: PlannedStep, outputs: dict[int, str]) -> str:
        inputs = ",".join(outputs[i] for i in step.inputs)
        match step.effect:
            case Effect.PURE:
                return f"pure({step.index}:{inputs})"
            case Effect.READ:
                return f"read({step.index}:{inputs}:{'/'.join(self.ledger)})"
            case _:
                self.ledger.append(f"{step.index}:{inputs}")
                return f"write({step.index}:{inputs}:{len(self.ledger)})"


def in_sequence(steps: Sequence[PlannedStep], failing: set[int]) -> tuple[World, dict[int, str]]:
    world, outputs = World(), {}
    for step in steps:
        if step.index in failing:
            break
        outputs[step.index] = world.call(step, outputs)
    return world, outputs


@settings(max_examples=examples(300), deadline=None)
@given(plan=plans(), failing=st.sets(st.integers(0, 11), max_size=3), data=st.data())
def test_a_parallel_run_has_exactly_the_effects_of_the_sequence(
    plan: Plan, failing: set[int], data: st.DataObject
) -> None:
    """A tool takes effect at any moment between its start and its end; reads see the world of the sequence."""
    steps = compiled(plan)
    expected_world, expected = in_sequence(steps, failing)
    job, world, outputs = started(steps), World(), {}
    begun: dict[int, str | None] = {}
    while job.job.status is JobStatus.EXECUTING:
        ready = [("claim", i) for i in job.in_status(StepStatus.READY)]
        running = job.in_status(StepStatus.RUNNING)
        effects = [("effect", i) for i in running if begun.get(i) is None and i not in failing]
        ends = [("end", i) for i in running if i in failing or begun.get(i) is not None]
        what, index = data.draw(st.sampled_from(ready + effects + ends))
        if what == "claim":
            job.apply(StepClaimed(), index)
        elif what == "effect":
            begun[index] = world.call(steps[index], outputs)
        elif index in failing:
            job.apply(StepFailed(1), index)
        else:
            outputs[index] = str(begun[index])
            job.apply(StepSucceeded(1), index)
    assert world.ledger == expected_world.ledger
    assert {i: outputs[i] for i in expected} == expected


EVENTS: list[Event] = [
    StageClaimed(),
    StageReleased(1),
    StageRetried(1, NOW),
    PlanAccepted(1, (StepView(0, StepStatus.READY),)),
    PlanRefused(1),
    AnswerGiven(1),
    StageFailed(1),
    StepClaimed(),
    StepSucceeded(1),
    StepFailed(1),
    StepFailed(1, retry_at=NOW),
    ToolMissed(1),
    StepSuspended(1),
    StepReleased(1),
    StepsSkipped(1),
    PlanExpired(1),
    CancelRequested(),
    JobExpired(),
    StepAsked(1),
    *(StepSettled(outcome) for outcome in Settlement),
    PauseRequested(),
    ResumeRequested(has_plan=False, unfinished=0),
    ResumeRequested(has_plan=True, unfinished=0),
    ResumeRequested(has_plan=True, unfinished=2),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("job_status", list(JOB_TRANSITIONS))
@pytest.mark.parametrize("step_status", list(StepStatus))
def test_every_state_and_event_moves_only_along_the_tables(
    event: Event, job_status: JobStatus, step_status: StepStatus
) -> None:
    for claimed, paused, asks in product((True, False), repeat=3):
        here = Neighbourhood(
            JobView(
                *(job_status, 1, claimed, 2),
                failed_steps=int(asks),
                open_questions=int(asks),
                is_paused=paused and job_status not in TERMINAL_JOB,
            ),
            StepView(0, step_status, attempt=1, asks=asks and step_status is StepStatus.WAITING),
        )
        after, effects = advance(here, event, NOW)
        if any(isinstance(e, Rejected) for e in effects):
            assert after == here
        if after.job.status is not job_status:
            assert after.job.status in JOB_TRANSITIONS[job_status]
        assert after.step is not None
        if after.step.status is not step_status:
            assert after.step.status in STEP_TRANSITIONS[step_status]
        if job_status in TERMINAL_JOB and not isinstance(event, ResumeRequested):
            assert after == here
        if here.job.is_paused:
            assert not isinstance(event, (StageClaimed, StepClaimed, PlanExpired, JobExpired)) or after == here
        ended = [e for e in effects if isinstance(e, JobEnded)]
        assert bool(ended) == (after.job.status in TERMINAL_JOB and job_status not in TERMINAL_JOB)


def test_a_failure_skips_what_comes_later_and_lets_earlier_steps_run() -> None:
    plan = Plan.model_validate(
        {
            "calls": [
                {"tool_name": "sim_read", "arguments": {}},
                {"tool_name": "sim_unsafe", "arguments": {}},
                {"tool_name": "sim_pure", "arguments": {}},
                {"tool_name": "sim_read", "arguments": {}},
            ]
        }
    )
    job = started(compiled(plan))
    job.apply(StepClaimed(), 0)
    job.apply(StepClaimed(), 2)
    job.apply(StepFailed(1), 2)
    assert job.in_status(StepStatus.SKIPPED) == [3]
    job.apply(StepSucceeded(1), 0)
    assert job.in_status(StepStatus.READY) == [1]
    job.apply(StepClaimed(), 1)
    assert DispatchStage() in job.apply(StepSucceeded(1), 1)


def test_a_step_that_waits_for_a_skipped_one_is_skipped_too() -> None:
    plan = Plan.model_validate(
        {
            "calls": [
                {"tool_name": "sim_pure", "arguments": {}, "depends_on": [2]},
                {"tool_name": "sim_pure", "arguments": {}},
                {"tool_name": "sim_pure", "arguments": {}, "depends_on": [1]},
            ]
        }
    )
    job = started(compiled(plan))
    job.apply(StepClaimed(), 1)
    effects = job.apply(StepFailed(1), 1)
    assert job.in_status(StepStatus.SKIPPED) == [0, 2]
    assert job.job.status is JobStatus.RESPONDING
    assert not any(isinstance(e, Rejected) for e in effects)
