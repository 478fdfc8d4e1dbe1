"""What one wake-up led to, and what has to be woken after a transition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from shared.domain.errors import ErrorRecord
from shared.domain.ids import StepRef
from shared.domain.states import JobStatus
from shared.ports import (
    Place,
    PlanWake,
    RespondWake,
    StageClaim,
    StepClaim,
    StepWake,
    TransitionResult,
    UnitStep,
    Wake,
)


@dataclass(frozen=True, slots=True)
class Carried:
    """The outcome of carrying out one wake-up.

    `attempt` is None when there was nothing to do: the claim found the work taken, over or not yet due. `error` is
    what the stage or step failed with. `taken` and `wakes` are what it led to: what this process has claimed already,
    and what anybody may carry out. `poisoned` says that a thread which cannot be stopped still runs a tool here, so
    that a `cpu` process should be replaced. `is_late` says that the outcome was rejected, because the attempt had
    ended otherwise (taken back, cancelled, expired). `steps` counts the attempts of a wake-up for several steps.
    `unit` are the further steps of its unit.
    """

    attempt: int | None = None
    wakes: Sequence[Wake] = ()
    taken: Sequence[StageClaim | StepClaim] = ()
    error: ErrorRecord | None = None
    poisoned: bool = False
    is_late: bool = False
    steps: int | None = None
    unit: Sequence[UnitStep] = ()

    @property
    def text(self) -> str:
        """Return the outcome in a word or two, as Flower shows it."""
        if self.steps:
            return f"{self.steps} steps"
        if self.attempt is None:
            return "nothing to do"
        if self.is_late:
            return "rejected: too late"
        return "succeeded" if self.error is None else f"failed: {self.error.code}"

    @classmethod
    def by(
        cls,
        claim: StageClaim | StepClaim,
        moved: TransitionResult,
        *,
        error: ErrorRecord | None = None,
        poisoned: bool = False,
    ) -> Carried:
        """Return the outcome of an attempt from its last transition; one that did not land led to nothing."""
        wakes: Sequence[Wake] = ()
        if moved.applied:
            ref = claim.ref if isinstance(claim, StepClaim) else StepRef(claim.job_id, claim.round, 0)
            wakes = after_step(ref, moved)
        return cls(claim.attempt, wakes, moved.taken, error, poisoned, is_late=not moved.applied)


def after_step(ref: StepRef, moved: TransitionResult) -> list[Wake]:
    """Return the wake-ups that an applied transition of the step `ref` asks for, beside what it took over."""
    wakes: list[Wake] = [StepWake(replace(ref, index=s.index), s.lane, s.tool_name) for s in moved.ready]
    is_taken = any(isinstance(claim, StageClaim) for claim in moved.taken)
    if moved.job_status is JobStatus.RESPONDING and not is_taken:
        wakes.append(RespondWake(ref.job_id, moved.stage_attempt + 1))
    wakes += [PlanWake(child) for child in moved.children]
    return wakes


def after_release(ref: StepRef, attempt: int, moved: TransitionResult) -> list[Wake]:
    """Return the wake-ups after `attempt` at the step `ref` was given back: its next one, or what a skip leads to."""
    return [
        replace(wake, attempt=attempt + 1) if isinstance(wake, StepWake) and wake.ref == ref else wake
        for wake in after_step(ref, moved)
    ]


def stage_again(job_id: UUID, status: JobStatus, attempt: int) -> Wake:
    """Return the wake-up for another try at the stage in which a job stands, after `attempt`."""
    if status is JobStatus.RESPONDING:
        return RespondWake(job_id, attempt + 1)
    return PlanWake(job_id, attempt + 1)


def wake_of(claim: StageClaim | StepClaim) -> Wake:
    """Return the wake-up that would have led to a claim."""
    if isinstance(claim, StepClaim):
        return StepWake(claim.ref, claim.lane, claim.tool_name, claim.attempt)
    return stage_again(claim.job_id, claim.status, claim.attempt - 1)


def place_of(wake: Wake) -> Place:
    """Return what a wake-up asks to claim."""
    return wake.ref if isinstance(wake, StepWake) else wake.job_id
