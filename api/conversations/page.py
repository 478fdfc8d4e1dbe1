"""Pages of conversations: the chat, the list, and one thread with its jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from planq.api.access.scopes import Caller, Who, admitted, caller_of, opening_of
from planq.api.agents.routes import list_agents
from planq.api.compat.messages import send_message
from planq.api.conversations.routes import (
    ConversationChange,
    ConversationRequest,
    begin_conversation,
    change_conversation,
    erase_conversation,
    get_conversation,
    list_conversations,
    list_messages,
)
from planq.api.deps import Services, Use, check_job_is_open_to
from planq.api.http.exchange import HttpRefusal
from planq.api.http.ids import job_id_of
from planq.api.intake.messages import InboundRequest
from planq.api.jobs.page.job import PAGE_CHANNEL, questions_of
from planq.api.jobs.page.listing import submitted
from planq.api.jobs.routes.jobs import get_job
from planq.api.operations.routes import get_why
from planq.api.page.rendering import is_open, page
from planq.api.page.route import add_acts, body_of, fields_of, json_request, page_router, seen, values_of
from planq.shared.agentic.turns.messages import Direction, MessageKind, MessageStatus
from planq.shared.kernel.states import JobStatus, Strategy
from planq.shared.platform.errors import NotFound
from planq.shared.subjects.conversations.rules import words_of


def turns_in(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the turns of rows that came newest first, in the order in which they began; what waits comes last."""
    found: dict[str, dict[str, Any]] = {}
    for row in reversed(rows):
        key = row["job_id"] or row["id"]
        turn = found.setdefault(
            key, {"id": key, "job_id": row["job_id"], "at": None, "said": [], "calls": [], "replies": []}
        )
        if row["turn"] is not None:
            turn["at"] = row["turn"]
        _add(turn, row)
    last = float("inf")
    return sorted(found.values(), key=lambda turn: last if turn["at"] is None else float(turn["at"]))


def _add(turn: dict[str, Any], row: Mapping[str, Any]) -> None:
    content = row["content"] if isinstance(row["content"], Mapping) else {}
    is_erased = row["status"] == MessageStatus.ERASED
    if row["kind"] == MessageKind.TOOL_CALL:
        turn["calls"].append({"id": content.get("id"), "name": content.get("name") or "a tool", **_called(content)})
    elif row["kind"] == MessageKind.TOOL_RESPONSE:
        call = next((one for one in turn["calls"] if one["id"] == content.get("id")), None)
        if call is not None:
            call |= {
                "output": content.get("output", content.get("preview")),
                "error": content.get("error"),
                "is_over": True,
            }
    else:
        said = "said" if row["direction"] == Direction.INBOUND else "replies"
        turn[said].append(
            {
                "text": "" if is_erased else words_of(row["text"], content),
                "by": row["user_id"],
                "is_erased": is_erased,
                "created_at": row["created_at"],
                "is_answer": row["answered_question_id"] is not None,
            }
        )


def _called(content: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "arguments": content.get("arguments", content.get("preview")),
        "output": None,
        "error": None,
        "is_over": False,
    }


conversation_page_routes = page_router()
add_acts(conversation_page_routes, "/conversations/{conversation_id}", erase=erase_conversation)

ROWS = 60
"""So many rows of a conversation stand on a page; an agent that calls much has a few turns there."""

_RECENT = 10
_MOST_OPEN = 5
"""Of so many turns that have not been answered the job is looked at: the one that runs, and some that wait."""

_NOBODY = "web"
"""Who speaks where a visitor names nobody."""

_CHANNELS = (PAGE_CHANNEL, "api")
"""Conversations of other channels are read here and written there."""

_Model = Annotated[str, Query(max_length=200)]


@conversation_page_routes.get("/ui/chat")
async def show_beginning(
    request: Request, services: Use, who: Who, agent: Annotated[str, Query(max_length=139)] = "", model: _Model = ""
) -> Response:
    sees_agents = is_open(who, "/agents")
    agents = values_of(await list_agents(services, who))["items"] if sees_agents else []
    talks = values_of(await list_conversations(services, who, limit=_RECENT))["items"]
    return page(
        request,
        "chat.html",
        agents=agents,
        chosen={"agent": agent, "model": model},
        talks=[one for one in talks if one["channel"] in _CHANNELS],
        may_choose=sees_agents,
        person=who.key_name or _NOBODY,
    )


@conversation_page_routes.post("/ui/chat")
async def post_beginning(request: Request, services: Use, who: Who) -> Response:
    fields = fields_of(request)
    channels = (await services.tenants.of(who.tenant_id)).config.channels
    sent: dict[str, Any] = {"channel": PAGE_CHANNEL if PAGE_CHANNEL in channels else channels[0]}
    if fields.get("agent"):
        sent["agent"] = fields["agent"]
    _check_text(fields)
    made = values_of(await begin_conversation(await body_of(ConversationRequest, sent), services, who))
    return await _said(request, services, who, made, fields)


@conversation_page_routes.get("/ui/chat/{conversation_id}")
async def show_talk(request: Request, conversation_id: str, services: Use, who: Who, model: _Model = "") -> Response:
    talk = values_of(await get_conversation(conversation_id, services, who))
    rows = values_of(await list_messages(conversation_id, services, who, limit=ROWS))
    turns = turns_in(rows["items"])
    active = talk["active_job_id"]
    unanswered = [turn for turn in turns if turn["job_id"] and not turn["replies"]][:_MOST_OPEN]
    for turn in unanswered:
        turn["job"] = await _job(request, services, who, turn["job_id"])
    running = next((turn["job"] for turn in unanswered if turn["job_id"] == active), None)
    return page(
        request,
        "talk.html",
        talk=talk,
        turns=turns,
        has_older=rows["next_cursor"] is not None,
        model=model,
        person=_person(turns, who),
        running=running,
        questions=await questions_of(services, who, running) if running else [],
        last=await _last(request, services, who, turns, running),
        may_write=not talk["is_closed"] and talk["channel"] in _CHANNELS,
        sees_jobs=is_open(who, "/jobs/x"),
    )


@conversation_page_routes.post("/ui/chat/{conversation_id}")
async def post_words(request: Request, conversation_id: str, services: Use, who: Who) -> Response:
    fields = fields_of(request)
    _check_text(fields)
    talk = values_of(await get_conversation(conversation_id, services, who))
    return await _said(request, services, who, talk, fields)


def _check_text(fields: dict[str, str]) -> None:
    if not fields.get("text", "").strip():
        raise HttpRefusal(422, "invalid_request", "text: expected a message that says something, found none")


async def _said(
    request: Request, services: Services, who: Caller, talk: dict[str, Any], fields: dict[str, str]
) -> Response:
    person, model = fields.get("person", "").strip() or _NOBODY, fields.get("model", "").strip()
    if model:
        admitted(who, "POST", "/jobs")
        job = {"input": fields["text"], "model": model, "strategy": Strategy.REACT.value, "user": person}
        await submitted(request, services, {**job, "conversation_id": talk["id"]})
    else:
        sent = {
            "tenant_id": who.tenant_id,
            "channel": talk["channel"],
            "from": {"external_id": person},
            "content": {"text": fields["text"]},
            "conversation_id": talk["id"],
        }
        body = await body_of(InboundRequest, sent)
        answer = await send_message(
            json_request(request, sent), body, services, caller_of(request.scope), async_processing=True
        )
        if answer.status_code >= 400:
            problem = values_of(answer)
            raise HttpRefusal(answer.status_code, problem["code"], problem["detail"])
    return seen(f"/chat/{talk['id']}" + (f"?{urlencode({'model': model})}" if model else ""))


async def _job(request: Request, services: Services, who: Caller, job_id: str) -> dict[str, Any] | None:
    try:
        await check_job_is_open_to(who, services.requests, job_id_of(job_id))
        job: dict[str, Any] = values_of(await get_job(request, job_id, services))
        why = values_of(await get_why(job_id, services, who))
    except NotFound:
        return None
    return {**job, "why": why["sentence"], "is_over": JobStatus(job["status"]).is_terminal}


async def _last(
    request: Request, services: Services, who: Caller, turns: list[dict[str, Any]], running: dict[str, Any] | None
) -> dict[str, Any] | None:
    if running is not None:
        return running
    newest = next((turn["job_id"] for turn in reversed(turns) if turn["job_id"]), None)
    return None if newest is None else await _job(request, services, who, newest)


def _person(turns: list[dict[str, Any]], who: Caller) -> str:
    last = next((turn["said"][-1]["by"] for turn in reversed(turns) if turn["said"]), "")
    return last or who.key_name or _NOBODY


_PAGE = 30
_Cursor = Annotated[str | None, Query()]


@conversation_page_routes.get("/ui/conversations")
async def conversations_page(
    request: Request,
    services: Use,
    who: Who,
    channel: Annotated[str, Query(max_length=63)] = "",
    cursor: _Cursor = None,
) -> Response:
    listed = values_of(
        await list_conversations(services, who, channel=channel or None, thread=None, limit=_PAGE, cursor=cursor)
    )
    return page(request, "conversations.html", listed=listed, channel=channel, may_write=is_open(who, "/chat"))


@conversation_page_routes.get("/ui/conversations/{conversation_id}")
async def conversation_page(
    request: Request, conversation_id: str, services: Use, who: Who, cursor: _Cursor = None
) -> Response:
    talk = values_of(await get_conversation(conversation_id, services, who))
    rows = values_of(await list_messages(conversation_id, services, who, limit=ROWS, cursor=cursor))
    return page(
        request,
        "conversation.html",
        talk=talk,
        turns=turns_in(rows["items"]),
        older=rows["next_cursor"],
        is_newest=cursor is None,
        may_write=is_open(who, "/chat"),
        may_erase=not opening_of("DELETE", "/conversations/x").scopes.isdisjoint(who.scopes),
        sees_jobs=is_open(who, "/jobs/x"),
    )


@conversation_page_routes.post("/ui/conversations/{conversation_id}/close")
async def post_closing(request: Request, conversation_id: str, services: Use, who: Who) -> Response:
    body = await body_of(ConversationChange, {"is_closed": "open" not in fields_of(request)})
    await change_conversation(conversation_id, body, services, who)
    return seen(f"/conversations/{conversation_id}")
