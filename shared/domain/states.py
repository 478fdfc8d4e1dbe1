"""States of jobs and steps. The SQL functions decide what follows; this is the picture of it.

    job   queued → planning → executing → responding → completed | failed | cancelled
                      ▲            │ ▲          │ (`input_required` whenever it waits for a person)
                      └────────────┘ └──────────┘
                      a further round: planned, or that of a chained tool
          failed, completed → queued | executing | responding when a job with failures is resumed
    step  pending → ready → running → succeeded | failed
                      ▲        │  ▲
                      └────────┤  └── waiting (a person, a timer, a child job; holds no worker)
                       (retry) └──────▶
          pending, ready → skipped;  everything unfinished → cancelled;  ready → failed when the plan's time is over
          failed, skipped, cancelled → pending | ready when the job is resumed

The database carries the same names as check constraints, generated from these enums; a test compares them.
`tests/model/states.py` lists every pair.
"""

from __future__ import annotations

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
        """True when the job has ended; only somebody who resumes it moves it on."""
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
        """True when the step has ended; only somebody who resumes its job moves it on."""
        return self in TERMINAL_STEP


class Settlement(StrEnum):
    """What a person, or a tool that can look it up, says about a call that was cut off."""

    HAPPENED = "happened"
    DID_NOT_HAPPEN = "did_not_happen"
    UNKNOWN = "unknown"


class Strategy(StrEnum):
    """Who makes the next plan, and when the job's loop of rounds ends."""

    PLAN = "plan"


class StepKind(StrEnum):
    """What a step is: a call of a tool, or of one that carries out its part in child jobs, one or several at once."""

    TOOL = "tool"
    AGENT = "agent"
    PARALLEL = "parallel"


class JoinPolicy(StrEnum):
    """When a step that waits for child jobs need not wait any more; when all have ended, it never need."""

    ALL = "all"  # every one has ended
    FIRST_SUCCESS = "first_success"  # one has completed
    FIRST_FAILURE = "first_failure"  # one has failed, or was cancelled


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


class Recovery(StrEnum):
    """What happens to an `unsafe` call that was cut off, so that nobody knows whether it took effect."""

    FAIL = "fail"
    ASK = "ask"
    FIND_OUT = "find_out"


TERMINAL_JOB = frozenset({JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED})
TERMINAL_STEP = frozenset({StepStatus.SUCCEEDED, StepStatus.FAILED, StepStatus.SKIPPED, StepStatus.CANCELLED})
