"""States of jobs and steps, and the only tables of what may follow what.

    job   queued → planning → executing → responding → completed | failed | cancelled
                      ▲            │ (a further round; `input_required` whenever it waits for a person)
                      └────────────┘
    step  pending → ready → running → succeeded | failed
                      ▲        │  ▲
                      └────────┤  └── waiting (a person, a timer, a child job; holds no worker)
                       (retry) └──────▶
          pending, ready → skipped;  everything unfinished → cancelled;  ready → failed when the plan's time is over

The database carries the same names as check constraints, generated from these enums; a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class JobStatus(StrEnum):
    """Where a job stands."""

    QUEUED = "queued"
    PLANNING = "planning"
    EXECUTING = "executing"
    INPUT_REQUIRED = "input_required"
    RESPONDING = "responding"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """True when nothing about the job's outcome can change any more."""
        return self in TERMINAL_JOB


class StepStatus(StrEnum):
    """Where a step stands."""

    PENDING = "pending"
    READY = "ready"
    RUNNING = "running"
    WAITING = "waiting"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """True when the step's outcome is final."""
        return self in TERMINAL_STEP


class Strategy(StrEnum):
    """Who makes the next plan, and when the job's loop of rounds ends."""

    PLAN = "plan"


class StepKind(StrEnum):
    """What a step is; this release runs tools."""

    TOOL = "tool"


class Lane(StrEnum):
    """The kind of worker that a step needs; each lane is a Celery queue."""

    IO = "io"
    CPU = "cpu"


class Effect(StrEnum):
    """What a tool does to the world, which decides order, retries and recovery."""

    PURE = "pure"
    READ = "read"
    IDEMPOTENT = "idempotent"
    UNSAFE = "unsafe"

    @property
    def is_write(self) -> bool:
        """True when the tool changes the world."""
        return self in (Effect.IDEMPOTENT, Effect.UNSAFE)


TERMINAL_JOB = frozenset({JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED})
TERMINAL_STEP = frozenset({StepStatus.SUCCEEDED, StepStatus.FAILED, StepStatus.SKIPPED, StepStatus.CANCELLED})

JOB_TRANSITIONS: Mapping[JobStatus, frozenset[JobStatus]] = {
    JobStatus.QUEUED: frozenset({JobStatus.PLANNING, JobStatus.FAILED, JobStatus.CANCELLED}),
    JobStatus.PLANNING: frozenset(
        {
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
    JobStatus.RESPONDING: frozenset({JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED}),
    JobStatus.COMPLETED: frozenset(),
    JobStatus.FAILED: frozenset(),
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
        {StepStatus.RUNNING, StepStatus.SUCCEEDED, StepStatus.FAILED, StepStatus.CANCELLED}
    ),
    StepStatus.SUCCEEDED: frozenset(),
    StepStatus.FAILED: frozenset(),
    StepStatus.SKIPPED: frozenset(),
    StepStatus.CANCELLED: frozenset(),
}
