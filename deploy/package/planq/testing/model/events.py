"""Events of a job and its steps, the state that a transition reads, and its effects: plain data.

`advance` decides with them; nothing here decides anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from planq.shared.kernel.states import AfterSteps, JobStatus, JoinPolicy, OnFailure, Settlement, StepStatus


@dataclass(frozen=True, slots=True)
class JobView:
    """The part of a job that transitions read.

    `open_steps` counts the steps of the round that are not terminal; `halt_index` is the earliest failed step;
    `open_questions` counts the steps that wait for a person; no stage is claimed before `run_at`. `after_steps` and
    `on_failure` are those of the round's plan. `places` is the maximum of a large job's steps that are out.
    """

    status: JobStatus
    stage_attempt: int = 0
    is_claimed: bool = False
    open_steps: int = 0
    failed_steps: int = 0
    halt_index: int | None = None
    open_questions: int = 0
    is_paused: bool = False
    run_at: datetime | None = None
    round: int = 0
    after_steps: AfterSteps = AfterSteps.RESPONDING
    on_failure: OnFailure = OnFailure.ANSWER
    places: int | None = None


@dataclass(frozen=True, slots=True)
class StepView:
    """The part of a step that transitions read.

    `pending` counts its dependencies that have not succeeded; `asks` says that it waits for a person. One that has
    delegated waits for child jobs as `waits_for` says, until it has `joined`; `open_children` counts those of whose
    end it has not been told. `suspected`: it may have ended its last workers, so it runs again in quarantine.
    One that is `held` is ready and waits for a place among those that are out.
    """

    index: int
    status: StepStatus
    attempt: int = 0
    pending: int = 0
    run_at: datetime | None = None
    asks: bool = False
    waits_for: JoinPolicy | None = None
    open_children: int = 0
    joined: bool = False
    suspected: bool = False
    held: bool = False


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """The state that one event can touch."""

    job: JobView
    step: StepView | None = None
    dependents: tuple[StepView, ...] = ()


# Events -----------------------------------------------------------------------------------------------------------


class Event:
    """An event of a job or a step."""


class Effect:
    """An effect: work that follows from a transition."""


@dataclass(frozen=True, slots=True)
class OfAttempt(Event):
    """An event of one attempt at a stage or a step."""

    attempt: int


@dataclass(frozen=True, slots=True)
class StageClaimed(Event):
    """A worker claims the job's next stage, PLAN or RESPOND."""


class StageReleased(OfAttempt):
    """The worker of a stage was lost or stopped; the stage may be claimed again."""


@dataclass(frozen=True, slots=True)
class StageRetried(Event):
    """The model failed in a way that may pass; the stage may be claimed again from `retry_at` on."""

    attempt: int
    retry_at: datetime


@dataclass(frozen=True, slots=True)
class PlanAccepted(Event):
    """The plan of the round was valid; its steps are ready, waiting, or have a known outcome."""

    attempt: int
    steps: tuple[StepView, ...]
    after_steps: AfterSteps = AfterSteps.RESPONDING
    on_failure: OnFailure = OnFailure.ANSWER


class PlanRefused(OfAttempt):
    """The plan had defects: no step runs, the answer explains them."""


class AnswerGiven(OfAttempt):
    """The planner answered directly, or the responder answered."""


class StageFailed(OfAttempt):
    """The model call of a stage failed for good."""


@dataclass(frozen=True, slots=True)
class StepClaimed(Event):
    """A worker takes a ready step whose time has come, or one `in_quarantine` a suspect."""

    in_quarantine: bool = False


class StepSucceeded(OfAttempt):
    """The attempt, or the timer it set, ended with an output."""


@dataclass(frozen=True, slots=True)
class StepFailed(Event):
    """The attempt failed, for good without `retry_at`; a joined step gathers again unless it delegates `anew`."""

    attempt: int
    retry_at: datetime | None = None
    anew: bool = False


@dataclass(frozen=True, slots=True)
class StepLost(Event):
    """The attempt's worker was lost with others: retried as `StepFailed`, in quarantine if it happened `again`."""

    attempt: int
    retry_at: datetime
    again: bool = False


class ToolMissed(OfAttempt):
    """No live worker has had the tool of a ready step for as long as it may wait: it fails, without an attempt."""


class StepSuspended(OfAttempt):
    """The attempt waits for a timer and gives its worker back."""


@dataclass(frozen=True, slots=True)
class StepDelegated(Event):
    """The attempt lets `children` jobs do its work and gives its worker back; `failed` of them failed at once."""

    attempt: int
    children: int
    until: JoinPolicy
    failed: int = 0


@dataclass(frozen=True, slots=True)
class ChildEnded(Event):
    """The parent is told, once, that a child job of its step has ended."""

    completed: bool


class ToolChained(OfAttempt):
    """The stage has come to a structured output and hands it to a chained tool, in a round of its own."""


class StepReleased(OfAttempt):
    """The worker of the attempt stops and gives the step back; it is ready again at once."""


class StepAsked(OfAttempt):
    """The attempt was cut off and a person has to say whether its effect happened; it gives its worker back."""


@dataclass(frozen=True, slots=True)
class StepSettled(Event):
    """The question of a waiting step is answered, or its time has run out (`unknown`)."""

    outcome: Settlement


@dataclass(frozen=True, slots=True)
class PlanExpired(Event):
    """The plan has used up its time; `failed` is how many steps `ExpireUnfinished` turns into failed ones."""

    failed: int


@dataclass(frozen=True, slots=True)
class StepsSkipped(Event):
    """`SkipAfter` or `SkipNeeding` was carried out on `count` steps."""

    count: int


@dataclass(frozen=True, slots=True)
class CancelRequested(Event):
    """Somebody wants the job to end."""


@dataclass(frozen=True, slots=True)
class JobExpired(Event):
    """The job has used up the time it may take, or may be queued."""


@dataclass(frozen=True, slots=True)
class PauseRequested(Event):
    """Somebody wants nothing of the job to be begun any more; what runs goes on to its end."""


@dataclass(frozen=True, slots=True)
class ResumeRequested(Event):
    """A paused job is continued, or one that `has_plan` or not tries its `unfinished` steps again."""

    has_plan: bool
    unfinished: int


# Effects ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DispatchStep(Effect):
    """Publish a wake-up for this step, or go on with it in the same executor task."""

    index: int


@dataclass(frozen=True, slots=True)
class SkipAfter(Effect):
    """Skip what the sequence would not have reached, then report `StepsSkipped`.

    That is every pending or ready step after `index` in plan order, and every one that waits, however indirectly, for
    a step that will not run. One that has joined has begun, so it goes on, and earlier steps do: the sequence would
    have run them before it came to the failure.
    """

    index: int


@dataclass(frozen=True, slots=True)
class SkipNeeding(Effect):
    """Skip every pending step that needs `index`, directly or not; unlock others, and dispatch those ready."""

    index: int


@dataclass(frozen=True, slots=True)
class ExpireUnfinished(Effect):
    """Fail every ready, running or waiting step with its child jobs, and skip the pending ones."""


@dataclass(frozen=True, slots=True)
class CancelUnfinished(Effect):
    """Turn every step that is not terminal into a cancelled one, interrupt those that run, cancel all child jobs."""


@dataclass(frozen=True, slots=True)
class BeginChild(Effect):
    """Begin the next child job of the step that is held back, if there is one."""

    index: int


@dataclass(frozen=True, slots=True)
class CancelChildren(Effect):
    """Cancel the child jobs of the step that have not ended, with all that is below them."""

    index: int


@dataclass(frozen=True, slots=True)
class DispatchStage(Effect):
    """Publish a wake-up for the job's next stage, or continue with it."""


@dataclass(frozen=True, slots=True)
class DispatchReady(Effect):
    """Publish wake-ups for every ready step."""


@dataclass(frozen=True, slots=True)
class ReopenUnfinished(Effect):
    """Restart every step without success, where failures are recorded only cancelled ones; dispatch the ready."""


@dataclass(frozen=True, slots=True)
class JobEnded(Effect):
    """Tell whoever waits for the job."""

    status: JobStatus


@dataclass(frozen=True, slots=True)
class Rejected(Effect):
    """The event was late, doubled or of another attempt; nothing changed."""

    reason: str
