"""Which state of a job or a step may follow which, and where the steps of a job are carried out."""

from __future__ import annotations

from collections.abc import Mapping

from planq.shared.domain.jobs.states import JobStatus, StepStatus

EXECUTING_JOB = frozenset({JobStatus.EXECUTING, JobStatus.INPUT_REQUIRED})
"""Where the steps of a job are carried out; in `input_required` at least one of them waits for a person."""

JOB_TRANSITIONS: Mapping[JobStatus, frozenset[JobStatus]] = {
    JobStatus.QUEUED: frozenset({JobStatus.PLANNING, JobStatus.FAILED, JobStatus.CANCELLED}),
    JobStatus.PLANNING: frozenset(
        {
            JobStatus.PLANNING,  # every call of the round was decided at once
            JobStatus.EXECUTING,
            JobStatus.RESPONDING,
            JobStatus.INPUT_REQUIRED,
            JobStatus.COMPLETED,
            JobStatus.FAILED,
            JobStatus.CANCELLED,
        }
    ),
    JobStatus.EXECUTING: frozenset(
        {
            JobStatus.PLANNING,
            JobStatus.RESPONDING,
            JobStatus.INPUT_REQUIRED,
            JobStatus.FAILED,
            JobStatus.CANCELLED,
        }
    ),
    JobStatus.INPUT_REQUIRED: frozenset(
        {
            JobStatus.PLANNING,
            JobStatus.EXECUTING,
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
