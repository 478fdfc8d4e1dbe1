"""What has to be woken after a transition."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from shared.domain.ids import StepRef
from shared.domain.states import JobStatus
from shared.ports import Moved, Place, PlanWake, RespondWake, StageClaim, StepClaim, StepWake, Wake


def after_step(ref: StepRef, moved: Moved) -> list[Wake]:
    """Return the wake-ups that a landed transition of the step `ref` asks for, beside what it took over."""
    wakes: list[Wake] = [StepWake(replace(ref, index=s.index), s.lane, s.tool_name) for s in moved.ready]
    is_taken = any(isinstance(claim, StageClaim) for claim in moved.taken)
    if moved.job_status is JobStatus.RESPONDING and not is_taken:
        wakes.append(RespondWake(ref.job_id, moved.stage_attempt + 1))
    wakes += [PlanWake(child) for child in moved.children]
    return wakes


def after_release(ref: StepRef, attempt: int, moved: Moved) -> list[Wake]:
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
