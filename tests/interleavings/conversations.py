"""Operations on a conversation: one turn is active, one is held, and further messages come."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from planq.shared.agentic.plan.document import Plan
from planq.shared.agentic.turns.messages import Policy
from planq.shared.kernel.claims import StageClaim, StepClaim
from planq.shared.kernel.job_store import ClaimRequest, FollowUp
from planq.shared.kernel.states import AfterSteps, JobStatus, Pool, Settlement
from planq.shared.kernel.sweep import ExpiredJob
from planq.shared.subjects.conversations.store import ConversationStore
from planq.shared.subjects.jobs.store import Verdict
from tests.interleavings.arena import Operation, Session
from tests.interleavings.jobs import CALL, claimed, out_of_time, paused
from tests.support.claiming import claim_stage
from tests.support.conversations import message
from tests.support.plans import compiled
from tests.support.stored import BOOM, DID_IT

UNSAFE = Plan.model_validate({"calls": [{"tool_name": "sim_unsafe", "arguments": {}}]})


@dataclass(frozen=True, slots=True)
class Conversation:
    """A thread with a turn that is being planned, and one that waits for it."""

    tenant: str
    id: UUID
    active: StageClaim
    held: UUID

    @property
    def names(self) -> Mapping[UUID, str]:
        """See `Scene`."""
        return {self.id: "conversation", self.active.job_id: "active", self.held: "held"}


async def build(session: Session) -> Conversation:
    """Build the scene."""
    tenant = await session.tenant()
    store = ConversationStore(session.database)
    first = await store.receive(message("one", tenant=tenant))
    second = await store.receive(message("two", tenant=tenant))
    assert first.job_id is not None
    assert second.job_id is not None
    return Conversation(tenant, first.conversation_id, await claimed(session, first.job_id), second.job_id)


def says(text: str = "three", **fields: Any) -> Callable[[Session, Conversation], Any]:
    """Receive a message in the thread."""
    return lambda s, c: ConversationStore(s.database).receive(message(text, tenant=c.tenant, **fields))


async def asks(session: Session, scene: Conversation) -> None:
    """Let the active turn ask whether a call took effect, with a further round after it, unless it has gone on."""
    follow = FollowUp(AfterSteps.PLANNING)
    moved = await session.store.accept_plan(
        scene.active, "model", {}, compiled(UNSAFE), [], follow=follow, take=ClaimRequest(Pool.IO)
    )
    for step in moved.taken:
        assert isinstance(step, StepClaim)
        assert await session.store.ask_step(step, DID_IT, BOOM)


async def fails(session: Session, scene: Conversation) -> None:
    """Let the active turn end, unless it has gone on; its conversation knows nothing of it yet."""
    await session.store.end_job(scene.active, JobStatus.FAILED, None, BOOM, [])


async def settled(session: Session, scene: Conversation) -> None:
    """Let the active turn fail, and the held one begin."""
    await fails(session, scene)
    await ConversationStore(session.database).settle(scene.active.job_id)


OPERATIONS: tuple[Operation[Conversation], ...] = (
    Operation("message that queues", says()),
    Operation("message that merges", says(policy=Policy.MERGE)),
    Operation("message that is rejected", says(policy=Policy.REJECT)),
    Operation("message that interrupts", says(policy=Policy.INTERRUPT)),
    Operation("message that waits for more", says(debounce_ms=60_000, debounce_most_ms=600_000)),
    Operation("message that comes twice", says(source_id="m3")),
    Operation("message of another thread", says(thread="u")),
    Operation("message that answers", says("happened"), asks),
    Operation("message instead of an answer", says("else", cancels_questions=True), asks),
    Operation(
        "answer",
        lambda s, c: s.requests.settle(c.tenant, c.active.job_id, 0, Verdict(Settlement.UNKNOWN, error=BOOM)),
        asks,
    ),
    Operation("accept plan", lambda s, c: s.store.accept_plan(c.active, "model", {}, compiled(UNSAFE), [CALL])),
    Operation(
        "further round",
        lambda s, c: s.store.accept_plan(
            c.active,
            "model",
            {},
            compiled(UNSAFE),
            [CALL],
            follow=FollowUp(AfterSteps.PLANNING),
            take=ClaimRequest(Pool.IO),
        ),
    ),
    Operation("complete turn", lambda s, c: s.store.end_job(c.active, JobStatus.COMPLETED, "done", None, [CALL])),
    Operation("fail turn", lambda s, c: s.store.end_job(c.active, JobStatus.FAILED, None, BOOM, [CALL])),
    Operation("settle turn", lambda s, c: s.store.serve_end(c.active.job_id), fails),
    Operation("cancel turn", lambda s, c: s.requests.cancel(c.tenant, c.active.job_id)),
    Operation("cancel held turn", lambda s, c: s.requests.cancel(c.tenant, c.held)),
    Operation("pause turn", lambda s, c: s.requests.pause(c.tenant, c.active.job_id)),
    Operation(
        "resume paused turn",
        lambda s, c: s.requests.resume(c.tenant, c.active.job_id),
        lambda s, c: paused(s, c.active.job_id, c.tenant),
    ),
    Operation(
        "resume failed turn",
        lambda s, c: s.requests.resume(c.tenant, c.active.job_id, after=0),
        settled,
    ),
    Operation("claim held turn", lambda s, c: claim_stage(s.store, c.held, [JobStatus.QUEUED])),
    Operation(
        "expire turn",
        lambda s, c: s.registry.expire_job(ExpiredJob(c.active.job_id, False, 1.0), BOOM),
        lambda s, c: out_of_time(s, c.active.job_id, "expires_at"),
    ),
    Operation(
        "close",
        lambda s, c: ConversationStore(s.database).change(c.tenant, c.id, policy=Policy.MERGE, is_closed=True),
    ),
    Operation("erase", lambda s, c: ConversationStore(s.database).erase(c.tenant, c.id)),
)
