"""What a worker holds: the right to carry out a stage of a job, or a step, once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from planq.shared.kernel.deferral import Deferral
from planq.shared.kernel.ids import RESPOND, StepRef
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The right to carry out once what is at `ref`; `attempt` is its fencing token.

    What the engine knows of it. The handler of its kind has more: a `StageClaim` is one that asks a model, a
    `StepClaim` one that calls a tool. A stage has no effect in the world but its calls of a model: it is `pure`.
    `depth` counts the jobs above this one, `root_job_id` is the outermost (None: this one), `agent_name` the agent
    that the job runs. `time_left` is what the plan of a step, or the job of a stage, had left at the claim. A job of
    a conversation has its `conversation_id`.
    """

    ref: StepRef
    tenant_id: str
    attempt: int
    user_id: str = ""
    trace_id: str = ""
    context_id: str = ""
    conversation_id: UUID | None = None
    agent_name: str | None = None
    depth: int = 0
    root_job_id: UUID | None = None
    priority: Priority = Priority.INTERACTIVE
    time_left: timedelta | None = None
    pool: Pool = Pool.IO
    effect: Effect = Effect.PURE
    recovery: Recovery = Recovery.FAIL

    @property
    def job_id(self) -> UUID:
        return self.ref.job_id

    @property
    def round(self) -> int:
        return self.ref.round

    @property
    def name(self) -> str | None:
        """Return what Flower shows: the tool, or the agent of a stage."""
        return self.agent_name

    @property
    def is_awaited(self) -> bool:
        """True where somebody may wait for the job's end: a step above it, or the next turn of a conversation."""
        return self.root_job_id is not None or self.conversation_id is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageClaim(Claim):
    """The right to plan, or to answer.

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
    model's failures have cost this stage before. A job of a conversation is a turn of it unless it has a `parent`.
    One that reads a conversation without being a turn is shown `history` (`ShownHistory`). In a batch with a
    discount, `deferral` is what is known of the job's call that may wait for a provider's batch. `parts` are the
    images, files and audio beside `input`, as the job stores them.
    """

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
    agent_version: int | None = None
    instructions: tuple[str, ...] = ()
    action: str | None = None
    with_: Mapping[str, Any] = field(default_factory=dict)
    parent: StepRef | None = None
    output: Any = None
    answer: str | None = None
    budgeted: bool = False
    next_index: int = 0
    history: Mapping[str, Any] | None = None
    tried: StageTries = field(default_factory=StageTries)
    strategy: Strategy = Strategy.PLAN
    rounds: Sequence[RoundRecord] = ()
    rounds_time_left: timedelta | None = None
    loop: Mapping[str, Any] | None = None
    respond: Respond = Respond.MODEL
    on_incomplete: str | None = None
    model_settings: Mapping[str, Any] | None = None
    kept: str | None = None
    parts: Sequence[Mapping[str, Any]] = ()
    deferral: Deferral | None = None

    @property
    def status(self) -> JobStatus:
        """Return the status of a job that stands in this stage."""
        return JobStatus.RESPONDING if self.ref.index == RESPOND else JobStatus.PLANNING


@dataclass(frozen=True, slots=True, kw_only=True)
class StepClaim(Claim):
    """The right to run a step of a plan.

    `outputs` holds the outputs of exactly the steps that the arguments reference; of a large one its `Excerpts`.
    `wanted` are the paths of its own output that later steps reference; so many steps are its `dependents`, which its
    success may make ready. `tries` counts this attempt and the
    earlier ones that ended by an error: attempts cut off by a lost or stopping worker do not use up retries, and one
    that delegates is one with that which gathers. When it
    is `in_doubt` whether an earlier attempt took effect, the tool has to find that out before it is called again.
    When the step has `joined`, its child jobs have come as far
    as it waited for: `note` is what it delegated with. `skill_id` is the first skill that its agent lists; `limits`
    are there unless `kind` is `tool`.
    Arguments that are `verbatim` are data: nothing in them is a reference.
    `answers` are what people answered to what this step asked; `policies` the tool policies of its job and of those
    above it. The step has `waited` for the other side, which asked for it.
    """

    tool_name: str
    arguments: Mapping[str, Any]
    outputs: Mapping[int, Any]
    tries: int
    retry: RetryTerms
    worker_losses: int
    timeout_seconds: float
    in_doubt: bool = False
    wanted: tuple[Path, ...] = ()
    dependents: int = 0
    kind: StepKind = StepKind.TOOL
    joined: bool = False
    note: Any = None
    verbatim: bool = False
    limits: Limits | None = None
    skill_id: str | None = None
    answers: tuple[QuestionAnswer, ...] = ()
    policies: tuple[Mapping[str, Any], ...] = ()
    waited: timedelta = timedelta(0)

    @property
    def name(self) -> str:
        return self.tool_name


_AS_PLANNED = (PlannedStep.__dataclass_fields__.keys() & StepClaim.__dataclass_fields__.keys()) - {"dependents"}


def as_planned(step: PlannedStep) -> dict[str, Any]:
    """Return the fields that a step's claims have from its plan."""
    return {name: getattr(step, name) for name in _AS_PLANNED}
