"""Which stored status of a job or a step may follow which."""

from __future__ import annotations

from collections.abc import Mapping

from planq.shared.kernel.states import JobStatus, StepStatus

JOB_TRANSITIONS: Mapping[JobStatus, frozenset[JobStatus]] = {
    JobStatus.QUEUED: frozenset({JobStatus.PLANNING, JobStatus.FAILED, JobStatus.CANCELLED}),
    JobStatus.PLANNING: frozenset(
        {
            JobStatus.PLANNING,  # every call of the round was decided at once
            JobStatus.EXECUTING,
            JobStatus.RESPONDING,
            JobStatus.COMPLETED,
            JobStatus.FAILED,
            JobStatus.CANCELLED,
        }
    ),
    JobStatus.EXECUTING: frozenset(
        {
            JobStatus.PLANNING,
            JobStatus.RESPONDING,
            JobStatus.FAILED,
            JobStatus.CANCELLED,
        }
    ),
    # To executing: a chained tool runs as a round of its own, which ends in RESPOND again.
    JobStatus.RESPONDING: frozenset(
        {JobStatus.EXECUTING, JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED}
    ),
    JobStatus.COMPLETED: frozenset({JobStatus.EXECUTING}),
    JobStatus.FAILED: frozenset({JobStatus.QUEUED, JobStatus.EXECUTING, JobStatus.RESPONDING}),
    JobStatus.CANCELLED: frozenset(),
}

STEP_TRANSITIONS: Mapping[StepStatus, frozenset[StepStatus]] = {
    StepStatus.PENDING: frozenset({StepStatus.READY, StepStatus.SKIPPED, StepStatus.CANCELLED}),
    StepStatus.READY: frozenset({StepStatus.RUNNING, StepStatus.FAILED, StepStatus.SKIPPED, StepStatus.CANCELLED}),
    StepStatus.RUNNING: frozenset(
        {
            StepStatus.SUCCEEDED,
            StepStatus.FAILED,
            StepStatus.READY,
            StepStatus.WAITING,
            StepStatus.SKIPPED,
            StepStatus.CANCELLED,
        }
    ),
    StepStatus.WAITING: frozenset(
        {StepStatus.READY, StepStatus.SUCCEEDED, StepStatus.FAILED, StepStatus.SKIPPED, StepStatus.CANCELLED}
    ),
    StepStatus.SUCCEEDED: frozenset(),
    StepStatus.FAILED: frozenset({StepStatus.PENDING, StepStatus.READY}),
    StepStatus.SKIPPED: frozenset({StepStatus.PENDING, StepStatus.READY}),
    StepStatus.CANCELLED: frozenset({StepStatus.PENDING, StepStatus.READY}),
}
