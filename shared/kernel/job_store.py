"""The durable state of jobs, as the engine uses it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol
from uuid import UUID

from planq.shared.kernel.budget import Holder, Reservation, ReservationRequest
from planq.shared.kernel.children import ChildOutcome, Delegated
from planq.shared.kernel.claims import Claim, StageClaim, StepClaim
from planq.shared.kernel.deferral import DeferredCall
from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.questions import StepQuestion
from planq.shared.kernel.retry import StageTries
from planq.shared.kernel.states import (
    AfterSteps,
    AskedOf,
    JobStatus,
    OnFailure,
    Pool,
    Priority,
    StepStatus,
    StopReason,
)
from planq.shared.kernel.steps import PlannedStep
from planq.shared.kernel.usage import ModelCall
from planq.shared.kernel.wakes import Wake
from planq.shared.platform.errors import ErrorRecord
from planq.shared.platform.values.encoding import JsonText


@dataclass(frozen=True, slots=True)
class ReadyStep:
    """A step that became ready by a transition."""

    index: int
    pool: Pool
    tool_name: str


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """What the caller of a transition claims for itself of the work that the transition makes ready.

    It is claimed in the same commit, exactly as `claim` would right after it: at most `steps`
    of the ready steps of `pool`, in plan order, and with `stage` the RESPOND stage. Nothing of a paused job is taken.
    """

    pool: Pool
    steps: int = 1
    stage: bool = True


@dataclass(frozen=True, slots=True)
class ArtifactRecord:
    """What is stored about an artifact beside its body, which is the step's output.

    `metadata` is its `_metadata`; one of bytes has a `media_type`. `beside` are other artifacts of the same step,
    with bodies of their own: `body`, or where that is large, or bytes, the `hash` of its payload. `content` is what
    the tool says to models. Where the output itself is no artifact, `id` is None.
    """

    id: str | None
    skill_id: str | None
    type: str | None
    metadata: Mapping[str, Any] | None = None
    beside: Sequence[ArtifactRecord] = ()
    body: JsonText | None = None
    hash: bytes | None = None
    content: str | None = None
    media_type: str | None = None


@dataclass(frozen=True, slots=True)
class PayloadRecord:
    """What is stored beside a step whose output is a payload.

    `hash` is the SHA-256 of the output's JSON, `size` its length in bytes, `excerpts` what
    `planq.shared.platform.values.excerpts.excerpts_json` returned for it.
    """

    hash: bytes
    size: int
    excerpts: bytes


@dataclass(frozen=True, slots=True)
class UnitStep:
    """A step that has succeeded with a small output in so many seconds; `claim` is the one that it will have had."""

    claim: StepClaim
    output: JsonText | None
    artifact: ArtifactRecord | None
    seconds: float


@dataclass(frozen=True, slots=True)
class TransitionResult:
    """What a transition did. When it did not land, nothing changed: the attempt had expired or the job had ended.

    `status` is the step's status after a step transition; `job_status` the job's; `ready` lists what to dispatch now.
    `stage_attempt` is the newest attempt at a stage of the job, 0 where it does not matter. `taken` are the claims
    that a `ClaimRequest` brought: what they claim is not in `ready`. When RESPOND is among them, nobody need be woken
    for the stage that `job_status` names. `steps` counts those of a unit that succeeded. `children` are the wake-ups
    of child jobs that may begin now. `ran` are the steps that were stored with their plan as ended.
    """

    applied: bool
    ready: tuple[ReadyStep, ...] = ()
    job_status: JobStatus | None = None
    status: StepStatus | None = None
    stage_attempt: int = 0
    taken: tuple[Claim, ...] = ()
    steps: int = 1
    children: tuple[Wake, ...] = ()
    ran: tuple[UnitStep, ...] = ()


@dataclass(frozen=True, slots=True)
class ParentTransition:
    """What the end of a child job did to its parent, a job of this priority and tenant.

    `result` is of the parent, whose step `step` waits for the child.
    """

    step: StepRef
    result: TransitionResult
    priority: Priority
    tenant_id: str


@dataclass(frozen=True, slots=True)
class Consequence:
    """What followed from the end of a job: what it did to the `parent`, and whom to wake beside that.

    Not `applied`: nobody waited, or whoever did was served before.
    """

    applied: bool = False
    parent: ParentTransition | None = None
    wakes: Sequence[Wake] = ()


@dataclass(frozen=True, slots=True)
class Message:
    """A message to keep beside a job: the call of a chained tool, and its response, share a `call_id`.

    The `content` of a response may be a preview of a large output.
    """

    kind: str
    call_id: str
    name: str
    content: Any
    is_preview: bool = False


@dataclass(frozen=True, slots=True)
class JobEnd:
    """What a job comes to: `completed` with an answer, or `failed` with an error.

    `output` is the agent's structured output, `chained` the outcome of the chained tool; None keeps what is stored,
    and so does a `stop_reason` of None. One that has completed has an `error`, too, where its plan was refused; the
    store adds that of the first step that has failed for good.
    """

    status: JobStatus
    answer: str | None
    error: ErrorRecord | None
    output: Any = None
    chained: Any = None
    messages: Sequence[Message] = ()
    stop_reason: StopReason | None = None


@dataclass(frozen=True, slots=True)
class FollowUp:
    """What follows a plan that is accepted.

    After its last step the stage `after_steps` opens: `planning` is that of the next round, `completed` none at all.
    `on_failure` is what a failed step does. `seconds` is the time for the steps, with further rounds for all of them
    together, None for the limit on a plan. `reply` is what the model said, as the next planner is shown it. With
    a `stop_reason` the job is answered with `answer`, and `output`, once these steps have ended; `incomplete` is its
    error then, where that answer was cut off. `errors` say why a
    guide, a plan without steps, could not be written. What stood at `ignored` in the model's plan means nothing: its
    event says so.
    """

    after_steps: AfterSteps = AfterSteps.RESPONDING
    on_failure: OnFailure = OnFailure.ANSWER
    seconds: float | None = None
    reply: Any = None
    stop_reason: StopReason | None = None
    answer: str | None = None
    output: Any = None
    incomplete: ErrorRecord | None = None
    errors: Sequence[Mapping[str, Any]] = ()
    ignored: Sequence[str] = ()


ONE_ROUND = FollowUp()
"""One round, which halts at its first failure, and an answer from what there is then."""


@dataclass(frozen=True, slots=True)
class Approved:
    """Tools approved for the rest of a job, each with whom that was asked of, and what its tree of jobs has used."""

    tools: Collection[tuple[str, AskedOf]]
    tokens: int
    cost_usd: float
    model_calls: int


class JobStore(Protocol):
    """The durable state of jobs, as the engine uses it. Every transition is one commit and guarded by its attempt.

    Transitions that make work ready claim what their `take` asks for, in the same commit. A caller that repeats one
    that did land, because its answer was lost, does not get those claims: they then run out as those of a lost answer
    do.

    All methods raise `DatabaseUnavailable` when the database does not answer; the caller then lets go: the lease and
    the sweeper decide what happens to the work.
    """

    async def claim(self, refs: Sequence[StepRef]) -> Sequence[Claim]:
        """Take what is there at `refs`, in one commit; steps in plan order.

        Left out is what is taken, over, not ready, not due, or does not exist. All `refs` are steps of one round of
        one job, or one is a stage, in which the job stands; raises `ValueError` otherwise.
        """
        ...

    async def accept_plan(
        self,
        claim: StageClaim,
        /,
        source: str,
        body: Any,
        steps: Sequence[PlannedStep],
        calls: Sequence[ModelCall],
        *,
        follow: FollowUp = ONE_ROUND,
        take: ClaimRequest | None = None,
        ran: Sequence[UnitStep] = (),
    ) -> TransitionResult:
        """Store a valid plan with its steps; `ready` holds those that nothing holds up.

        Steps named in `claim.reuse`, and those whose outcome is known, have ended at once; when all have, the stage
        that `follow` names is due, or the job has ended. Raises
        `InternalFault` when an outcome to take over is gone.

        `ran` are `pure` steps of the plan without artifacts that this worker has run already, in the order in which
        they ran; those that the store takes with the plan are in the result's `ran`. It takes none where the job is
        paused: they are stored as steps that have not begun.
        """
        ...

    async def refuse_plan(
        self,
        claim: StageClaim,
        /,
        source: str,
        body: Any,
        errors: Sequence[Mapping[str, Any]],
        calls: Sequence[ModelCall],
        *,
        error: ErrorRecord | None = None,
        take: ClaimRequest | None = None,
    ) -> TransitionResult:
        """Keep a defective plan with its defects and send the job on to RESPOND.

        A job that no model answers fails with `error` instead.
        """
        ...

    async def end_job(
        self,
        claim: StageClaim,
        /,
        status: JobStatus,
        answer: str | None,
        error: ErrorRecord | None,
        calls: Sequence[ModelCall],
        *,
        output: Any = None,
        chained: Any = None,
        messages: Sequence[Message] = (),
        stop_reason: StopReason | None = None,
    ) -> bool:
        """End the job from its stage, as a `JobEnd` of these fields says; True when it applied.

        Those who wait for the job are notified right after the commit. The parent of a child job is notified by
        `serve_end`, in a commit of its own.
        """
        ...

    async def end_kept(self, claim: StageClaim, /) -> bool:
        """End the job as `claim.kept` says; True when it applied."""
        ...

    async def chain_tool(
        self,
        claim: StageClaim,
        /,
        output: Any,
        answer: str | None,
        step: PlannedStep,
        calls: Sequence[ModelCall],
        *,
        stop_reason: StopReason | None = None,
        incomplete: ErrorRecord | None = None,
        take: ClaimRequest | None = None,
    ) -> TransitionResult:
        """Store what the job has come to, and open its next round with one step; from PLAN or RESPOND.

        The plan of that round has the source `chained`; `step` has the claim's `next_index` and waits for nothing.
        When the round ends RESPOND is due, whose claim brings `output` and `answer` back. An answer that was cut off
        is `incomplete`, which then becomes the job's error.
        """
        ...

    async def reserve(self, holder: Holder, wanted: ReservationRequest) -> Reservation:
        """Reserve what a stage or step is about to use of its tree's budget; a job without one is granted it all.

        All reservations of a tree take turns, so that together they pass no limit. What is held (tokens, money,
        calls, steps) counts until the call `wanted.call_id` is recorded, by whichever commit, and no longer than the
        holder's claim; where its job is cut off, a lease longer at most. The reservation replaces an earlier one of
        the same stage or step. Where it comes to the soft limit the root gets an event, once; with `ask` the tree is
        paused then, if `wanted.may_ask`.
        """
        ...

    async def charge_step(self, claim: StepClaim, usd: float, *, is_ahead: bool) -> Reservation:
        """Count what the call of an attempt costs, instead of what was counted for it before; idempotent.

        With `is_ahead` the call is not begun, and is granted only where the money of its tree's budget suffices.
        Otherwise it is counted whatever has become of the attempt.
        """
        ...

    async def note(self, claim: Claim, kind: str, data: Mapping[str, Any]) -> bool:
        """Append an event about the job or, with its `round` and `index`, about the step; at most once of each kind.

        False where it is there, the job has ended, or the stage is no longer ours.
        """
        ...

    async def release(self, claim: Claim) -> TransitionResult:
        """Give back unfinished what was claimed, for another worker to take at once.

        Of a step, `ready` holds it; after an earlier step has failed for good it is skipped instead, as whatever had
        not begun. Of a stage, `job_status` and `stage_attempt` name it.
        """
        ...

    async def retry_stage(
        self,
        claim: StageClaim,
        /,
        error: ErrorRecord,
        delay: timedelta,
        tried: StageTries,
        calls: Sequence[ModelCall],
        *,
        is_sent: bool = True,
        end: JobEnd | None = None,
    ) -> bool:
        """Let the stage be claimed again after `delay`, by anybody; True when it applied.

        With an `end`, which the database refused for `error`, the next claim brings it as `kept`, and no model is
        asked again. Without one the claim's own is kept.

        `error` is why, `tried` what the next claim of this stage shall bring: both are shown with the job until it
        goes on. Those of `calls` that failed are kept, and count as one with the call that ends the stage.
        No event is stored unless the call `is_sent`.
        """
        ...

    async def defer_stage(self, claim: StageClaim, /, call: DeferredCall | None) -> bool:
        """Let the stage wait for a provider's batch, which is sent `call`; True when it applied.

        None where the call is stored already. The stage is claimed again when its result has come.
        """
        ...

    async def wake_awaiting(self, tenant_id: str, models: Sequence[str]) -> int:
        """Make the stages due that wait for their turn at one of these models; return how many.

        At most a thousand at once: each of them that is answered wakes more.
        """
        ...

    async def hand_on(self, refs: Sequence[StepRef]) -> Sequence[StepRef]:
        """Return those of some steps, all of one round of one job, that only workers with other tools can claim.

        Their wake-ups are to be published again. Steps whose tool no live worker has are put aside, until one has it
        or they have waited for too long.
        """
        ...

    async def report_progress(
        self, claim: StepClaim, done: float | None, message: str, seconds: float | None
    ) -> bool:
        """Keep what an attempt says of itself, `done` as a part of 1, and tell of it.

        It may run for `seconds` from now on, as may the plans around it; None gives no time. False where the attempt
        is over.
        """
        ...

    async def claim_suspects(self, pool: Pool) -> Sequence[Claim]:
        """Take what is due of the group of suspects of a pool that has waited for longest.

        For a worker that has nothing else in flight. Returns nothing where there is no such group, or where all of it
        has ended or gone on otherwise.
        """
        ...

    async def succeed_step(
        self,
        claim: StepClaim,
        /,
        output: Any,
        artifact: ArtifactRecord | None,
        payload: PayloadRecord | None = None,
        *,
        unit: Sequence[UnitStep] = (),
        take: ClaimRequest | None = None,
    ) -> TransitionResult:
        """Store the output of the attempt, claim and succeed what is in `unit`, and unlock what waited for the last.

        `output` is a JSON value, or the `JsonText` of one; None beside a `payload`, which `Payloads.put` has just
        stored. Raises `DatabaseUnavailable` also when that payload is gone: put it again.

        Each of `unit` is of the same pool, waits for the one before it alone, and is the only one that does. From the
        first one on that cannot be claimed, as in a paused job, nothing of it is stored.
        """
        ...

    async def fail_step(
        self,
        claim: StepClaim,
        /,
        error: ErrorRecord,
        retry_in: timedelta | None,
        *,
        in_doubt: bool = False,
        anew: bool = False,
        is_wait: bool = False,
        take: ClaimRequest | None = None,
    ) -> TransitionResult:
        """Store the error of the attempt: `status` says whether it will be retried or has failed for good.

        With `in_doubt` the next attempt first finds out whether this one took effect. With `anew` it delegates again:
        what is unfinished of the child jobs ends in the same commit, so that those of two attempts never run at once.
        With `is_wait` the attempt is not one of the `tries`: the other side only asked for a wait.
        """
        ...

    async def ask_step(
        self,
        claim: StepClaim,
        /,
        question: StepQuestion,
        error: ErrorRecord | None = None,
        ahead: Sequence[tuple[int, StepQuestion]] = (),
    ) -> bool:
        """Let the step wait for a person, without a worker, as long as its job allows; True: it applied.

        The wait counts against no time limit of the job, nor of any job above it. `error` is that of a call which was
        cut off. What is asked `ahead`, about steps of the round that have not begun, by their indices, is open at
        once, and the claims of those bring its answers. A step about which that was asked waits for the same
        question, or gets the answer at once. Raises `TooManyQuestions`, and changes nothing, where the tenant would
        have more open ones than it may; whether a call took effect may always be asked.
        """
        ...

    async def steps_to_ask_about(self, claim: StepClaim) -> Sequence[StepClaim]:
        """Return, as if they were claimed, steps of the round that have not begun and whose arguments are known.

        Those of which a person was asked ahead are left out. The first 100 at most.
        """
        ...

    async def approvals(self, claim: StepClaim) -> Approved:
        """Return the tools that people have approved for the rest of the job, and what its tree has cost so far."""
        ...

    async def record_calls(self, job_id: UUID, calls: Sequence[ModelCall]) -> None:
        """Keep model calls that ended with no transition, such as those of a job that was cancelled meanwhile.

        May be repeated: a call whose `id` is recorded already, by this or by a transition, is not counted again. The
        same holds for the calls of a transition that is repeated and does not land.
        """
        ...

    async def suspend_step(self, claim: StepClaim, /, delay: timedelta, output: Any) -> bool:
        """Let the step wait: it succeeds with `output` after `delay`, without a worker; True when it applied."""
        ...

    async def fire_timer(self, claim: StepClaim) -> TransitionResult:
        """End the wait of a step that was suspended by this attempt; not applied where its time has not come."""
        ...

    async def delegate_step(self, claim: StepClaim, /, delegated: Delegated) -> TransitionResult:
        """Store the child jobs and let the step wait for them without a worker, in one commit.

        `children` are those that may be begun; the others follow as these end. `ready` holds the step itself where it
        need not wait, because children ended at once. Not applied: nothing is stored.
        """
        ...

    async def children(self, claim: StepClaim) -> Sequence[ChildOutcome]:
        """Return how the child jobs of a step that has joined stand, in the order in which they were asked for."""
        ...

    async def serve_end(self, job_id: UUID) -> Consequence:
        """Serve whoever waits for a job with its end: the step that made it, or the conversation whose turn it is.

        Once: nothing follows when it was done before, when nobody waits, or when the job has not ended. The worker
        that ended the job calls this after that commit; the sweeper does it where no worker did.
        """
        ...

    async def note_outcome(
        self, claim: StepClaim, output: Any, error: ErrorRecord | None, *, is_preview: bool = False
    ) -> bool:
        """Tell the conversation of a cancelled turn what a call came to that ended only after that; True: it applied.

        The job is not changed; the turns after it are shown the outcome instead of "unknown". `output` is a JSON
        value, or the `JsonText` of one; where it `is_preview`, that of the preview of a payload.
        """
        ...

    async def keep_traceback(self, claim: StepClaim, text: str) -> bool:
        """Keep where the exception of an attempt came from, of each step the last five.

        False where that is kept already, or the attempt owns its step no more.
        """
        ...

    async def holds_step(self, claim: StepClaim) -> bool:
        """True while the attempt is the owner of its step."""
        ...
