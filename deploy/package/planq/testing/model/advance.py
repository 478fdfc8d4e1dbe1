"""The executable specification of every transition of a job and its steps.

The SQL functions decide; this model says in Python what they must do, and the property test
`tests/integration/store/test_advance_equals_sql.py` holds the two equal. `advance` looks only at the neighbourhood
that an event touches (the job's counters, the step, its dependents), so it is O(out-degree). An event that comes
late, twice or for another attempt changes nothing and yields `Rejected`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

from planq.shared.kernel.states import (
    TERMINAL_JOB,
    TERMINAL_STEP,
    AfterSteps,
    JobStatus,
    JoinPolicy,
    OnFailure,
    Settlement,
    StepStatus,
)
from planq.testing.model import events
from planq.testing.model.events import Effect, Event, JobView, Neighbourhood, Rejected, StepView

Result = tuple[Neighbourhood, tuple[Effect, ...]]


def advance(here: Neighbourhood, event: Event, now: datetime) -> Result:
    """Return the neighbourhood after `event`, and what has to be done about it; a late event raises nothing."""
    handler: Callable[[Neighbourhood, Any, datetime], Result] = _HANDLERS[type(event)]
    return handler(here, event, now)


def _reject(here: Neighbourhood, reason: str) -> Result:
    return here, (Rejected(reason),)


def _end(here: Neighbourhood, status: JobStatus) -> Result:
    job = replace(here.job, status=status, is_claimed=False, is_paused=False)
    return replace(here, job=job), (events.JobEnded(status),)


def _holds_stage(job: JobView, attempt: int, *stages: JobStatus) -> bool:
    return job.is_claimed and job.stage_attempt == attempt and job.status in stages


def _stage_claimed(here: Neighbourhood, event: events.StageClaimed, now: datetime) -> Result:
    job = here.job
    if job.is_paused:
        return _reject(here, "the job is paused")
    if job.is_claimed or job.status not in (JobStatus.QUEUED, JobStatus.PLANNING, JobStatus.RESPONDING):
        return _reject(here, "the stage is taken or over")
    if job.run_at is not None and job.run_at > now:
        return _reject(here, "the stage's time has not come")
    status = JobStatus.PLANNING if job.status is JobStatus.QUEUED else job.status
    return replace(here, job=replace(job, status=status, is_claimed=True, stage_attempt=job.stage_attempt + 1)), ()


def _stage_released(here: Neighbourhood, event: events.StageReleased, now: datetime) -> Result:
    if not _holds_stage(here.job, event.attempt, JobStatus.PLANNING, JobStatus.RESPONDING):
        return _reject(here, "another attempt holds the stage")
    return replace(here, job=replace(here.job, is_claimed=False)), ()


def _stage_retried(here: Neighbourhood, event: events.StageRetried, now: datetime) -> Result:
    if not _holds_stage(here.job, event.attempt, JobStatus.PLANNING, JobStatus.RESPONDING):
        return _reject(here, "another attempt holds the stage")
    return replace(here, job=replace(here.job, is_claimed=False, run_at=event.retry_at)), ()


def _plan_accepted(here: Neighbourhood, event: events.PlanAccepted, now: datetime) -> Result:
    if not _holds_stage(here.job, event.attempt, JobStatus.PLANNING):
        return _reject(here, "another attempt holds the stage")
    unfinished = sum(step.status not in TERMINAL_STEP for step in event.steps)
    job = replace(
        here.job,
        is_claimed=False,
        open_steps=unfinished,
        failed_steps=0,
        halt_index=None,
        after_steps=event.after_steps,
        on_failure=event.on_failure,
    )
    ready: tuple[Effect, ...] = tuple(
        events.DispatchStep(s.index) for s in event.steps if s.status is StepStatus.READY
    )
    if unfinished == 0:
        job, ready = _close(job, 0)
    else:
        job = replace(job, status=JobStatus.EXECUTING)
    return replace(here, job=job, dependents=event.steps), ready


def _plan_refused(here: Neighbourhood, event: events.PlanRefused, now: datetime) -> Result:
    if not _holds_stage(here.job, event.attempt, JobStatus.PLANNING):
        return _reject(here, "another attempt holds the stage")
    job = replace(here.job, status=JobStatus.RESPONDING, is_claimed=False)
    return replace(here, job=job), (events.DispatchStage(),)


def _answer_given(here: Neighbourhood, event: events.AnswerGiven, now: datetime) -> Result:
    if not _holds_stage(here.job, event.attempt, JobStatus.PLANNING, JobStatus.RESPONDING):
        return _reject(here, "another attempt holds the stage")
    return _end(here, JobStatus.COMPLETED)


def _stage_failed(here: Neighbourhood, event: events.StageFailed, now: datetime) -> Result:
    if not _holds_stage(here.job, event.attempt, JobStatus.PLANNING, JobStatus.RESPONDING):
        return _reject(here, "another attempt holds the stage")
    return _end(here, JobStatus.FAILED)


def _step_claimed(here: Neighbourhood, event: events.StepClaimed, now: datetime) -> Result:
    step = here.step
    if step is None or step.status is not StepStatus.READY or here.job.status is not JobStatus.EXECUTING:
        return _reject(here, "the step is taken, over or not yet free")
    if here.job.is_paused:
        return _reject(here, "the job is paused")
    if step.held:
        return _reject(here, "the step waits for a place")
    if step.suspected and not event.in_quarantine:
        return _reject(here, "a worker in quarantine takes it")
    if step.run_at is not None and step.run_at > now:
        return _reject(here, "the step's time has not come")
    running = replace(step, status=StepStatus.RUNNING, attempt=step.attempt + 1, suspected=False)
    return replace(here, step=running), ()


def _holds_step(here: Neighbourhood, attempt: int, *statuses: StepStatus) -> bool:
    step = here.step
    is_held = step is not None and step.status in statuses and step.attempt == attempt and not step.asks
    return is_held and here.job.status is JobStatus.EXECUTING


def _close(job: JobView, closed: int, *, failed: int = 0) -> tuple[JobView, tuple[Effect, ...]]:
    """Count ended steps; the last one opens the next stage or ends the job. Recorded failures do not fail the job."""
    left = job.open_steps - closed
    counted = 0 if job.on_failure is OnFailure.RECORD else failed
    job = replace(job, open_steps=left, failed_steps=job.failed_steps + counted)
    if left > 0:
        return job, ()
    has_failed = job.on_failure is OnFailure.FAIL and job.failed_steps > 0
    if has_failed or job.after_steps is AfterSteps.COMPLETED:
        status = JobStatus.FAILED if has_failed else JobStatus.COMPLETED
        return replace(job, status=status, open_questions=0, is_paused=False), (events.JobEnded(status),)
    job = replace(job, status=JobStatus(job.after_steps), open_questions=0)
    if job.after_steps is AfterSteps.PLANNING:
        job = replace(job, round=job.round + 1)
    return job, (events.DispatchStage(),)


def _step_succeeded(here: Neighbourhood, event: events.StepSucceeded, now: datetime) -> Result:
    if here.step is None or not _holds_step(here, event.attempt, StepStatus.RUNNING, StepStatus.WAITING):
        return _reject(here, "another attempt holds the step")
    if here.step.status is StepStatus.WAITING and here.step.waits_for is not None and not here.step.joined:
        return _reject(here, "the step waits for its child jobs")
    step = replace(here.step, status=StepStatus.SUCCEEDED)
    dependents = tuple(_unlocked(d) if d.status is StepStatus.PENDING else d for d in here.dependents)
    ready = tuple(
        events.DispatchStep(after.index)
        for before, after in zip(here.dependents, dependents, strict=True)
        if after.status is StepStatus.READY and before.status is StepStatus.PENDING
    )
    job, effects = _close(here.job, 1)
    return Neighbourhood(job, step, dependents), _dropped(step) + ready + effects


def _dropped(step: StepView) -> tuple[Effect, ...]:
    return () if step.waits_for is None else (events.CancelChildren(step.index),)


def _unlocked(step: StepView) -> StepView:
    left = step.pending - 1
    return replace(step, pending=left, status=StepStatus.READY if left == 0 else step.status)


def _step_failed(here: Neighbourhood, event: events.StepFailed, now: datetime) -> Result:
    if here.step is None or not _holds_step(here, event.attempt, StepStatus.RUNNING):
        return _reject(here, "another attempt holds the step")
    index, halt = here.step.index, here.job.halt_index
    if event.retry_at is not None and (halt is None or index < halt):
        step = replace(here.step, status=StepStatus.READY, run_at=event.retry_at)
        if not event.anew:
            return replace(here, step=step), ()
        fresh = replace(step, joined=False, waits_for=None, open_children=0)
        return replace(here, step=fresh), _dropped(step)
    return _failed_for_good(here, here.step)


def _failed_for_good(here: Neighbourhood, step: StepView) -> Result:
    step, index, halt = replace(step, status=StepStatus.FAILED), step.index, here.job.halt_index
    if here.job.on_failure in (OnFailure.CONTINUE, OnFailure.RECORD):
        job, effects = _close(here.job, 1, failed=1)
        return replace(here, job=job, step=step), (*_dropped(step), events.SkipNeeding(index), *effects)
    job = replace(here.job, halt_index=index if halt is None else min(halt, index))
    job, effects = _close(job, 1, failed=1)
    return replace(here, job=job, step=step), (*_dropped(step), events.SkipAfter(index), *effects)


def _tool_missed(here: Neighbourhood, event: events.ToolMissed, now: datetime) -> Result:
    step = here.step
    if step is None or step.status is not StepStatus.READY or here.job.status is not JobStatus.EXECUTING:
        return _reject(here, "the step is taken, over or not yet free")
    if step.held or step.attempt != event.attempt:
        return _reject(here, "the step waits for a place, or was tried since")
    return _failed_for_good(here, step)


def _step_lost(here: Neighbourhood, event: events.StepLost, now: datetime) -> Result:
    here, effects = _step_failed(here, events.StepFailed(event.attempt, event.retry_at), now)
    if here.step is not None and here.step.status is StepStatus.READY and not effects:
        here = replace(here, step=replace(here.step, suspected=event.again))
    return here, effects


def _steps_skipped(here: Neighbourhood, event: events.StepsSkipped, now: datetime) -> Result:
    if event.count == 0 or here.job.status is not JobStatus.EXECUTING:
        return here, ()
    job, effects = _close(here.job, event.count)
    return replace(here, job=job), effects


def _step_suspended(here: Neighbourhood, event: events.StepSuspended, now: datetime) -> Result:
    if here.step is None or not _holds_step(here, event.attempt, StepStatus.RUNNING):
        return _reject(here, "another attempt holds the step")
    return replace(here, step=replace(here.step, status=StepStatus.WAITING)), ()


def _step_delegated(here: Neighbourhood, event: events.StepDelegated, now: datetime) -> Result:
    if here.step is None or here.step.joined or not _holds_step(here, event.attempt, StepStatus.RUNNING):
        return _reject(here, "another attempt holds the step")
    left = event.children - event.failed
    step = replace(here.step, status=StepStatus.WAITING, waits_for=event.until, open_children=left)
    if _is_decided(step, completed=False, failed=event.failed > 0):
        return _gathered(here, step, now)
    return replace(here, step=step), ()


def _child_ended(here: Neighbourhood, event: events.ChildEnded, now: datetime) -> Result:
    step = here.step
    if step is None or step.status is not StepStatus.WAITING or step.waits_for is None or step.joined:
        return _reject(here, "the step waits for no child job")
    if here.job.status is not JobStatus.EXECUTING:
        return _reject(here, "the parent has ended")
    step = replace(step, open_children=step.open_children - 1)
    if _is_decided(step, completed=event.completed, failed=not event.completed):
        return _gathered(here, step, now)
    return replace(here, step=step), (events.BeginChild(step.index),)


def _is_decided(step: StepView, *, completed: bool, failed: bool) -> bool:
    return (
        step.open_children == 0
        or (step.waits_for is JoinPolicy.FIRST_SUCCESS and completed)
        or (step.waits_for is JoinPolicy.FIRST_FAILURE and failed)
    )


def _gathered(here: Neighbourhood, step: StepView, now: datetime) -> Result:
    step = replace(step, status=StepStatus.READY, joined=True, run_at=now)
    return replace(here, step=step), (events.DispatchStep(step.index),)


def _tool_chained(here: Neighbourhood, event: events.ToolChained, now: datetime) -> Result:
    if not _holds_stage(here.job, event.attempt, JobStatus.PLANNING, JobStatus.RESPONDING):
        return _reject(here, "another attempt holds the stage")
    job = replace(
        here.job,
        status=JobStatus.EXECUTING,
        is_claimed=False,
        open_steps=1,
        failed_steps=0,
        halt_index=None,
        round=here.job.round + 1,
        after_steps=AfterSteps.RESPONDING,
        on_failure=OnFailure.ANSWER,
    )
    return Neighbourhood(job, None, (StepView(0, StepStatus.READY),)), (events.DispatchStep(0),)


def _step_released(here: Neighbourhood, event: events.StepReleased, now: datetime) -> Result:
    if here.step is None or not _holds_step(here, event.attempt, StepStatus.RUNNING):
        return _reject(here, "another attempt holds the step")
    return _given_back(here, here.step, now)


def _given_back(here: Neighbourhood, step: StepView, now: datetime) -> Result:
    """Make a step ready again, unless an earlier one has failed for good and this one has not joined."""
    if here.job.halt_index is not None and step.index > here.job.halt_index and not step.joined:
        job, effects = _close(here.job, 1)
        step = replace(step, status=StepStatus.SKIPPED)
        return replace(here, job=job, step=step), (events.SkipAfter(step.index), *effects)
    return replace(here, step=replace(step, status=StepStatus.READY, run_at=now)), (events.DispatchStep(step.index),)


def _step_asked(here: Neighbourhood, event: events.StepAsked, now: datetime) -> Result:
    if here.step is None or not _holds_step(here, event.attempt, StepStatus.RUNNING):
        return _reject(here, "another attempt holds the step")
    job = replace(here.job, open_questions=here.job.open_questions + 1)
    return replace(here, job=job, step=replace(here.step, status=StepStatus.WAITING, asks=True)), ()


def _step_settled(here: Neighbourhood, event: events.StepSettled, now: datetime) -> Result:
    if here.step is None or not here.step.asks or here.job.status is not JobStatus.EXECUTING:
        return _reject(here, "the step asks nothing")
    job = replace(here.job, open_questions=here.job.open_questions - 1)
    # Settled means: it runs no more and waits no more; from here on it goes as for any attempt that ends.
    step = replace(here.step, status=StepStatus.RUNNING, asks=False)
    here = replace(here, job=job, step=step)
    if event.outcome is Settlement.HAPPENED:
        return _step_succeeded(here, events.StepSucceeded(step.attempt), now)
    if event.outcome is Settlement.UNKNOWN:
        return _step_failed(here, events.StepFailed(step.attempt), now)
    return _given_back(here, step, now)


def _plan_expired(here: Neighbourhood, event: events.PlanExpired, now: datetime) -> Result:
    if here.job.status is not JobStatus.EXECUTING:
        return _reject(here, "no plan is being executed")
    if here.job.is_paused:
        return _reject(here, "the job is paused, and so is its time")
    job, effects = _close(here.job, here.job.open_steps, failed=event.failed)
    return replace(here, job=job), (events.ExpireUnfinished(), *effects)


def _cancel_requested(here: Neighbourhood, event: events.CancelRequested, now: datetime) -> Result:
    if here.job.status in TERMINAL_JOB:
        return _reject(here, "the job has ended")
    return _cut_off(here, JobStatus.CANCELLED)


def _job_expired(here: Neighbourhood, event: events.JobExpired, now: datetime) -> Result:
    if here.job.status in TERMINAL_JOB:
        return _reject(here, "the job has ended")
    if here.job.is_paused:
        return _reject(here, "the job is paused, and so is its time")
    return _cut_off(here, JobStatus.FAILED)


def _cut_off(here: Neighbourhood, status: JobStatus) -> Result:
    ended, effects = _end(here, status)
    step = ended.step
    if step is not None and step.status not in TERMINAL_STEP:
        step = replace(step, status=StepStatus.CANCELLED, asks=False)
    job = replace(ended.job, open_steps=0, open_questions=0)
    return replace(ended, job=job, step=step), (events.CancelUnfinished(), *effects)


def _pause_requested(here: Neighbourhood, event: events.PauseRequested, now: datetime) -> Result:
    if here.job.status in TERMINAL_JOB or here.job.is_paused:
        return _reject(here, "the job has ended or is paused")
    return replace(here, job=replace(here.job, is_paused=True)), ()


def _resume_requested(here: Neighbourhood, event: events.ResumeRequested, now: datetime) -> Result:
    job = here.job
    if job.status not in TERMINAL_JOB:
        if not job.is_paused:
            return _reject(here, "the job goes on already")
        is_executing = job.status is JobStatus.EXECUTING
        return replace(here, job=replace(job, is_paused=False)), (
            events.DispatchReady() if is_executing else events.DispatchStage(),
        )
    has_failed = job.failed_steps > 0 and event.unfinished > 0
    if job.status is JobStatus.CANCELLED or (job.status is JobStatus.COMPLETED and not has_failed):
        return _reject(here, "nothing has failed that could be tried again")
    job = replace(job, failed_steps=0, halt_index=None, open_steps=event.unfinished, run_at=now)
    if not event.has_plan and not has_failed:
        return replace(here, job=replace(job, status=JobStatus.QUEUED)), (events.DispatchStage(),)
    if event.unfinished == 0:
        return replace(here, job=replace(job, status=JobStatus.RESPONDING)), (events.DispatchStage(),)
    return replace(here, job=replace(job, status=JobStatus.EXECUTING)), (events.ReopenUnfinished(),)


_HANDLERS: dict[type, Callable[[Neighbourhood, Any, datetime], Result]] = {
    events.StageClaimed: _stage_claimed,
    events.StageReleased: _stage_released,
    events.StageRetried: _stage_retried,
    events.PlanAccepted: _plan_accepted,
    events.PlanRefused: _plan_refused,
    events.AnswerGiven: _answer_given,
    events.StageFailed: _stage_failed,
    events.StepClaimed: _step_claimed,
    events.StepSucceeded: _step_succeeded,
    events.StepFailed: _step_failed,
    events.StepLost: _step_lost,
    events.ToolMissed: _tool_missed,
    events.StepSuspended: _step_suspended,
    events.StepDelegated: _step_delegated,
    events.ChildEnded: _child_ended,
    events.ToolChained: _tool_chained,
    events.StepReleased: _step_released,
    events.StepAsked: _step_asked,
    events.StepSettled: _step_settled,
    events.PlanExpired: _plan_expired,
    events.StepsSkipped: _steps_skipped,
    events.CancelRequested: _cancel_requested,
    events.JobExpired: _job_expired,
    events.PauseRequested: _pause_requested,
    events.ResumeRequested: _resume_requested,
}
