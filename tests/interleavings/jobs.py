"""Operations on jobs: a parent with steps in every state, its children in theirs, and whatever may happen to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from planq.shared.agentic.plan.document import Plan
from planq.shared.kernel.budget import Holder, ReservationRequest
from planq.shared.kernel.children import ChildRequest, Delegated
from planq.shared.kernel.claims import StageClaim, StepClaim
from planq.shared.kernel.ids import Attempt, StepRef
from planq.shared.kernel.job_store import ClaimRequest, UnitStep
from planq.shared.kernel.questions import FailStep
from planq.shared.kernel.retry import RetryTerms, StageTries
from planq.shared.kernel.states import Effect, JobStatus, Pool, QuestionKind, Settlement, StepKind
from planq.shared.kernel.sweep import DueTimer, ExpiredJob, ExpiredPlan, LostStage, LostStep
from planq.shared.kernel.usage import ModelCall, Purpose
from planq.shared.platform.values.encoding import JsonText
from planq.shared.subjects.jobs.store import Verdict
from planq.shared.subjects.questions.store import ExpiredQuestion, QuestionSweep
from planq.shared.subjects.webhooks.endpoints import WebhookStore
from planq.worker.handlers.unit import claim_ahead
from tests.interleavings.arena import Operation, Session
from tests.support.claiming import claim_stage, claim_step, claim_steps
from tests.support.plans import compiled
from tests.support.stored import BOOM, DID_IT

HOUR = timedelta(hours=1)
OUTPUT = {"value": "v"}

READ: dict[str, Any] = {"tool_name": "sim_read", "arguments": {}, "depends_on": []}
PLAN = Plan.model_validate(
    {
        "calls": [
            READ,  # runs
            READ,  # runs
            READ,  # is ready
            READ,  # waits for a timer that is due
            {**READ, "tool_name": "sim_unsafe"},  # waits for a person
            READ,  # waits for its child jobs
            {**READ, "depends_on": [0, 1]},
            {**READ, "depends_on": [0, 2]},
        ]
    }
)
PURE = compiled(Plan.model_validate({"calls": [{"tool_name": "sim_pure", "arguments": {}}, READ]}))
RUNS, RUNS_TOO, READY, TIMED, ASKS, DELEGATES = range(6)


@dataclass(frozen=True, slots=True)
class Jobs:
    """A job that executes `PLAN`; of its children one is being planned, one is queued, and one has just ended."""

    tenant: str
    parent: UUID
    steps: Mapping[int, StepClaim]
    planned: StageClaim
    queued: UUID
    ended: UUID
    question: UUID

    @property
    def names(self) -> Mapping[UUID, str]:
        """See `Scene`."""
        children = {self.planned.job_id: "planned", self.queued: "queued", self.ended: "ended"}
        return {self.parent: "parent", self.question: "question", **children}

    def ref(self, index: int) -> StepRef:
        """Return a step of the parent."""
        return StepRef(self.parent, 0, index)


async def build(session: Session) -> Jobs:
    """Build the scene, in a tenant with an endpoint that is told of everything."""
    tenant = await session.tenant()
    await WebhookStore(session.database).create(tenant, "https://example.com/hook", ["job.*"], "", 10)
    parent = await session.submit(tenant, budget={"max_model_calls": 5})
    stage = await claimed(session, parent)
    assert (await session.store.accept_plan(stage, "model", {}, compiled(PLAN), [])).applied
    begun = [StepRef(parent, 0, index) for index in (RUNS, RUNS_TOO, TIMED, ASKS, DELEGATES)]
    steps = {claim.ref.index: claim for claim in await claim_steps(session.store, begun)}
    assert await session.store.suspend_step(steps[TIMED], timedelta(0), OUTPUT)
    assert await session.store.ask_step(steps[ASKS], DID_IT, BOOM)
    question = await session.one("SELECT id FROM questions WHERE job_id = %s", parent)
    requests = [ChildRequest(None, text, 3600.0) for text in "abc"]
    assert (await session.store.delegate_step(steps[DELEGATES], Delegated(requests))).applied
    children = "SELECT id FROM jobs WHERE parent_job_id = %s ORDER BY child_position"
    planned, queued, ended = (row["id"] for row in await session.run(children, parent))
    claim = await claimed(session, planned)
    assert await session.store.end_job(await claimed(session, ended), JobStatus.COMPLETED, "done", None, [])
    return Jobs(tenant, parent, steps, claim, queued, ended, question)


async def claimed(session: Session, job_id: UUID) -> StageClaim:
    """Claim a job's PLAN stage."""
    claim = await claim_stage(session.store, job_id, [JobStatus.QUEUED])
    assert claim is not None
    return claim


CALL = ModelCall(Purpose.RESPOND, "offline", 5, input_tokens=10, output_tokens=5)


def lost_step(scene: Jobs) -> LostStep:
    """Return the step that runs as one whose worker is gone."""
    return LostStep(
        scene.ref(RUNS), 1, Effect.READ, 1, RetryTerms(retries=1), 0, "sim_read", 1.0, is_worker_lost=True
    )


def run_ahead(scene: Jobs) -> list[UnitStep]:
    """Return the outcome of the first step of a plan that the job being planned is about to store."""
    return [UnitStep(claim_ahead(scene.planned, PURE[0], {}), JsonText(b'{"value": "v"}'), None, 0.001)]


async def out_of_time(session: Session, job_id: UUID, column: str) -> None:
    """Let a job's time be over."""
    await session.run(f"UPDATE jobs SET {column} = planq_now() WHERE id = %s", job_id)


async def unanswered(session: Session, question: UUID) -> None:
    """Let the time for an answer be over."""
    await session.run("UPDATE steps SET wake_at = planq_now() WHERE question_id = %s", question)


async def held(session: Session, job_id: UUID) -> None:
    """Let the step that is ready wait for a place, and let there be one."""
    await session.run(
        "UPDATE jobs SET places = 64, held_steps = 1, out_steps = (SELECT count(*) FROM steps "
        "WHERE job_id = jobs.id AND status IN ('ready', 'running')) - 1 WHERE id = %s",
        job_id,
    )
    await session.run("UPDATE steps SET wake_at = NULL WHERE job_id = %s AND index = %s", job_id, READY)


async def paused(session: Session, job_id: UUID, tenant: str) -> None:
    """Pause a job, unless one above it is paused, and it with that."""
    await session.requests.pause(tenant, job_id)


OPERATIONS: tuple[Operation[Jobs], ...] = (
    # Steps of the parent
    Operation("claim step", lambda s, j: claim_step(s.store, j.ref(READY))),
    Operation("succeed step", lambda s, j: s.store.succeed_step(j.steps[RUNS], OUTPUT, None)),
    Operation("succeed the other", lambda s, j: s.store.succeed_step(j.steps[RUNS_TOO], OUTPUT, None)),
    Operation(
        "succeed and take over",
        lambda s, j: s.store.succeed_step(j.steps[RUNS_TOO], OUTPUT, None, take=ClaimRequest(Pool.IO, 2, True)),
    ),
    Operation("fail step", lambda s, j: s.store.fail_step(j.steps[RUNS], BOOM, None)),
    Operation("fail the other", lambda s, j: s.store.fail_step(j.steps[RUNS_TOO], BOOM, None)),
    Operation("retry step", lambda s, j: s.store.fail_step(j.steps[RUNS], BOOM, HOUR)),
    Operation("suspend step", lambda s, j: s.store.suspend_step(j.steps[RUNS], HOUR, OUTPUT)),
    Operation(
        "delegate step",
        lambda s, j: s.store.delegate_step(j.steps[RUNS], Delegated([ChildRequest(None, "d", 3600.0)])),
    ),
    Operation("ask step", lambda s, j: s.store.ask_step(j.steps[RUNS], DID_IT, BOOM)),
    Operation("note outcome", lambda s, j: s.store.note_outcome(j.steps[RUNS], OUTPUT, None)),
    Operation("note step", lambda s, j: s.store.note(j.steps[RUNS], "progress", {"at": 1})),
    Operation("keep traceback", lambda s, j: s.store.keep_traceback(j.steps[RUNS], "Traceback …")),
    Operation("release step", lambda s, j: s.store.release(j.steps[RUNS])),
    Operation(
        "abandon step",
        lambda s, j: s.registry.abandon(s.worker, Attempt(j.ref(RUNS), 1)),
        breaks="running_without_lease",
    ),
    Operation("take step back", lambda s, j: s.registry.take_back_step(lost_step(j), BOOM, HOUR)),
    Operation("give step up", lambda s, j: s.registry.take_back_step(lost_step(j), BOOM, None)),
    Operation("ask about lost step", lambda s, j: s.registry.ask_lost_step(lost_step(j), DID_IT, BOOM)),
    Operation("fire timer", lambda s, j: s.registry.fire_timer(DueTimer(j.ref(TIMED), 1))),
    Operation(
        "answer question",
        lambda s, j: s.requests.settle(j.tenant, j.parent, ASKS, Verdict(Settlement.HAPPENED, OUTPUT)),
    ),
    Operation(
        "deny question",
        lambda s, j: s.requests.settle(j.tenant, j.parent, ASKS, Verdict(Settlement.UNKNOWN, error=BOOM)),
    ),
    Operation(
        "expire question",
        lambda s, j: QuestionSweep(s.database).expire(
            ExpiredQuestion(
                j.question, j.ref(ASKS), j.tenant, "sim_unsafe", QuestionKind.OUTCOME, StepKind.TOOL, 1.0
            ),
            FailStep(BOOM),
        ),
        lambda s, j: unanswered(s, j.question),
    ),
    Operation(
        "reserve",
        lambda s, j: s.store.reserve(
            Holder(j.parent, 1, 0, RUNS),
            ReservationRequest(400, 600, 600, model_calls=1, may_ask=False, call_id=uuid4()),
        ),
    ),
    # The parent
    Operation("record calls", lambda s, j: s.store.record_calls(j.parent, [CALL])),
    Operation("pause", lambda s, j: s.requests.pause(j.tenant, j.parent)),
    Operation(
        "resume", lambda s, j: s.requests.resume(j.tenant, j.parent), lambda s, j: paused(s, j.parent, j.tenant)
    ),
    Operation("open windows", lambda s, j: s.registry.open_windows(20), lambda s, j: held(s, j.parent), passes=True),
    Operation("cancel", lambda s, j: s.requests.cancel(j.tenant, j.parent)),
    Operation(
        "expire plan",
        lambda s, j: s.registry.expire_plan(ExpiredPlan(j.parent, 1.0), BOOM),
        lambda s, j: out_of_time(s, j.parent, "deadline"),
    ),
    Operation(
        "expire job",
        lambda s, j: s.registry.expire_job(ExpiredJob(j.parent, False, 1.0), BOOM),
        lambda s, j: out_of_time(s, j.parent, "expires_at"),
    ),
    Operation("notify parent", lambda s, j: s.store.serve_end(j.ended)),
    # Its child that is being planned, and the one that is queued
    Operation("claim stage", lambda s, j: claim_stage(s.store, j.queued, [JobStatus.QUEUED])),
    Operation(
        "accept plan",
        lambda s, j: s.store.accept_plan(
            j.planned,
            "model",
            {},
            compiled(Plan.model_validate({"calls": [READ]})),
            [CALL],
            take=ClaimRequest(Pool.IO, 1),
        ),
    ),
    Operation(
        "accept plan that has run",
        lambda s, j: s.store.accept_plan(
            j.planned, "model", {}, PURE, [CALL], take=ClaimRequest(Pool.IO, 1), ran=run_ahead(j)
        ),
    ),
    Operation("refuse plan", lambda s, j: s.store.refuse_plan(j.planned, "model", {}, [{"error": "bad"}], [CALL])),
    Operation("complete child", lambda s, j: s.store.end_job(j.planned, JobStatus.COMPLETED, "done", None, [CALL])),
    Operation("fail child", lambda s, j: s.store.end_job(j.planned, JobStatus.FAILED, None, BOOM, [CALL])),
    Operation("retry stage", lambda s, j: s.store.retry_stage(j.planned, BOOM, HOUR, StageTries(1, 1, 1.0), [CALL])),
    Operation("release stage", lambda s, j: s.store.release(j.planned)),
    Operation("warn", lambda s, j: s.store.note(j.planned, "budget_low", {"left": 1})),
    Operation(
        "take stage back",
        lambda s, j: s.registry.take_back_stage(LostStage(j.planned.job_id, JobStatus.PLANNING, 1, 0)),
    ),
    Operation(
        "give stage up",
        lambda s, j: s.registry.fail_stage(LostStage(j.planned.job_id, JobStatus.PLANNING, 1, 0), BOOM),
    ),
    Operation("cancel child", lambda s, j: s.requests.cancel(j.tenant, j.planned.job_id)),
    Operation("pause child", lambda s, j: s.requests.pause(j.tenant, j.planned.job_id)),
    Operation(
        "resume child",
        lambda s, j: s.requests.resume(j.tenant, j.planned.job_id),
        lambda s, j: paused(s, j.planned.job_id, j.tenant),
    ),
    Operation(
        "expire child",
        lambda s, j: s.registry.expire_job(ExpiredJob(j.queued, True, 1.0, True), BOOM),
        lambda s, j: out_of_time(s, j.queued, "expires_at"),
    ),
)
