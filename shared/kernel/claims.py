"""What a worker holds: the right to carry out a stage of a job, or a step, once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from planq.shared.kernel.deferral import Deferral
from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.limits import Limits
from planq.shared.kernel.questions import QuestionAnswer
from planq.shared.kernel.retry import RetryTerms, StageTries
from planq.shared.kernel.states import Effect, JobStatus, Pool, Priority, Recovery, Respond, StepKind, Strategy
from planq.shared.kernel.steps import PlannedStep, RoundRecord, StepResult
from planq.shared.platform.values.pointers import Path


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool that a worker can run: the `digest` of its schemas, and the `version` that its author gave it."""

    name: str
    digest: str
    version: str = ""


@dataclass(frozen=True, slots=True)
class ReusedStep:
    """A succeeded step of another job whose outcome a step of a fork takes over."""

    job_id: UUID
    index: int


@dataclass(frozen=True, slots=True)
class StageClaim:
    """The right to carry out the PLAN or RESPOND stage of a job once; `attempt` is its fencing token.

    In a fork, `reuse` names whose outcomes the steps of its plan take over, by index. RESPOND answers
    from `results`, the outcomes of the round's steps that were begun, in plan order, arguments resolved; None in PLAN
    and where the plan was refused. `plan_body` is there in PLAN, and in RESPOND of plans that neither the caller nor
    the model made.

    The job of an agent brings the document that it pinned as `agent`, and as `instructions` the texts of the skills
    that the document lists, in its order; `with_` and `action` are what the caller sent; without
    an agent, `with_` may hold a `CONTEXT`. `parent` is the step that a
    child job works for. After a chained tool, `output` and `answer` are what the job had come to before it.
    `loop` is the job's loop block as it was stored, None for none. `respond` is what it answers with. What the
    stage had come to is `kept` where the database refused the job's end: it is for the store alone.
    A job that plans by rounds brings in PLAN all `rounds` that are over, and the time that is left for all of them,
    from the first plan on.
    `budgeted` says that the tree of jobs of `root_job_id` shares a budget. `next_index` is that of the next step
    that this job gets, for indices count on over its rounds; 0 for jobs that have one round only. `tried` is what its
    model's failures have cost this stage before, `time_left` what the job had left at the claim. A job of a
    conversation has its `conversation_id`; it is a turn of it unless it has a `parent`. One that reads a conversation
    without being a turn is shown `history` (`ShownHistory`). In a batch with a discount, `deferral` is what is known
    of the job's call that may wait for a provider's batch. `parts` are the images, files and audio beside `input`, as
    the job stores them.
    """

    job_id: UUID
    tenant_id: str
    status: JobStatus
    round: int
    attempt: int
    model: str
    input: str
    tools: Sequence[str] | None
    limits: Limits
    plan_source: str | None
    plan_body: Any
    plan_errors: Sequence[Mapping[str, Any]] | None
    reuse: Mapping[int, ReusedStep] = field(default_factory=dict)
    results: Sequence[StepResult] | None = None
    agent: Mapping[str, Any] | None = None
    agent_name: str | None = None
    agent_version: int | None = None
    instructions: tuple[str, ...] = ()
    action: str | None = None
    with_: Mapping[str, Any] = field(default_factory=dict)
    depth: int = 0
    root_job_id: UUID | None = None
    parent: StepRef | None = None
    output: Any = None
    answer: str | None = None
    budgeted: bool = False
    next_index: int = 0
    user_id: str = ""
    trace_id: str = ""
    context_id: str = ""
    conversation_id: UUID | None = None
    history: Mapping[str, Any] | None = None
    tried: StageTries = field(default_factory=StageTries)
    time_left: timedelta | None = None
    strategy: Strategy = Strategy.PLAN
    rounds: Sequence[RoundRecord] = ()
    rounds_time_left: timedelta | None = None
    loop: Mapping[str, Any] | None = None
    priority: Priority = Priority.INTERACTIVE
    respond: Respond = Respond.MODEL
    on_incomplete: str | None = None
    model_settings: Mapping[str, Any] | None = None
    kept: str | None = None
    parts: Sequence[Mapping[str, Any]] = ()
    deferral: Deferral | None = None


@dataclass(frozen=True, slots=True)
class StepClaim:
    """The right to run a step once; `attempt` is its fencing token.

    `outputs` holds the outputs of exactly the steps that the arguments reference; of a large one its `Excerpts`.
    `wanted` are the paths of its own output that later steps reference; so many steps are its `dependents`, which its
    success may make ready. `tries` counts this attempt and the
    earlier ones that ended by an error: attempts cut off by a lost or stopping worker do not use up retries, and one
    that delegates is one with that which gathers. When it
    is `in_doubt` whether an earlier attempt took effect, the tool has to find that out before it is called again.
    `time_left` is what the plan had left at the claim. When the step has `joined`, its child jobs have come as far
    as it waited for: `note` is what it delegated with. `depth` counts the jobs above this one, `root_job_id` is the
    outermost (None: this one), `agent` the one that the job runs, `skill_id` the first skill that it lists; `limits`
    are there unless `kind` is `tool`.
    Arguments that are `verbatim` are data: nothing in them is a reference.
    `answers` are what people answered to what this step asked; `policies` the tool policies of its job and of those
    above it. `conversation_id` and `priority` are those of its job. The step has `waited` for the other side, which
    asked for it.
    """

    ref: StepRef
    tenant_id: str
    tool_name: str
    effect: Effect
    pool: Pool
    arguments: Mapping[str, Any]
    outputs: Mapping[int, Any]
    attempt: int
    tries: int
    retry: RetryTerms
    worker_losses: int
    timeout_seconds: float
    user_id: str
    trace_id: str
    context_id: str
    recovery: Recovery = Recovery.FAIL
    in_doubt: bool = False
    wanted: tuple[Path, ...] = ()
    dependents: int = 0
    time_left: timedelta | None = None
    kind: StepKind = StepKind.TOOL
    joined: bool = False
    note: Any = None
    verbatim: bool = False
    depth: int = 0
    root_job_id: UUID | None = None
    agent: str | None = None
    limits: Limits | None = None
    skill_id: str | None = None
    answers: tuple[QuestionAnswer, ...] = ()
    conversation_id: UUID | None = None
    policies: tuple[Mapping[str, Any], ...] = ()
    priority: Priority = Priority.INTERACTIVE
    waited: timedelta = timedelta(0)


_AS_PLANNED = (PlannedStep.__dataclass_fields__.keys() & StepClaim.__dataclass_fields__.keys()) - {"dependents"}


def as_planned(step: PlannedStep) -> dict[str, Any]:
    """Return the fields that a step's claims have from its plan."""
    return {name: getattr(step, name) for name in _AS_PLANNED}
