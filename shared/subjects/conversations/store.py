"""Conversations: receive messages, settle turns, list.

One call of `planq_receive_message`, and so one commit, stores a message with its job and first event.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any
from uuid import UUID

from planq.shared.agentic.agents.checks import NamedAgent
from planq.shared.agentic.models.input_parts import check_reads_parts
from planq.shared.agentic.turns.messages import Direction, HistoryMessage, MessageKind, Policy, Turns
from planq.shared.agentic.turns.speakers import Speaker
from planq.shared.kernel.follow_ups import after_end
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.questions import ContinueStep, QuestionAnswer, after_answer
from planq.shared.kernel.states import QuestionKind, QuestionStatus, StepKind
from planq.shared.kernel.store.codec import after_answer_fields
from planq.shared.kernel.store.ends import serve_ends
from planq.shared.kernel.submission import Submission
from planq.shared.kernel.wakes import Wake
from planq.shared.platform.batching import Batcher
from planq.shared.platform.database import Database, Row, json_text, stored_text
from planq.shared.platform.errors import Conflict, Erased, NotFound, SecretInChat, storable
from planq.shared.platform.values.parts import parts_of
from planq.shared.subjects.conversations.rules import outbound_text
from planq.shared.subjects.jobs.store import AnsweredBy, control_result, submission_values
from planq.shared.subjects.questions.answering import answer_of_message
from planq.shared.subjects.questions.store import QuestionStore
from planq.shared.subjects.tenants.secrecy import NOT_IN_A_CHAT


@dataclass(frozen=True, slots=True)
class Inbound:
    """A checked message, and how to handle it.

    Without a `thread` it begins a conversation. Repeats are detected by `source_id`, the channel's id, or the
    request's `idempotency_key` with the digest `request_hash`; so its `submission` has no key. The conversation's
    policy wins over `policy`. With `debounce_ms` its job waits that long for more messages, at most
    `debounce_most_ms`. `suspected` kinds of prompt injection become an event. If it answers no question of the turn
    before it, it `cancels_questions` or waits. With `is_job` it is a turn of its own. The submission is for
    `named_agent`, else the conversation's, else `default_agent`.
    """

    submission: Submission
    channel: str
    thread: str | None = None
    source_id: str | None = None
    idempotency_key: str | None = None
    request_hash: str | None = None
    user_id: str = ""
    text: str = ""
    content: Any = None
    metadata: Mapping[str, Any] | None = None
    policy: Policy = Policy.QUEUE
    debounce_ms: int = 0
    debounce_most_ms: int = 0
    suspected: Sequence[str] = ()
    cancels_questions: bool = False
    is_job: bool = False
    named_agent: NamedAgent | None = None
    default_agent: NamedAgent | None = None


class OtherAgent(Exception):
    """The submission is for the wrong agent or version; nothing is stored. `agent` is the right one, or None."""

    def __init__(self, agent: NamedAgent | None) -> None:
        super().__init__(agent)
        self.agent = agent


class Arrival(StrEnum):
    """The result for an inbound message."""

    ACCEPTED = "accepted"  # it has a job of its own, which may have to wait for its turn
    DUPLICATE = "duplicate"  # it came before, and nothing is stored
    REJECTED = "rejected"  # a turn is active and the policy says so, or it is closed: nothing is stored
    MERGED = "merged"  # the job that runs takes it in, or another one follows
    GATHERED = "gathered"  # it was added to a job that has not begun
    ANSWERED = "answered"  # it answers what a step of the job that runs has asked


@dataclass(frozen=True, slots=True)
class AnsweredQuestion:
    """The question that a message answered, and how."""

    id: UUID
    status: QuestionStatus


@dataclass(frozen=True, slots=True)
class InboundResult:
    """The result for a message.

    `job_id` answers it (a duplicate's is the earlier job). The caller publishes `wakes` and announces the cancelled
    jobs `ended`. It `answered` a question, or waits behind the one it `missed`. `later` is a debounced job's wake-up
    with its delay in seconds.
    """

    outcome: Arrival
    conversation_id: UUID
    message_id: UUID | None
    sequence: int | None
    job_id: UUID | None
    begins: bool = False
    ended: Sequence[UUID] = ()
    wakes: Sequence[Wake] = ()
    is_closed: bool = False
    answered: AnsweredQuestion | None = None
    missed: UUID | None = None
    later: tuple[float, Wake] | None = None


@dataclass(frozen=True, slots=True)
class _Message:
    """The stored message; `job` is JSON text of its job."""

    fields: Mapping[str, Any]
    job: str

    @property
    def text(self) -> str:
        return f'{{"message":{json_text(self.fields)},"job":{self.job}}}'

    @property
    def conversation(self) -> tuple[str, str, str]:
        return (
            self.fields["tenant_id"],
            self.fields["channel"],
            self.fields["thread"] or self.fields["source_id"] or self.fields["conversation_id"],
        )


_ERASED_TURNS, _ERASED_MESSAGES = 50, 500
"""A piece takes 0.1 s or less on the two-core test machine (11/2026)."""


class ConversationStore:
    """The conversations of all tenants."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._arrivals = Batcher(self._store)

    async def receive(self, inbound: Inbound) -> InboundResult:
        """Store a message and its job, or apply the conversation's policy.

        A `source_id` or key is stored once per conversation; without a thread, in the conversation that it began.
        Raises `Conflict` if it was used for another message, `Erased` if erased, `OtherAgent` for a submission with
        the wrong agent, `InvalidRequest` for parts with the model `offline`, and `ValueError` for a submission with a
        key.
        """
        if inbound.submission.idempotency_key is not None:
            raise ValueError("an idempotency key is the message's; its submission has none")
        values = json_text(submission_values(inbound.submission))
        message = _message(inbound)
        value = await self._arrivals.do(_Message(message, values))
        if value["outcome"] != "asking":
            return await _received(self._database, value, inbound.submission)
        turn = {"tenant_id": inbound.submission.tenant_id, "root_job_id": UUID(value["job_id"])}
        # Questions to others do not concern this message.
        questions = await self._database.fetch_all("questions_of_turn", person=storable(inbound.user_id), **turn)
        answered = await self._answer(inbound, message, questions)
        if answered is not None:
            return answered
        wakes: list[Wake] = []
        # Else it would be refused, or end the whole turn.
        if inbound.cancels_questions and value["policy"] in (Policy.QUEUE, Policy.MERGE):
            wakes = await self._cancel(inbound, questions)
        message = {**message, "may_answer": False}
        value = await self._arrivals.do(_Message(message, values))
        received = await _received(self._database, value, inbound.submission)
        return replace(received, wakes=[*wakes, *received.wakes])

    async def _store(self, messages: Sequence[_Message]) -> Sequence[Mapping[str, Any]]:
        """Store messages in one commit, sorted by conversation to avoid deadlocks."""
        order = sorted(range(len(messages)), key=lambda place: messages[place].conversation)
        # One text: psycopg searches each of an array for what to escape, which took a sixth of the time.
        arrivals = ",".join(messages[place].text for place in order)
        rows = await self._database.call_table("planq_receive_messages", f"[{arrivals}]")
        received = {place: row["received"] for place, row in zip(order, rows, strict=True)}
        return [received[place] for place in range(len(messages))]

    async def _answer(
        self, inbound: Inbound, message: Mapping[str, Any], questions: Sequence[Row]
    ) -> InboundResult | None:
        """Answer the oldest question that a message without parts fits.

        Raises `Conflict` if a question asks for a secret, unless the message declines or cancels it; stores nothing
        then.
        """
        by = AnsweredBy(storable(inbound.user_id) or None, inbound.channel)
        for row in questions:
            kind, is_secret = QuestionKind(row["kind"]), row["is_secret"]
            answer = None
            if not inbound.submission.parts:
                answer = answer_of_message(kind, row["schema"], inbound.text, is_secret=is_secret)
            if answer is None and is_secret:
                raise SecretInChat(f"{NOT_IN_A_CHAT}; this message is not stored")
            if answer is None:
                continue
            after = after_answer(answer, StepKind(row["step_kind"]))
            said = {**by.fields(), "status": str(answer.status), "content": stored_text(answer.content)}
            given = json_text(said), isinstance(after, ContinueStep), json_text(after_answer_fields(after))
            value = await self._database.call("planq_answer_by_message", json_text(message), row["id"], *given)
            if value["outcome"] is not None:
                return await _received(self._database, value, inbound.submission)
        return None

    async def _cancel(self, inbound: Inbound, questions: Sequence[Row]) -> list[Wake]:
        """Cancel the active turn's questions, but those about an outcome; returns the wake-ups."""
        by = AnsweredBy(storable(inbound.user_id) or None, inbound.channel, "another message came")
        store, wakes = QuestionStore(self._database), list[Wake]()
        for row in questions:
            if (kind := QuestionKind(row["kind"])) is not QuestionKind.OUTCOME:
                answer = QuestionAnswer(kind, QuestionStatus.CANCELLED, reason=by.reason)
                after = after_answer(answer, StepKind(row["step_kind"]))
                wakes += (await store.answer(inbound.submission.tenant_id, row["id"], answer, after, by)).wakes
        return wakes

    async def page(
        self, tenant_id: str, *, channel: str | None, thread: str | None, below: UUID | None, limit: int
    ) -> Sequence[Row]:
        """Return at most `limit` conversations, newest first, older than `below`."""
        return await self._database.fetch_page(
            "list_conversations", tenant_id=tenant_id, channel=channel, thread=thread, below=below, limit=limit
        )

    async def get(self, tenant_id: str, conversation_id: UUID) -> Row:
        """Return a conversation; raises `NotFound`."""
        return await self._database.fetch_existing(
            "get_conversation", f"conversation {conversation_id}", tenant_id=tenant_id, id=conversation_id
        )

    async def messages(
        self, tenant_id: str, conversation_id: UUID, *, below: int | None, limit: int
    ) -> Sequence[Row]:
        """Return at most `limit` rows of a conversation, newest first, below a sequence."""
        return await self._database.fetch_all(
            "list_conversation_messages",
            tenant_id=tenant_id,
            conversation_id=conversation_id,
            below=below,
            limit=limit,
        )

    async def messages_of_job(self, tenant_id: str, job_id: UUID) -> Sequence[Row]:
        """Return a job's rows, oldest first, with its chained tool's until it is settled."""
        return await self._database.fetch_all("list_job_messages", tenant_id=tenant_id, job_id=job_id)

    async def begin(
        self,
        tenant_id: str,
        channel: str,
        thread: str | None,
        *,
        policy: Policy | None,
        agent: NamedAgent | None,
        follows_agent: bool,
    ) -> UUID | None:
        """Store a conversation without a message, maybe pinning an agent's version; None if it exists."""
        made = new_id()
        row = await self._database.fetch_one(
            "begin_conversation",
            id=made,
            tenant_id=tenant_id,
            channel=channel,
            thread=str(made) if thread is None else storable(thread),
            policy=None if policy is None else str(policy),
            follows_agent=follows_agent,
            **_agent_fields(agent),
        )
        return None if row is None else made

    async def change(
        self,
        tenant_id: str,
        conversation_id: UUID,
        *,
        policy: Policy | None,
        is_closed: bool,
        agent: NamedAgent | None,
        follows_agent: bool,
    ) -> None:
        """Set a conversation's policy and agent (None: the tenant's), and whether it takes messages."""
        await self._database.execute(
            "change_conversation",
            tenant_id=tenant_id,
            id=conversation_id,
            policy=None if policy is None else str(policy),
            is_closed=is_closed,
            follows_agent=follows_agent,
            **_agent_fields(agent),
        )

    async def erase(self, tenant_id: str, conversation_id: UUID) -> Sequence[UUID]:
        """Remove all texts of a conversation and cancel its unfinished turns; returns the ended jobs.

        Counts and source ids stay, to detect repeats. It is erased in pieces, a commit each, so that writers wait
        briefly; messages that arrive meanwhile stay. May be repeated. Raises `NotFound`.
        """
        ended: list[UUID] = []
        progress: Mapping[str, Any] = {"until": None, "after": 0, "is_done": False}
        while not progress["is_done"]:
            given = conversation_id, tenant_id, progress["until"], progress["after"], _ERASED_TURNS, _ERASED_MESSAGES
            answer = await self._database.call("planq_erase_conversation", *given)
            if answer is None:
                raise NotFound(f"there is no conversation {conversation_id}")
            progress = answer
            ended += map(UUID, progress["ended"])
        return ended

    async def settle(self, job_id: UUID) -> Sequence[Wake]:
        """Store an ended turn's result and begin the next turn, or continue a parent; returns the wake-ups.
        Repeatable.
        """
        return after_end(await serve_ends(self._database, [job_id]))

    async def job_of(self, tenant_id: str, message_id: UUID) -> UUID | None:
        """Return the job that answers a message now (merging may change it), None without the message."""
        row = await self._database.fetch_one("job_of_message", tenant_id=tenant_id, id=message_id)
        return None if row is None else row["job_id"]

    async def question_before(self, tenant_id: str, job_id: UUID) -> Row | None:
        """Return the oldest question of the turn that a held turn waits for, or None."""
        return await self._database.fetch_one("question_before", tenant_id=tenant_id, job_id=job_id)

    async def reply(self, tenant_id: str, job_id: UUID) -> Row | None:
        """Return the newest answer of a settled turn, or None."""
        return await self._database.fetch_one("reply_of_job", tenant_id=tenant_id, job_id=job_id)


def _agent_fields(agent: NamedAgent | None) -> dict[str, Any]:
    if agent is None:
        return {"agent": None, "version": None}
    return {"agent": storable(agent.name), "version": agent.version}


def _message(inbound: Inbound) -> dict[str, Any]:
    return {
        "id": str(new_id()),
        "conversation_id": str(new_id()),
        "tenant_id": inbound.submission.tenant_id,
        "channel": inbound.channel,
        "thread": None if inbound.thread is None else storable(inbound.thread),
        "source_id": None if inbound.source_id is None else storable(inbound.source_id),
        "idempotency_key": inbound.idempotency_key,
        "request_hash": inbound.request_hash,
        "user_id": storable(inbound.user_id),
        "text": storable(inbound.text),
        "content": stored_text(_content(inbound)),
        "metadata": stored_text(inbound.metadata),
        "policy": str(inbound.policy),
        "debounce_seconds": inbound.debounce_ms / 1000,
        "debounce_most_seconds": inbound.debounce_most_ms / 1000,
        "may_answer": not inbound.is_job,
        "is_job": inbound.is_job,
        "suspected": list(inbound.suspected) or None,
        "agent": inbound.submission.agent,
        "agent_version": inbound.submission.agent_version,
        "named_agent": None if (named := inbound.named_agent) is None else storable(named.name),
        "names_version": named is not None and named.version is not None,
        "default_agent": None if inbound.default_agent is None else inbound.default_agent.name,
    }


def _content(inbound: Inbound) -> Any:
    """Return the stored content: parts without their bytes, which are the job's."""
    parts = parts_of(inbound.submission.parts)
    if not parts:
        return inbound.content
    return {**(inbound.content or {}), "parts": [part.document() for part in parts]}


def erased(conversation_id: UUID) -> Erased:
    """Return the error for a message of an erased conversation."""
    return Erased(f"conversation {conversation_id} was erased, and this message with it; send a new one")


def _mismatch(differs: Sequence[str]) -> Conflict:
    if differs == ["Idempotency-Key"]:
        return Conflict(
            "the Idempotency-Key was used before with another message; expected the same body, or a new key for a "
            "new message"
        )
    return Conflict(
        f"the source_message_id came before in this conversation, with another {' and '.join(differs)}; expected the "
        "same message, or a source_message_id of its own for a new one",
        differs=differs,
    )


async def _received(database: Database, value: Mapping[str, Any], submission: Submission) -> InboundResult:
    if value["outcome"] == "agent":
        raise OtherAgent(None if value["agent"] is None else NamedAgent(value["agent"], value["version"]))
    if value["outcome"] == "unread":
        check_reads_parts(submission.model, (part.type for part in parts_of(submission.parts)), "content")
    outcome, conversation_id = value["outcome"], UUID(value["conversation_id"])
    if outcome == Arrival.DUPLICATE and value["is_erased"]:
        raise erased(conversation_id)
    if outcome == Arrival.DUPLICATE and value["differs"]:
        raise _mismatch(value["differs"])
    wakes: list[Wake] = [plan_wake(begun) for begun in value["begun"]]
    if outcome in ("rejected", "closed"):
        is_closed = outcome == "closed"
        return InboundResult(
            Arrival.REJECTED, conversation_id, None, None, None, wakes=tuple(wakes), is_closed=is_closed
        )
    job_id = None if value["job_id"] is None else UUID(value["job_id"])
    if outcome == Arrival.ANSWERED:
        wakes += (await control_result(database, value["answered"])).wakes
    asked = value.get("question")
    later = value.get("later")
    return InboundResult(
        Arrival(outcome),
        conversation_id,
        UUID(value["message_id"]),
        value["sequence"],
        job_id,
        begins=any(begun["id"] == value["job_id"] for begun in value["begun"]),
        ended=tuple(UUID(ended) for ended in value["ended"]),
        wakes=tuple(wakes),
        answered=None if asked is None else AnsweredQuestion(UUID(asked["id"]), QuestionStatus(asked["status"])),
        missed=None if value.get("missed") is None else UUID(value["missed"]),
        later=None if later is None else (later["seconds"], plan_wake(later)),
    )


_ROWS = 200
"""Maximum rows for a turn's history; tokens limit what a model gets."""


def plan_wake(begun: Mapping[str, Any]) -> Wake:
    return Wake.plan(UUID(begun["id"]), name=begun["agent"], tenant=begun["tenant"])


class TurnReader:
    """Reads the history of turns for their jobs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def history(self, tenant_id: str, conversation_id: UUID, job_id: UUID, before: int | None = None) -> Turns:
        """Return at most 200 rows before a job's turn, or before the turn `before`, newest first.

        Each tool call is followed by its response, unless the limit separates them. The result is stable while the
        job runs.
        """
        given = {"tenant_id": tenant_id, "conversation_id": conversation_id, "job_id": job_id, "before": before}
        return [
            HistoryMessage(
                row["sequence"],
                MessageKind(row["kind"]),
                Direction(row["direction"]),
                outbound_text(row["text"], row["metadata"]),
                row["content"],
                row["job_id"],
                _speaker(row),
                _speaker(row, "present_") if row["present_user_id"] is not None else None,
            )
            for row in await self._database.fetch_all("conversation_history", limit=_ROWS, **given)
        ]


def _speaker(row: Row, of: str = "") -> Speaker | None:
    if not of and not (row["kind"] == MessageKind.MESSAGE and row["direction"] == Direction.INBOUND):
        return None
    return Speaker.of(row[f"{of}user_id"], row[f"{of}content"], row[f"{of}metadata"])
