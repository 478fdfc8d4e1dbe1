"""Conversations in the store: messages come in, turns are settled, callers look.

Every inbound message is one call of `planq_receive_message`, and so one commit: the message, its job and the first
event are stored together, or nothing is.
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
    """A message that has been checked, and what is to be made of it.

    Without a `thread` it begins a conversation. When it comes again it is known by `source_id`, the channel's own id
    of it in its conversation, or by the `idempotency_key` of its request, whose digest is `request_hash`. Both stay
    with the message, so its `submission` has no key. The `policy` is the tenant's and gives way to the
    conversation's own. With `debounce_ms` its job waits that long for further messages, which are added to it, at
    most `debounce_most_ms`. Kinds of attempts to steer a model that are `suspected` in its text become an event.
    Where it answers no question of the turn that it would wait for, it `cancels_questions` of it, or is kept waiting.
    One that `is_job` was sent as a job: it is a turn as it is, answers no question and is added to no other.
    The agent that it names itself is `named_agent`, that of its channel or tenant `default_agent`; its submission is
    made for the nearest of these and of the conversation's own.
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
    """A message is for another agent, or another version, than its submission was made for; nothing is stored.

    `agent` is the one, None for none; with a version it is the one that the conversation keeps.
    """

    def __init__(self, agent: NamedAgent | None) -> None:
        super().__init__(agent)
        self.agent = agent


class Arrival(StrEnum):
    """What has become of an inbound message."""

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
    """What has become of a message.

    `job_id` is the job that answers it, the earlier one for a duplicate; nothing was stored of one that is rejected.
    The caller publishes `wakes`, and announces the jobs in `ended`, which were cancelled for it. It `answered` a
    question, or answers none and waits behind the one it `missed`. `later` is the wake-up of a job that waits for
    further messages, and in how many seconds it is due.
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
    """What is stored of a message; `job` is the JSON text of the one that it may become."""

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
        """Store a message and make a job of it, or do with it what the policy of its conversation says.

        Of the same `source_id` in the same conversation there is one message, however often it comes and at once; so
        it is with the same key. Without a thread that is the conversation that the message began when it came first.
        Raises `Conflict` where what came first is another message, `Erased` where it was erased, `OtherAgent` where
        the submission is made for another agent than its conversation has, `InvalidRequest` for parts in front of
        planq's own rules, and `ValueError` for a submission with a key.
        """
        if inbound.submission.idempotency_key is not None:
            raise ValueError("an idempotency key is the message's; its submission has none")
        values = json_text(submission_values(inbound.submission))
        message = _message(inbound)
        value = await self._arrivals.do(_Message(message, values))
        if value["outcome"] != "asking":
            return await _received(self._database, value, inbound.submission)
        turn = {"tenant_id": inbound.submission.tenant_id, "root_job_id": UUID(value["job_id"])}
        # What is asked of others is no question to this message.
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
        """Store messages in one commit, by conversation: batches that wait for each other's rows would not end."""
        order = sorted(range(len(messages)), key=lambda place: messages[place].conversation)
        # One text: psycopg searches each of an array for what to escape, which took a sixth of the time.
        arrivals = ",".join(messages[place].text for place in order)
        rows = await self._database.call_table("planq_receive_messages", f"[{arrivals}]")
        received = {place: row["received"] for place, row in zip(order, rows, strict=True)}
        return [received[place] for place in range(len(messages))]

    async def _answer(
        self, inbound: Inbound, message: Mapping[str, Any], questions: Sequence[Row]
    ) -> InboundResult | None:
        """Answer the oldest of the questions that the message fits; one with parts beside its text fits none.

        Raises `Conflict` while one of them asks for a secret, unless the message declines or cancels it: nothing of
        the message is stored then.
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
        """Cancel the questions of the active turn, as a person does; returns whom to wake.

        Whether a call took effect stays open: that is not the writer's to decide.
        """
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
        """Return at most `limit` conversations, newest first, older than the conversation `below` if given."""
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
        """Return at most `limit` rows of a conversation, newest first, with sequences below `below` if given."""
        return await self._database.fetch_all(
            "list_conversation_messages",
            tenant_id=tenant_id,
            conversation_id=conversation_id,
            below=below,
            limit=limit,
        )

    async def messages_of_job(self, tenant_id: str, job_id: UUID) -> Sequence[Row]:
        """Return the rows of a job, oldest first: those of its turn, and its chained tool's until that is settled."""
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
        """Store a conversation without a message, under its own id where it has no thread; None where it is there.

        A version of the `agent` is the one that it keeps.
        """
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
        """Set a conversation's own policy and agent, None for the tenant's, and whether it takes messages.

        A version of the `agent` is the one that it keeps from now on.
        """
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
        """Remove all texts of a conversation and cancel its unfinished turns; returns the jobs that this ended.

        What is counted stays, and so do the source ids, by which a message is known that comes again. A long one is
        erased in pieces, each a commit, so that whoever writes to it waits for one of them; what comes meanwhile
        stays. Who dies in between has erased a part: it may be repeated. Raises `NotFound`.
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
        """Write down what a turn came to that has ended, and let the next one begin; returns whom to wake.

        A child job's parent goes on instead. May be repeated, also for a job that has not ended: nothing happens.
        """
        return after_end(await serve_ends(self._database, [job_id]))

    async def job_of(self, tenant_id: str, message_id: UUID) -> UUID | None:
        """Return the job that answers a message, None where there is no such message any more.

        Of one that was to merge it is another one once the job that ran then has ended without taking it in.
        """
        row = await self._database.fetch_one("job_of_message", tenant_id=tenant_id, id=message_id)
        return None if row is None else row["job_id"]

    async def question_before(self, tenant_id: str, job_id: UUID) -> Row | None:
        """Return the oldest question (`id`) of the turn (`job_id`) that a held turn waits for, None where none is."""
        return await self._database.fetch_one("question_before", tenant_id=tenant_id, job_id=job_id)

    async def reply(self, tenant_id: str, job_id: UUID) -> Row | None:
        """Return the newest message with which a settled turn was answered, None where it is not there."""
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
    """Return what is kept beside the text: of parts what they are, without their bytes, which are the job's."""
    parts = parts_of(inbound.submission.parts)
    if not parts:
        return inbound.content
    return {**(inbound.content or {}), "parts": [part.document() for part in parts]}


def erased(conversation_id: UUID) -> Erased:
    """Return the refusal for a message, or its answer, whose conversation was erased."""
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
"""Maximum number of rows of a conversation that a turn is shown; tokens bound what a model gets of them."""


def plan_wake(begun: Mapping[str, Any]) -> Wake:
    return Wake.plan(UUID(begun["id"]), name=begun["agent"], tenant=begun["tenant"])


class TurnReader:
    """Reads the turns of conversations for the jobs that are shown them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def history(self, tenant_id: str, conversation_id: UUID, job_id: UUID, before: int | None = None) -> Turns:
        """Return the rows of a conversation from before the turn of this job, newest first, at most 200.

        With `before`, return the rows from before that turn, whichever job asks. Every call of a tool is followed by
        its response, unless the bound lies between them. The result does not change while the job runs.
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
