"""What happens next: the one specification of every transition of a job and its steps.

`advance` looks only at the neighbourhood that an event touches (the job's counters, the step, its dependents), so it
is O(out-degree). The SQL functions of `shared/store/migrations/sql` do the same in one statement each; the property
test `tests/integration/store/test_advance_equals_sql.py` holds the two equal. An event that comes late, twice or for
another attempt changes nothing and yields `Rejected`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from shared.domain.states import TERMINAL_JOB, TERMINAL_STEP, JobStatus, StepStatus


@dataclass(frozen=True, slots=True)
class JobView:
    """The part of a job that transitions read.

    `open_steps` counts the steps of the round that are not terminal; `halt_index` is the earliest failed step.
    """

    status: JobStatus
    stage_attempt: int = 0
    is_claimed: bool = False
    open_steps: int = 0
    failed_steps: int = 0
    halt_index: int | None = None


@dataclass(frozen=True, slots=True)
class StepView:
    """The part of a step that transitions read: `pending` counts its dependencies that have not succeeded."""

    index: int
    status: StepStatus
    attempt: int = 0
    pending: int = 0
    run_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """What one event can touch."""

    job: JobView
    step: StepView | None = None
    dependents: tuple[StepView, ...] = ()


# Events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StageClaimed:
    """A worker takes the PLAN or the RESPOND stage, whichever the job stands before."""


@dataclass(frozen=True, slots=True)
class StageReleased:
    """The worker of a stage was lost or stopped; the stage may be claimed again."""

    attempt: int


@dataclass(frozen=True, slots=True)
class PlanAccepted:
    """The plan of the round was valid; `steps` are new, ready where nothing holds them up."""

    attempt: int
    steps: tuple[StepView, ...]


@dataclass(frozen=True, slots=True)
class PlanRefused:
    """The plan had defects: no step runs, the answer explains them."""

    attempt: int


@dataclass(frozen=True, slots=True)
class AnswerGiven:
    """The planner answered directly, or the responder answered."""

    attempt: int


@dataclass(frozen=True, slots=True)
class StageFailed:
    """The model call of a stage failed for good."""

    attempt: int


@dataclass(frozen=True, slots=True)
class StepClaimed:
    """A worker takes a ready step whose time has come."""


@dataclass(frozen=True, slots=True)
class StepSucceeded:
    """The attempt, or the timer it set, ended with an output."""

    attempt: int


@dataclass(frozen=True, slots=True)
class StepFailed:
    """The attempt failed; with `retry_at` the step is ready again from then on, without it it has failed for good."""

    attempt: int
    retry_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class StepSuspended:
    """The attempt waits for a timer and gives its worker back."""

    attempt: int


@dataclass(frozen=True, slots=True)
class StepReleased:
    """The worker of the attempt stops and gives the step back; it is ready again at once."""

    attempt: int


@dataclass(frozen=True, slots=True)
class PlanExpired:
    """The plan has used up its time; `failed` is how many steps `ExpireUnfinished` turns into failed ones."""

    failed: int


@dataclass(frozen=True, slots=True)
class StepsSkipped:
    """`SkipAfter` was carried out on `count` steps."""

    count: int


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """Somebody wants the job to end."""


Event = (
    StageClaimed
    | StageReleased
    | PlanAccepted
    | PlanRefused
    | AnswerGiven
    | StageFailed
    | StepClaimed
    | StepSucceeded
    | StepFailed
    | StepSuspended
    | StepReleased
    | PlanExpired
    | StepsSkipped
    | CancelRequested
)

# Effects ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DispatchStep:
    """Publish a wake-up for this step, or go on with it in the same executor task."""

    index: int


@dataclass(frozen=True, slots=True)
class DispatchRespond:
    """Publish a wake-up for the RESPOND stage, or go on with it."""


@dataclass(frozen=True, slots=True)
class SkipAfter:
    """Skip what the sequence would not have reached, then report `StepsSkipped`.

    That is every pending or ready step after `index` in plan order, and every one that waits, however indirectly, for
    a step that will not run. Earlier steps go on: the sequence would have run them before it came to the failure.
    """

    index: int


@dataclass(frozen=True, slots=True)
class ExpireUnfinished:
    """Fail every ready, running or waiting step, so that the answer tells of it, and skip the pending ones."""


@dataclass(frozen=True, slots=True)
class CancelUnfinished:
    """Turn every step that is not terminal into a cancelled one and interrupt those that run."""


@dataclass(frozen=True, slots=True)
class JobEnded:
    """Tell whoever waits for the job."""

    status: JobStatus


@dataclass(frozen=True, slots=True)
class Rejected:
    """The event was late, doubled or of another attempt; nothing changed."""

    reason: str


Effect = DispatchStep | DispatchRespond | SkipAfter | ExpireUnfinished | CancelUnfinished | JobEnded | Rejected
Result = tuple[Neighbourhood, tuple[Effect, ...]]


def advance(here: Neighbourhood, event: Event, now: datetime) -> Result:
    """Return the neighbourhood after `event`, and what has to be done about it; a late event raises nothing."""
    handler: Callable[[Neighbourhood, Any, datetime], Result] = _HANDLERS[type(event)]
    return handler(here, event, now)


def _reject(here: Neighbourhood, reason: str) -> Result:
    return here, (Rejected(reason),)


def _end(here: Neighbourhood, status: JobStatus) -> Result:
    job = replace(here.job, status=status, is_claimed=False)
    return replace(here, job=job), (JobEnded(status),)


def _holds_stage(job: JobView, attempt: int, *stages: JobStatus) -> bool:
    return job.is_claimed and job.stage_attempt == attempt and job.status in stages


def _stage_claimed(here: Neighbourhood, event: StageClaimed, now: datetime) -> Result:
    job = here.job
    if job.is_claimed or job.status not in (JobStatus.QUEUED, JobStatus.PLANNING, JobStatus.RESPONDING):
        return _reject(here, "the stage is taken or over")
    status = JobStatus.PLANNING if job.status is JobStatus.QUEUED else job.status
    return replace(here, job=replace(job, status=status, is_claimed=True, stage_attempt=job.stage_attempt + 1)), ()


def _stage_released(here: Neighbourhood, event: StageReleased, now: datetime) -> Result:
    if not _holds_stage(here.job, event.attempt, JobStatus.PLANNING, JobStatus.RESPONDING):
        return _reject(here, "another attempt holds the stage")
    return replace(here, job=replace(here.job, is_claimed=False)), ()


def _plan_accepted(here: Neighbourhood, event: PlanAccepted, now: datetime) -> Result:
    if not _holds_stage(here.job, event.attempt, JobStatus.PLANNING):
        return _reject(here, "another attempt holds the stage")
    job = replace(
        here.job,
        status=JobStatus.EXECUTING,
        is_claimed=False,
        open_steps=len(event.steps),
        failed_steps=0,
        halt_index=None,
    )
    ready = tuple(DispatchStep(s.index) for s in event.steps if s.status is StepStatus.READY)
    return replace(here, job=job, dependents=event.steps), ready


def _plan_refused(here: Neighbourhood, event: PlanRefused, now: datetime) -> Result:
    if not _holds_stage(here.job, event.attempt, JobStatus.PLANNING):
        return _reject(here, "another attempt holds the stage")
    job = replace(here.job, status=JobStatus.RESPONDING, is_claimed=False)
    return replace(here, job=job), (DispatchRespond(),)


def _answer_given(here: Neighbourhood, event: AnswerGiven, now: datetime) -> Result:
    if not _holds_stage(here.job, event.attempt, JobStatus.PLANNING, JobStatus.RESPONDING):
        return _reject(here, "another attempt holds the stage")
    return _end(here, JobStatus.COMPLETED)


def _stage_failed(here: Neighbourhood, event: StageFailed, now: datetime) -> Result:
    if not _holds_stage(here.job, event.attempt, JobStatus.PLANNING, JobStatus.RESPONDING):
        return _reject(here, "another attempt holds the stage")
    return _end(here, JobStatus.FAILED)


def _step_claimed(here: Neighbourhood, event: StepClaimed, now: datetime) -> Result:
    step = here.step
    if step is None or step.status is not StepStatus.READY or here.job.status is not JobStatus.EXECUTING:
        return _reject(here, "the step is taken, over or not yet free")
    if step.run_at is not None and step.run_at > now:
        return _reject(here, "the step's time has not come")
    return replace(here, step=replace(step, status=StepStatus.RUNNING, attempt=step.attempt + 1)), ()


def _holds_step(here: Neighbourhood, attempt: int, *statuses: StepStatus) -> bool:
    step = here.step
    is_held = step is not None and step.status in statuses and step.attempt == attempt
    return is_held and here.job.status is JobStatus.EXECUTING


def _close(job: JobView, closed: int, *, failed: int = 0) -> tuple[JobView, tuple[Effect, ...]]:
    """Count steps off; the last one opens the RESPOND stage."""
    left = job.open_steps - closed
    job = replace(job, open_steps=left, failed_steps=job.failed_steps + failed)
    if left == 0:
        return replace(job, status=JobStatus.RESPONDING), (DispatchRespond(),)
    return job, ()


def _step_succeeded(here: Neighbourhood, event: StepSucceeded, now: datetime) -> Result:
    if here.step is None or not _holds_step(here, event.attempt, StepStatus.RUNNING, StepStatus.WAITING):
        return _reject(here, "another attempt holds the step")
    step = replace(here.step, status=StepStatus.SUCCEEDED)
    dependents = tuple(_unlocked(d) if d.status is StepStatus.PENDING else d for d in here.dependents)
    ready = tuple(
        DispatchStep(after.index)
        for before, after in zip(here.dependents, dependents, strict=True)
        if after.status is StepStatus.READY and before.status is StepStatus.PENDING
    )
    job, effects = _close(here.job, 1)
    return Neighbourhood(job, step, dependents), ready + effects


def _unlocked(step: StepView) -> StepView:
    left = step.pending - 1
    return replace(step, pending=left, status=StepStatus.READY if left == 0 else step.status)


def _step_failed(here: Neighbourhood, event: StepFailed, now: datetime) -> Result:
    if here.step is None or not _holds_step(here, event.attempt, StepStatus.RUNNING):
        return _reject(here, "another attempt holds the step")
    index, halt = here.step.index, here.job.halt_index
    if event.retry_at is not None and (halt is None or index < halt):
        step = replace(here.step, status=StepStatus.READY, run_at=event.retry_at)
        return replace(here, step=step), ()
    step = replace(here.step, status=StepStatus.FAILED)
    job = replace(here.job, halt_index=index if halt is None else min(halt, index))
    job, effects = _close(job, 1, failed=1)
    return replace(here, job=job, step=step), (SkipAfter(index), *effects)


def _steps_skipped(here: Neighbourhood, event: StepsSkipped, now: datetime) -> Result:
    if event.count == 0 or here.job.status is not JobStatus.EXECUTING:
        return here, ()
    job, effects = _close(here.job, event.count)
    return replace(here, job=job), effects


def _step_suspended(here: Neighbourhood, event: StepSuspended, now: datetime) -> Result:
    if here.step is None or not _holds_step(here, event.attempt, StepStatus.RUNNING):
        return _reject(here, "another attempt holds the step")
    return replace(here, step=replace(here.step, status=StepStatus.WAITING)), ()


def _step_released(here: Neighbourhood, event: StepReleased, now: datetime) -> Result:
    if here.step is None or not _holds_step(here, event.attempt, StepStatus.RUNNING):
        return _reject(here, "another attempt holds the step")
    return replace(here, step=replace(here.step, status=StepStatus.READY, run_at=now)), ()


def _plan_expired(here: Neighbourhood, event: PlanExpired, now: datetime) -> Result:
    if here.job.status is not JobStatus.EXECUTING:
        return _reject(here, "no plan is being executed")
    job, effects = _close(here.job, here.job.open_steps, failed=event.failed)
    return replace(here, job=job), (ExpireUnfinished(), *effects)


def _cancel_requested(here: Neighbourhood, event: CancelRequested, now: datetime) -> Result:
    if here.job.status in TERMINAL_JOB:
        return _reject(here, "the job has ended")
    ended, effects = _end(here, JobStatus.CANCELLED)
    step = ended.step
    if step is not None and step.status not in TERMINAL_STEP:
        step = replace(step, status=StepStatus.CANCELLED)
    return replace(ended, job=replace(ended.job, open_steps=0), step=step), (CancelUnfinished(), *effects)


_HANDLERS: dict[type, Callable[[Neighbourhood, Any, datetime], Result]] = {
    StageClaimed: _stage_claimed,
    StageReleased: _stage_released,
    PlanAccepted: _plan_accepted,
    PlanRefused: _plan_refused,
    AnswerGiven: _answer_given,
    StageFailed: _stage_failed,
    StepClaimed: _step_claimed,
    StepSucceeded: _step_succeeded,
    StepFailed: _step_failed,
    StepSuspended: _step_suspended,
    StepReleased: _step_released,
    PlanExpired: _plan_expired,
    StepsSkipped: _steps_skipped,
    CancelRequested: _cancel_requested,
}
