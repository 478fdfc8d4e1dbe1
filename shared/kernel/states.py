"""States of jobs and steps. The SQL functions decide what follows; this is the picture of it.

    job   queued → planning → executing → responding → completed | failed | cancelled
                      ▲            │ ▲          │ (shown as `input_required` while it waits for a person)
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

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    from pydantic_core.core_schema import CoreSchema


class JobStatus(StrEnum):
    """Where a job stands."""

    QUEUED = "queued"
    PLANNING = "planning"
    EXECUTING = "executing"
    INPUT_REQUIRED = "input_required"  # derived: `executing`, and it or a job below it asks a person
    RESPONDING = "responding"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """True when the job has ended; only somebody who resumes it moves it on."""
        return self in TERMINAL_JOB

    @property
    def stored(self) -> JobStatus:
        return JobStatus.EXECUTING if self is JobStatus.INPUT_REQUIRED else self


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


class QuestionKind(StrEnum):
    """What a question to a person is about."""

    FORM = "form"  # data, as its schema says
    APPROVAL = "approval"  # whether a tool may be called
    OUTCOME = "outcome"  # whether a call that was cut off took effect; see `Settlement`
    URL = "url"  # something that the person does elsewhere, under a URL


class AskedOf(StrEnum):
    """Who may answer a question to a person; of two that count for an approval the later one is the stricter."""

    ANYONE = "anyone"
    ASKER = "asker"  # for whom the job is done: who wrote the message that began the turn
    IDS = "ids"  # persons by their ids
    OPERATOR = "operator"  # who holds a key with the scope `approve` or `admin`


class QuestionStatus(StrEnum):
    """What has become of a question to a person."""

    OPEN = "open"
    ACCEPTED = "accepted"
    DECLINED = "declined"
    CANCELLED = "cancelled"  # by a person, or with its step
    EXPIRED = "expired"  # nobody answered in time; a declared default is its content then


class Strategy(StrEnum):
    """Who makes the next plan, and when the job's loop of rounds ends."""

    PLAN = "plan"  # one round: plan, execute, respond
    LOOP = "loop"  # `__planning__` is asked again, with the transcript, until it answers
    REACT = "react"  # each round is one turn of the model's own tool calls
    GUIDED = "guided"  # a planning call writes a guide first, then as `react`

    @property
    def has_rounds(self) -> bool:
        """Whether the planner is asked again after each round, with what has failed in it."""
        return self is not Strategy.PLAN

    @property
    def is_by_turns(self) -> bool:
        """Whether rounds are turns of the model's own tool calls."""
        return self in (Strategy.REACT, Strategy.GUIDED)

    @property
    def begins_with_guide(self) -> bool:
        return self is Strategy.GUIDED

    @property
    def begins_with_plan(self) -> bool:
        """Whether people are shown a plan, or a guide, with which the job begins."""
        return self.begins_with_guide or not self.is_by_turns


StrategyName = Literal["plan", "loop", "react", "guided"]
"""The same for documents that are validated strictly, and for type checkers of clients."""


class StopReason(StrEnum):
    """Why a job's loop of rounds ended with an answer."""

    ANSWERED = "answered"
    NO_STEPS = "no_steps"  # the planner had nothing left to do, and said nothing
    MAX_ROUNDS = "max_rounds"
    MAX_TOOL_STEPS = "max_tool_steps"
    TIMEOUT = "timeout"
    STALLED = "stalled"  # two rounds in a row in which every call was blocked as a duplicate
    BUDGET = "budget"
    UNTIL = "until"  # the caller's own condition


class Outcome(StrEnum):
    """What a job that has ended came to; the database makes it of its status and its error."""

    SUCCEEDED = "succeeded"
    PARTIAL = "partial"  # completed, from what there was: a step failed, or the plan was refused
    INCOMPLETE = "incomplete"  # completed, and the model's answer was cut off
    FAILED = "failed"
    CANCELLED = "cancelled"


class Respond(StrEnum):
    """What a job answers with once its steps have ended."""

    MODEL = "model"  # a model writes the answer from the results
    OUTPUT = "output"  # the output of the last step
    NONE = "none"


class AfterSteps(StrEnum):
    """Where the job stands when a round's last step has ended; it is stored when the round's plan is accepted."""

    RESPONDING = "responding"
    PLANNING = "planning"
    COMPLETED = "completed"  # without a stage: nobody is asked for an answer


class OnFailure(StrEnum):
    """What a failed step does.

    The first three are a plan's own; `continue` and `record` skip only what needs the output of the failed step.
    """

    FAIL = "fail"  # nothing later begins, and the job fails
    ANSWER = "answer"  # nothing later begins, and the job answers from what there is
    CONTINUE = "continue"  # the rest goes on, and the job answers from what there is
    RECORD = "record"  # the rest goes on, and the failure is none of the job's: whoever plans next is told it


class StepKind(StrEnum):
    """What a step is: a call of a tool, or of one that carries out its part in child jobs, one or several at once.

    An `elicitation` puts a question to a person. A `noop` is done when its plan is accepted, without an attempt.
    An `abort` is the last step of its plan: once the others have ended, the job fails with its reason.
    """

    TOOL = "tool"
    AGENT = "agent"
    PARALLEL = "parallel"
    QUESTION = "elicitation"  # MCP's word, which plans and documents have
    NOOP = "noop"
    ABORT = "abort"


DELEGATING = frozenset({StepKind.AGENT, StepKind.PARALLEL})
"""Steps that hand over to child jobs."""


class JoinPolicy(StrEnum):
    """When a step that waits for child jobs need not wait any more; when all have ended, it never need."""

    ALL = "all"  # every one has ended
    FIRST_SUCCESS = "first_success"  # one has completed
    FIRST_FAILURE = "first_failure"  # one has failed, or was cancelled


class Priority(StrEnum):
    """Whether somebody waits for a job; what is `bulk` gives way to what is `interactive`."""

    INTERACTIVE = "interactive"
    BULK = "bulk"


POOL = re.compile(r"[a-z][a-z0-9_-]{0,31}")


class Pool(str):
    """A worker pool: the workers that serve one kind of step. `io` waits, `cpu` computes, and tools may name others.

    Raises `ValueError` for what is no name of a worker pool.
    """

    __slots__ = ()

    IO: ClassVar[Pool]
    CPU: ClassVar[Pool]

    def __new__(cls, name: str) -> Pool:
        if not POOL.fullmatch(name):
            raise ValueError(
                f"expected the name of a worker pool, such as io, cpu or gpu ({POOL.pattern}), found {name[:40]!r}"
            )
        return super().__new__(cls, name)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> CoreSchema:
        from pydantic_core import core_schema  # commands that make no definition pay nothing for it

        schema = core_schema.str_schema(pattern=f"^{POOL.pattern}$")
        return core_schema.no_info_after_validator_function(lru_cache(maxsize=256)(cls), schema)  # each claim has one


Pool.IO, Pool.CPU = Pool("io"), Pool("cpu")

OWN_POOLS = (Pool.IO, Pool.CPU)
"""The worker pools that there always are: `io` also carries out stages."""


def pools_of(workers: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the pools that there always are, and those of these workers, by their `pools`."""
    own = list(map(str, OWN_POOLS))
    return own + sorted({pool for worker in workers for pool in worker["pools"]} - set(own))


class WakeQueue(str):
    """Where wake-ups of a pool and a priority wait at the broker, `io` or `io.bulk`; each is a Celery queue."""

    __slots__ = ()

    @classmethod
    def of(cls, pool: Pool, priority: Priority) -> WakeQueue:
        return cls(pool if priority is Priority.INTERACTIVE else f"{pool}.{priority}")

    @property
    def is_bulk(self) -> bool:
        return self.endswith(f".{Priority.BULK}")


def wake_queues(pool: Pool, only: Priority | None = None) -> list[WakeQueue]:
    """Return the queues of a pool; that of a single priority with `only`."""
    return [WakeQueue.of(pool, priority) for priority in Priority if only in (None, priority)]


OWN_QUEUES = tuple(queue for pool in OWN_POOLS for queue in wake_queues(pool))
"""Those of the pools that there always are."""


class Effect(StrEnum):
    """What a tool does to the world, which decides order, retries and recovery."""

    PURE = "pure"
    READ = "read"
    IDEMPOTENT = "idempotent"
    UNSAFE = "unsafe"

    @property
    def is_write(self) -> bool:
        return self in (Effect.IDEMPOTENT, Effect.UNSAFE)


class Recovery(StrEnum):
    """What happens to an `unsafe` call that was cut off, so that nobody knows whether it took effect."""

    FAIL = "fail"
    ASK = "ask"
    FIND_OUT = "find_out"


STORED_JOB = tuple(dict.fromkeys(status.stored for status in JobStatus))
"""The statuses that rows of jobs have."""

TERMINAL_JOB = frozenset({JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED})
UNSTARTED_STEP = (StepStatus.PENDING, StepStatus.READY)
"""It has not begun, so it can be skipped. `sql/functions/states.sql` beside has these sets for SQL."""
RUNNING_STEP = (StepStatus.RUNNING,)
"""An attempt owns it."""
WAITING_STEP = (StepStatus.WAITING,)
"""It waits for a timer, a person or child jobs, and no attempt owns it."""
IDLE_STEP = (*UNSTARTED_STEP, *WAITING_STEP)
"""It has not ended, and no attempt owns it."""
TERMINAL_STEP = frozenset(StepStatus) - {*IDLE_STEP, *RUNNING_STEP}
STAGES = frozenset({JobStatus.QUEUED, JobStatus.PLANNING, JobStatus.RESPONDING})
"""Where a worker has to carry out a stage before anything else happens."""
