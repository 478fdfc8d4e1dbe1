"""From an inbound message to a job of its conversation, and from that job's end to the answer of the request.

    checked_message          every check of what was sent
    Messages.with_parts      stores its images, files and audio before anything refers to them
    Messages.receive         one commit, then the wake-ups
    MessageReplies.answer    waits for the job within bounds, and answers with its result
    MessageReplies.for_job   the same for a job that is queried later
    TurnSubmissions          jobs that are sent as turns of a conversation (docs/decisions.md, D91)

Texts of providers and tools never go out: a person gets a plain sentence, and the id under which an operator finds
the rest (docs/decisions.md, D41).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from time import monotonic
from typing import Any, Literal
from uuid import UUID

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from planq.api.documents import question_document
from planq.api.http import bounds
from planq.api.http.exchange import RETRY_AFTER_SECONDS, STATUS_OF, HttpRefusal, JsonResponse, body_digest
from planq.api.http.ids import conversation_id_of
from planq.api.intake.assignments import AGENT_HEADER, Assignments, named_agent, received_for_agent
from planq.api.intake.message_flow import task_document
from planq.api.intake.parts import PartIntake
from planq.api.intake.submission import Submissions, SubmittedJob, check_key, check_object, trace_id
from planq.api.intake.waits import EndAnnouncer, JobWaits, client_closed_response
from planq.api.schemas import MAX_METADATA_BYTES, Answer, Id, JobRequest, QuestionDocument
from planq.api.streams.waiting import Waiters
from planq.shared.agentic.agents.checks import NamedAgent, read_named_agent
from planq.shared.agentic.turns.messages import Direction, MessageKind, MessageStatus
from planq.shared.agentic.turns.wording import injection_kinds
from planq.shared.broker.publisher import CeleryPublisher
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.questions import Addressee
from planq.shared.kernel.states import AskedOf, JobStatus, QuestionKind, StepStatus
from planq.shared.kernel.submission import Submission
from planq.shared.platform import errors
from planq.shared.platform.database import Row, shown_time
from planq.shared.platform.errors import Conflict, NotFound
from planq.shared.platform.timers import NearTimers
from planq.shared.platform.values.decoding import decode_stored
from planq.shared.settings.settings import Settings
from planq.shared.subjects.conversations.inbound import CanonicalMessage, checked_text
from planq.shared.subjects.conversations.rules import user_message
from planq.shared.subjects.conversations.store import Arrival, ConversationStore, Inbound, InboundResult, erased
from planq.shared.subjects.jobs.job_view import JobView
from planq.shared.subjects.jobs.store import RequestStore
from planq.shared.subjects.questions.answering import ACTIONS
from planq.shared.subjects.questions.store import QuestionStore
from planq.shared.subjects.tenants.config import Tenant

_LIMITED_SECONDS = 30
"""`Retry-After` if the model's provider limits the rate; shorter pauses planq waits itself."""

_OF_THE_PROVIDER = frozenset(
    kind.code
    for kind in (
        *(errors.Transient, errors.Unreached, errors.RateLimited, errors.TimedOut, errors.FirstTokenTimedOut),
        *(errors.AuthFailed, errors.ModelRefused, errors.ContextExceeded, errors.InvalidOutput, errors.InternalFault),
    )
)
_STATUS_OF_CODE: Mapping[str, int] = {kind.code: status for kind, status in STATUS_OF.items() if status != 500}
_QUEUED = "Message queued for processing"
_RUNS = "Message is being processed"
_ASKS = "A question has to be answered first"
_WAITS = "Message queued; a question of the turn before it has to be answered first"
_TAKEN = "Message was taken as the answer to a question"
_ASKS_OTHERS = "This waits for an approval by others"
_WAITS_FOR_APPROVAL = "Message queued; the turn before it waits for an approval by others"
_WAITS_FOR_ANSWER = "Message queued; the turn before it waits for an answer by others"


class InboundRequest(CanonicalMessage):
    """A message, and whether its answer is waited for."""

    async_processing: bool = Field(default=False, description="Answer at once with 202, as soon as it is stored.")


class MessageContent(Answer):
    """What is said."""

    type: Literal["text"]
    text: str


class FlowIds(Answer):
    """Where the work on a message can be looked at."""

    task_id: Id = Field(description="The job: `/tasks/{id}`, `/jobs/{id}`.")
    plan_id: Id | None = Field(None, description="There where the job made a plan: `/plans/{id}`.")


class OutboundMessage(Answer):
    """The message that answers."""

    id: Id
    conversation_id: Id
    channel: str
    direction: Literal["outbound"]
    to: dict[str, str]
    content: MessageContent
    metadata: FlowIds


class AnsweredByMessage(Answer):
    """The question that a message was taken as the answer to."""

    id: Id = Field(description="`/elicitations/{id}`.")
    action: Literal["accept", "decline", "cancel"]


class MessageAnswer(Answer):
    """What became of a message."""

    status: Literal["success"]
    message: OutboundMessage
    latency_ms: int = Field(description="From the message's commit to the end of its job.")
    tool_calls_executed: int = Field(description="Calls that succeeded.")
    metadata: FlowIds
    answered: AnsweredByMessage | None = Field(None, description="There where the message answered a question.")
    reason: Literal["model_away"] | None = Field(
        None, description="Why it takes long: its model fails, and is asked again."
    )
    retry_at: datetime | None = Field(None, description="When the model is asked again; none while it is asked.")


class PendingAnswer(Answer):
    """A message that is stored and not answered yet."""

    status: Literal["queued", "processing", "input_required"]
    job_id: Id
    conversation_id: Id
    message: str
    elicitation: QuestionDocument | None = Field(
        None, description="What a person is asked first; there where `status` is `input_required`."
    )
    behind_job_id: Id | None = Field(
        None, description="The turn that asks it; there where the message is queued behind another turn."
    )
    answered: AnsweredByMessage | None = Field(None, description="There where the message answered a question.")


def checked_message(
    settings: Settings, tenant: Tenant, message: CanonicalMessage, sent: Any, headers: Mapping[str, str]
) -> Inbound:
    """Return a message as it is stored, with the job that answers it; `sent` is the decoded body.

    Raises as `checked_text` does, `TooLarge` for long metadata, and `HttpRefusal` for a bad Idempotency-Key.
    """
    config = tenant.config
    named = named_agent(message.agent, headers.get(AGENT_HEADER), message.metadata)
    key = check_key(headers.get("idempotency-key"))
    text = checked_text(message, tenant.id, config)
    metadata = message.metadata or None
    check_object("metadata", metadata, MAX_METADATA_BYTES)
    submission = Submission(
        id=new_id(),
        tenant_id=tenant.id,
        input=text,
        strategy=config.message_strategy(),
        model=config.model or settings.model,
        limits=tenant.message_limits,
        budget=config.budget,
        user_id=message.from_.external_id,
        trace_id=trace_id(headers.get("traceparent")),
    )
    return Inbound(
        submission=submission,
        channel=message.channel,
        thread=message.named_thread(),
        source_id=message.source_id(),
        idempotency_key=key,
        request_hash=None if key is None else body_digest(sent),
        user_id=message.from_.external_id,
        text=text,
        content=message.model_dump(include={"from_", "to", "timestamp"}, by_alias=True, exclude_none=True),
        metadata=metadata,
        policy=config.policy,
        debounce_ms=config.debounce_ms,
        debounce_most_ms=config.debounce_most_ms,
        cancels_questions=config.question_policy == "cancel",
        suspected=injection_kinds(text),
        named_agent=named,
        default_agent=config.agent_of(message.channel),
    )


@dataclass(frozen=True, slots=True)
class Messages:
    """Stores messages: each is a turn of its conversation, or the answer to a question."""

    conversations: ConversationStore
    assignments: Assignments
    publisher: CeleryPublisher
    timers: NearTimers
    waiters: Waiters
    endings: EndAnnouncer
    parts: PartIntake

    async def with_parts(self, inbound: Inbound, message: CanonicalMessage, *, message_flow: bool) -> Inbound:
        """Return a message whose parts are stored; raises as `PartIntake.stored` does."""
        submission = inbound.submission
        parts = await self.parts.stored(submission.tenant_id, message.said().parts, message_flow=message_flow)
        return inbound if parts is None else replace(inbound, submission=replace(submission, parts=parts))

    async def in_conversation(self, inbound: Inbound, conversation_id: str | None) -> Inbound:
        """Return a message in the thread of the conversation that it names, if any.

        Raises `NotFound` unless the tenant has that conversation on the channel of the message, and `Conflict` if the
        message also names another thread.
        """
        if conversation_id is None:
            return inbound
        found = await self.conversations.get(inbound.submission.tenant_id, conversation_id_of(conversation_id))
        if found["channel"] != inbound.channel:
            raise NotFound(
                f"there is no conversation {found['id']} on the channel {inbound.channel}, it is of another one"
            )
        if inbound.thread not in (None, found["thread"]):
            raise Conflict(
                f"conversation {found['id']} has another thread; expected its own, or only one of the two names"
            )
        return replace(inbound, thread=found["thread"])

    async def receive(self, inbound: Inbound) -> InboundResult:
        """Store a message, publish the wake-ups, and announce the jobs that ended.

        Raises `Conflict` if the conversation is closed or refuses messages while it is busy, and for a source id or
        idempotency key of another message; and as `received_for_agent` does.
        """
        received = await received_for_agent(self.conversations, self.assignments, inbound)
        self.endings.announce(received.ended)
        if received.outcome is Arrival.ACCEPTED and received.job_id is not None:
            self.waiters.submitted(received.job_id, inbound.submission.tenant_id)
        self.publisher.publish_soon(received.wakes)
        if received.later is not None:
            seconds, wake = received.later
            self.timers.set(seconds, partial(self.publisher.publish, [wake]))
        if received.outcome is Arrival.REJECTED:
            raise _rejected(received)
        return received


def _rejected(received: InboundResult) -> Conflict:
    conversation = received.conversation_id
    if received.is_closed:
        return Conflict(f"conversation {conversation} is closed; open it, or name another thread")
    return Conflict(
        f"conversation {conversation} works on a message and takes no other one meanwhile; send it again later, or "
        "let the conversation have another policy"
    )


@dataclass(frozen=True, slots=True)
class MessageReplies:
    """Answers requests with the replies to their messages."""

    settings: Settings
    conversations: ConversationStore
    requests: RequestStore
    questions: QuestionStore
    publisher: CeleryPublisher
    waits: JobWaits

    async def stored(self, tenant_id: str, received: InboundResult) -> Response:
        """Answer that a message is stored, or with the question that has to be answered first."""
        assert received.job_id is not None  # only a rejected message has none
        if received.missed is not None:
            return await self._pending(tenant_id, await self.requests.view(tenant_id, received.job_id), {})
        status, message = ("queued", _QUEUED) if received.answered is None else ("processing", _TAKEN)
        answer = {
            "status": status,
            "job_id": str(received.job_id),
            "conversation_id": str(received.conversation_id),
            "message": message,
            **_taken(received),
        }
        return JsonResponse(answer, status_code=202, headers=_location(received.job_id))

    async def answer(self, tenant_id: str, received: InboundResult, request: Request) -> Response:
        """Answer with the reply to a message, or with its state after the longest wait.

        A question to a person ends the wait, also one of the turn before. Raises `Erased`, and `HttpRefusal` for a
        failed job, in words for people.
        """
        async with self.waits.place(request) as may_wait:
            seconds = self.settings.max_wait_seconds if may_wait and received.missed is None else 0.0
            return await self._answer_within(tenant_id, received, request, seconds)

    async def _answer_within(
        self, tenant_id: str, received: InboundResult, request: Request, seconds: float
    ) -> Response:
        job_id = received.job_id
        message_id = received.message_id
        assert job_id is not None  # only a rejected message has none
        assert message_id is not None
        until = monotonic() + seconds
        taken = _taken(received)
        while True:
            seconds = min(bounds.WAIT_POLL_SECONDS, until - monotonic())
            try:
                view = await self.waits.ended(job_id, max(seconds, 0.0), request, has_place=True)
            except NotFound:
                return await self._answer_from_conversation(tenant_id, job_id)
            if view is None:
                return client_closed_response()
            if view.has_ended:
                await self._settle(job_id)
                answering = await self.conversations.job_of(tenant_id, message_id)
                if answering in (None, job_id):
                    return await self._answered(tenant_id, view, taken)
                job_id = answering  # it was to merge with a job that ended before
            elif await self._question(tenant_id, view) is not None or monotonic() >= until:
                return await self._pending(tenant_id, view, taken)

    async def for_job(self, tenant_id: str, job_id: UUID, seconds: float, request: Request) -> Response:
        """Answer as `answer` does, for the job of a message; raises `NotFound` for a job without a conversation."""
        try:
            view = await self.waits.ended(job_id, seconds, request)
        except NotFound:
            return await self._answer_from_conversation(tenant_id, job_id)
        if view is None:
            return client_closed_response()
        if view.row["conversation_id"] is None:
            raise NotFound(f"job {job_id} answers no message; GET /jobs/{job_id} shows it")
        if not view.has_ended:
            return await self._pending(tenant_id, view, {})
        await self._settle(job_id)
        return await self._answered(tenant_id, view, {})

    async def _settle(self, job_id: UUID) -> None:
        """Write the end of a turn down now, so that its answer can be read and the next turn begins."""
        self.publisher.publish_soon(await self.conversations.settle(job_id))

    async def _answered(self, tenant_id: str, view: JobView, taken: Mapping[str, Any]) -> Response:
        row = view.row
        reply = await self.conversations.reply(tenant_id, row["id"])
        if reply is None:
            raise NotFound(f"the conversation {row['conversation_id']} is not there any more, nor is its answer")
        if row["status"] != JobStatus.COMPLETED and reply["status"] != MessageStatus.ERASED:
            code = errors.Cancelled.code
            if row["status"] == JobStatus.FAILED:
                code = decode_stored(row["error"].body)["code"]
            raise _failed(row["id"], row["conversation_id"], code)
        task = task_document(view)
        ids = {name: task[name] for name in ("task_id", "plan_id") if task[name] is not None}
        calls = sum(step["status"] == StepStatus.SUCCEEDED for step in view.steps)
        return _success(reply, ids, row["finished_at"] - row["created_at"], calls, taken)

    async def _answer_from_conversation(self, tenant_id: str, job_id: UUID) -> Response:
        """Answer for a job that retention has removed, from the rows of its conversation."""
        rows = await self.conversations.messages_of_job(tenant_id, job_id)
        replies = [
            row for row in rows if row["kind"] == MessageKind.MESSAGE and row["direction"] == Direction.OUTBOUND
        ]
        if not replies:
            raise NotFound(f"there is no job {job_id}")
        reply = replies[-1]
        if reply["status"] != MessageStatus.ERASED and reply["metadata"]["job_status"] != JobStatus.COMPLETED:
            raise _failed(job_id, reply["conversation_id"], reply["metadata"]["error_code"])
        responses = [row["content"] or {} for row in rows if row["kind"] == MessageKind.TOOL_RESPONSE]
        calls = sum("output" in content or "preview" in content for content in responses)
        return _success(reply, {"task_id": str(job_id)}, reply["created_at"] - rows[0]["created_at"], calls, {})

    async def _question(self, tenant_id: str, view: JobView) -> tuple[UUID, UUID] | None:
        """Return the oldest question that blocks a job, and the job that asks it: this one or the turn before."""
        row = view.row
        if row["status"] == JobStatus.QUEUED:
            before = await self.conversations.question_before(tenant_id, row["id"])
            return None if before is None else (before["id"], before["job_id"])
        if row["status"] != JobStatus.INPUT_REQUIRED or row["paused_at"] is not None or row["open_questions"] is None:
            return None
        return UUID(decode_stored(row["open_questions"].body)[0]["id"]), row["id"]

    async def _pending(self, tenant_id: str, view: JobView, taken: Mapping[str, Any]) -> Response:
        job_id = view.row["id"]
        answer: dict[str, Any] = {
            "status": "processing",
            "job_id": str(job_id),
            "conversation_id": str(view.row["conversation_id"]),
            "message": _RUNS,
            **taken,
        }
        if view.row["status"] == JobStatus.QUEUED:
            answer |= {"status": "queued", "message": _QUEUED}
        if view.row["stage_retry"] is not None:
            answer["reason"] = "model_away"
            if (retry_at := shown_time(view.row["next_attempt_at"])) is not None:
                answer["retry_at"] = retry_at
        if (found := await self._question(tenant_id, view)) is not None:
            question, turn = found
            row = await self.questions.get(tenant_id, question)
            is_theirs = Addressee(AskedOf(row["asked_of"]), tuple(row["asked_ids"] or ())).includes(
                view.row["user_id"]
            )
            asked = {"status": "input_required", "elicitation": question_document(row)}
            if turn == job_id:
                answer |= {**asked, "message": _ASKS if is_theirs else _ASKS_OTHERS}
            elif is_theirs:
                answer |= {**asked, "message": _WAITS, "behind_job_id": str(turn)}
            else:
                message = _WAITS_FOR_APPROVAL if row["kind"] == QuestionKind.APPROVAL else _WAITS_FOR_ANSWER
                answer |= {"message": message, "behind_job_id": str(turn)}
        return JsonResponse(answer, status_code=202, headers=_location(job_id))


def _taken(received: InboundResult) -> dict[str, Any]:
    if (answered := received.answered) is None:
        return {}
    return {"answered": {"id": str(answered.id), "action": ACTIONS[answered.status]}}


def _success(reply: Row, ids: Mapping[str, str], took: timedelta, calls: int, taken: Mapping[str, Any]) -> Response:
    if reply["status"] == MessageStatus.ERASED:
        raise erased(reply["conversation_id"])
    message = {
        "id": str(reply["id"]),
        "conversation_id": str(reply["conversation_id"]),
        "channel": reply["channel"],
        "direction": "outbound",
        "to": {"type": "user", "external_id": reply["user_id"]},
        "content": {"type": "text", "text": reply["text"]},
        "metadata": ids,
    }
    answer = {
        "status": "success",
        "message": message,
        "latency_ms": round(took.total_seconds() * 1000),
        "tool_calls_executed": calls,
        "metadata": ids,
        **taken,
    }
    return JsonResponse(answer)


def _failed(job_id: UUID, conversation_id: UUID, code: str) -> HttpRefusal:
    """Return the refusal for a failed job. It has the id of the job, and none of the words of its error."""
    status = _STATUS_OF_CODE.get(code, 502)
    what = "LLM call failed." if code in _OF_THE_PROVIDER else "The message was not answered."
    wait = {429: _LIMITED_SECONDS, 503: RETRY_AFTER_SECONDS}.get(status)
    return HttpRefusal(
        status,
        code,
        f"{what} Error ID: {job_id}. {user_message(code)}",
        headers=None if wait is None else {"Retry-After": str(wait)},
        instance=f"urn:uuid:{job_id}",
        job_id=str(job_id),
        conversation_id=str(conversation_id),
    )


def _location(job_id: UUID) -> dict[str, str]:
    return {"Location": f"/messages/status/{job_id}"}


@dataclass(frozen=True, slots=True)
class TurnSubmissions:
    """Stores jobs, as turns of a conversation where the request names one."""

    submissions: Submissions
    messages: Messages

    async def submit(
        self, tenant_id: str, body: JobRequest, sent: Any, *, idempotency_key: str | None, traceparent: str | None
    ) -> SubmittedJob:
        """Store a job and publish its wake-up, as a turn if its request names a conversation for it.

        Raises as `Submissions.submit` does; for a turn also `NotFound` and `Conflict` as its conversation does.
        """
        if body.conversation_id is None or body.conversation == "read":
            return await self.submissions.submit(
                tenant_id, body, sent, idempotency_key=idempotency_key, traceparent=traceparent
            )
        conversation_id = conversation_id_of(body.conversation_id)
        given, earlier = await self.submissions.sender_of(tenant_id, sent, idempotency_key, traceparent)
        if earlier is not None:
            return SubmittedJob(earlier)
        row = await self.messages.conversations.get(tenant_id, conversation_id)
        kept = {} if row["follows_agent"] else row["agent_versions"] or {}
        submission = await self.submissions.builder.build(tenant_id, _kept(body, kept), given)
        return await self._store_turn(submission, row)

    async def store(self, submission: Submission, conversation_id: UUID | None) -> SubmittedJob:
        """Store a checked job, as a turn of this conversation if any, and publish its wake-up."""
        if conversation_id is None:
            return await self.submissions.store(submission)
        row = await self.messages.conversations.get(submission.tenant_id, conversation_id)
        return await self._store_turn(submission, row)

    async def _store_turn(self, submission: Submission, row: Row) -> SubmittedJob:
        agent = None if submission.agent is None else NamedAgent(submission.agent, submission.agent_version)
        headers = await self.submissions.let_in(submission)
        config = (await self.submissions.tenants.of(submission.tenant_id)).config
        # The key belongs to the message, which exists once in its conversation, with one job.
        received = await self.messages.receive(
            Inbound(
                submission=replace(submission, idempotency_key=None, request_hash=None),
                channel=row["channel"],
                thread=row["thread"],
                idempotency_key=submission.idempotency_key,
                request_hash=submission.request_hash,
                user_id=submission.user_id,
                text=submission.input,
                metadata=submission.metadata,
                policy=config.policy,
                is_job=True,
                named_agent=agent,
            )
        )
        assert received.job_id is not None  # only a rejected message has none
        is_new = received.outcome is not Arrival.DUPLICATE
        return SubmittedJob(received.job_id, submission if is_new else None, headers=headers)


def _kept(body: JobRequest, versions: Mapping[str, int]) -> JobRequest:
    agent = None if body.agent is None else read_named_agent(body.agent)
    if agent is None or agent.version is not None or agent.name not in versions:
        return body
    return body.model_copy(update={"agent": f"{agent.name}@{versions[agent.name]}"})
