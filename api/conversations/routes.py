"""Conversations: begin, list, look, their messages; set the policy and the agent, close, erase."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import Query
from pydantic import Field
from starlette.responses import Response

from planq.api.access.scopes import Who
from planq.api.deps import ConversationPath, JobPath, Use, strict_router
from planq.api.http.exchange import JsonResponse, error_responses
from planq.api.http.ids import (
    CursorQuery,
    Limit,
    conversation_id_of,
    cursor_bytes,
    cursor_of,
    id_of_cursor,
    job_id_of,
    page_of,
)
from planq.api.intake.assignments import AgentHeader, Assignments, named_agent
from planq.api.schemas import Answer, Id, PageDocument, RequestBody, Time
from planq.shared.agentic.agents.checks import NamedAgent, read_named_agent
from planq.shared.agentic.models.vocabulary import count_tokens
from planq.shared.agentic.turns.messages import Direction, MessageKind, MessageStatus, Policy
from planq.shared.platform.database import Row
from planq.shared.platform.errors import Conflict, capped
from planq.shared.platform.values.defects import Defect, body_refused
from planq.shared.subjects.conversations.inbound import unknown_channel
from planq.shared.subjects.conversations.rules import outbound_text
from planq.shared.subjects.conversations.store import ConversationStore

conversation_routes = strict_router("messages")

_NO_NUL = r"^[^\x00]*$"
_Policy = Literal["queue", "reject", "interrupt", "merge"] | None
_Agent = Annotated[str | None, Field(min_length=1, max_length=139, pattern=_NO_NUL)]


class ConversationDocument(Answer):
    """A thread of one channel, and what was used in it."""

    id: Id
    channel: str
    thread: str
    policy: Policy | None = Field(
        description="What becomes of a message that comes while a turn is active; null as the tenant's says."
    )
    is_closed: bool = Field(description="A closed one takes no messages.")
    agent: str | None = Field(
        description="The agent of its turns, unless a message names another one; null: that of its channel or tenant."
    )
    follow_agent: bool = Field(description="Its turns have the newest versions of agents.")
    agent_versions: dict[str, int] = Field(
        description="By agent the version with which its turns began, and which they keep."
    )
    active_job_id: Id | None = Field(description="The turn that has begun; others wait for its end.")
    messages_in: int
    messages_out: int
    input_tokens: int = Field(description="Of all turns that have ended, with the jobs below them; so is the cost.")
    output_tokens: int
    cost_usd: float | None
    last_inbound_at: Time | None
    last_outbound_at: Time | None
    created_at: Time


class ConversationPage(PageDocument[ConversationDocument]):
    """Conversations, newest first; `next_cursor` is null on the last page."""


class ConversationMessage(Answer):
    """One row of a conversation: words, or the call of a tool or its response, which share the call's id."""

    id: Id | None = Field(description="Null for rows of a job outside conversations.")
    conversation_id: Id | None
    sequence: int = Field(description="Its place among the rows, in the order in which they were stored.")
    turn: int | None = Field(description="The turn that it is of; null while that has not begun.")
    kind: MessageKind
    direction: Direction
    status: MessageStatus = Field(
        description="`received` until its job has ended, `merging` while it waits for the job that runs, `done`, or "
        "`erased`."
    )
    job_id: Id | None = Field(description="Its job, which need not be there any more.")
    user_id: str
    source_id: str | None = Field(description="The channel's own id of the message.")
    text: str
    tokens: int = Field(description="How many tokens the stored text has, counted with the encoding cl100k_base.")
    content: Any = Field(
        description="Of a call `{id, name, arguments}`, of its response `{id, name, output}` or `{id, name, error}`; "
        "long arguments and a long output have a field `preview` instead, a shortened text; of a message what came "
        "with its text."
    )
    metadata: Any
    created_at: Time
    answered_question_id: Id | None = Field(description="The question (`/elicitations/{id}`) that it answered.")


class ConversationMessagePage(PageDocument[ConversationMessage]):
    """Rows of a conversation, newest first; `next_cursor` is null on the last page."""


class JobMessages(Answer):
    """The rows of one job, oldest first."""

    items: list[ConversationMessage]


class ConversationChange(RequestBody):
    """What to change; an absent field stays as it is."""

    policy: _Policy = Field(default=None, description="Null: as the tenant's configuration says.")
    agent: _Agent = Field(default=None, description="`name` or `name@version`; null: as channel or tenant says.")
    follow_agent: bool = Field(default=False, description="Let its turns have the newest versions of agents.")
    is_closed: bool = Field(default=False, description="A closed one takes no messages.")


class ConversationRequest(RequestBody):
    """A conversation that begins without a message."""

    channel: str = Field(default="api", max_length=63, description="One of the tenant's channels.")
    thread: Annotated[str | None, Field(min_length=1, max_length=128, pattern=_NO_NUL)] = Field(
        default=None, description="The channel's name of it; its own id where there is none."
    )
    policy: _Policy = Field(default=None, description="Null: as the tenant's configuration says.")
    agent: _Agent = Field(
        default=None,
        description="The agent of its turns, `name` or `name@version`; null: as channel or tenant says. "
        "`metadata.agent` means the same.",
    )
    follow_agent: bool = Field(default=False, description="Let its turns have the newest versions of agents.")
    metadata: dict[str, Any] | None = Field(default=None, description="Read for `agent`, and not kept.")


@conversation_routes.post(
    "/conversations",
    status_code=201,
    response_model=ConversationDocument,
    responses=error_responses(400, 404, 409, 413, 415),
)
async def begin_conversation(
    body: ConversationRequest, services: Use, who: Who, x_agent_schema_name: AgentHeader = None
) -> Response:
    """Begin a conversation without a message, as the thread of a channel or with its own id as thread."""
    config = (await services.tenants.of(who.tenant_id)).config
    if body.channel not in config.channels:
        raise body_refused([Defect("channel", "", unknown_channel(body.channel, config.channels))])
    agent = named_agent(body.agent, x_agent_schema_name, body.metadata)
    await _check_agent(services.assignments, who, agent, body.follow_agent)
    policy = None if body.policy is None else Policy(body.policy)
    made = await services.conversations.begin(
        who.tenant_id, body.channel, body.thread, policy=policy, agent=agent, follows_agent=body.follow_agent
    )
    if made is None:
        raise Conflict(
            f"the channel {body.channel} has a conversation with the thread {capped(body.thread or '', 80)!r}; "
            "expected another thread, or `PATCH` of that conversation: GET /conversations?channel=…&thread=… finds it"
        )
    answer = await _shown(services.conversations, who, made)
    answer.status_code = 201
    answer.headers["Location"] = f"/conversations/{made}"
    return answer


async def _check_agent(assignments: Assignments, who: Who, agent: NamedAgent | None, follows: bool) -> None:
    if agent is None:
        return
    await assignments.pinned(who.tenant_id, agent)
    if follows and agent.version is not None:
        message = f"the newest version is followed; expected an agent without a version, found {agent}"
        raise body_refused([Defect("follow_agent", "", message)])


@conversation_routes.get("/conversations", response_model=ConversationPage)
async def list_conversations(
    services: Use,
    who: Who,
    channel: Annotated[
        str | None, Query(max_length=63, pattern=_NO_NUL, description="Only those of this channel.")
    ] = None,
    thread: Annotated[
        str | None, Query(max_length=512, pattern=_NO_NUL, description="Only the one of this thread.")
    ] = None,
    limit: Limit = 20,
    cursor: CursorQuery = None,
) -> Response:
    """List conversations, newest first."""
    below = id_of_cursor(cursor)
    rows = await services.conversations.page(
        who.tenant_id, channel=channel, thread=thread, below=below, limit=limit + 1
    )
    return page_of(rows, limit, _conversation)


@conversation_routes.get(
    "/conversations/{conversation_id}", response_model=ConversationDocument, responses=error_responses(404)
)
async def get_conversation(conversation_id: ConversationPath, services: Use, who: Who) -> Response:
    """Return a conversation."""
    return await _shown(services.conversations, who, conversation_id_of(conversation_id))


@conversation_routes.get(
    "/conversations/{conversation_id}/messages",
    response_model=ConversationMessagePage,
    responses=error_responses(404),
)
async def list_messages(
    conversation_id: ConversationPath, services: Use, who: Who, limit: Limit = 20, cursor: CursorQuery = None
) -> Response:
    """List what stands in a conversation, newest first: messages, calls of tools and their responses.

    What a turn did is written down when it has ended; `turn` says in which order turns began.
    """
    found = conversation_id_of(conversation_id)
    below = None if cursor is None else int.from_bytes(cursor_bytes(cursor, 16)[8:], "big", signed=True)
    await services.conversations.get(who.tenant_id, found)
    rows = await services.conversations.messages(who.tenant_id, found, below=below, limit=limit + 1)
    # In a thread, because counting tokens takes a moment, and the first time a second.
    return await asyncio.to_thread(
        page_of, rows, limit, _message, lambda row: cursor_of(row["sequence"].to_bytes(16, "big"))
    )


@conversation_routes.patch(
    "/conversations/{conversation_id}",
    response_model=ConversationDocument,
    responses=error_responses(400, 404, 413, 415),
)
async def change_conversation(
    conversation_id: ConversationPath, body: ConversationChange, services: Use, who: Who
) -> Response:
    """Set what becomes of a message that comes while a turn is active, the agent, or close or open the conversation.

    Closing lets what has begun or waits go on to its end. Turns that have begun or wait keep their agent.
    """
    found = conversation_id_of(conversation_id)
    given = body.model_dump(include=body.model_fields_set)
    row = await services.conversations.get(who.tenant_id, found)
    now = {**row, "follow_agent": row["follows_agent"], **given}
    agent = None if now["agent"] is None else read_named_agent(now["agent"])
    if "agent" in given:
        await _check_agent(services.assignments, who, agent, now["follow_agent"])
    await services.conversations.change(
        who.tenant_id,
        found,
        policy=now["policy"],
        is_closed=now["is_closed"],
        agent=agent,
        follows_agent=now["follow_agent"],
    )
    return await _shown(services.conversations, who, found)


@conversation_routes.delete(
    "/conversations/{conversation_id}", response_model=ConversationDocument, responses=error_responses(404)
)
async def erase_conversation(conversation_id: ConversationPath, services: Use, who: Who) -> Response:
    """Erase all that was said and done in a conversation, and return what is left: its counters.

    Its unfinished turns are cancelled. Its jobs stay until retention removes them.
    """
    found = conversation_id_of(conversation_id)
    services.endings.announce(await services.conversations.erase(who.tenant_id, found))
    return await _shown(services.conversations, who, found)


@conversation_routes.get(
    "/jobs/{job_id}/messages", response_model=JobMessages, responses=error_responses(404), tags=["jobs"]
)
async def list_messages_of_job(job_id: JobPath, services: Use, who: Who) -> Response:
    """List the messages of a job, oldest first: those of its turn, else the call of its chained tool."""
    found = job_id_of(job_id)
    await services.requests.view(who.tenant_id, found, only_ended=True)
    rows = await services.conversations.messages_of_job(who.tenant_id, found)
    return JsonResponse({"items": await asyncio.to_thread(lambda: [_message(row) for row in rows])})


async def _shown(conversations: ConversationStore, who: Who, conversation_id: UUID) -> Response:
    return JsonResponse(_conversation(await conversations.get(who.tenant_id, conversation_id)))


def _conversation(row: Row) -> dict[str, Any]:
    versions = row["agent_versions"] or {}
    return ConversationDocument.of(row, follow_agent=row["follows_agent"], agent_versions=versions)


def _message(row: Row) -> dict[str, Any]:
    text = outbound_text(row["text"], row["metadata"])
    return ConversationMessage.of(row, text=text, tokens=count_tokens(row["text"]))
