"""Conversations: the list, and a thread with the jobs of its turns; closed and erased where the key may."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from planq.api.access.callers import Who
from planq.api.access.scopes import opening_of
from planq.api.conversations.page.chat import ROWS
from planq.api.conversations.page.turns import turns_in
from planq.api.conversations.routes import (
    ConversationChange,
    change_conversation,
    erase_conversation,
    get_conversation,
    get_conversations,
    get_messages,
)
from planq.api.deps import Use
from planq.api.page.rendering import is_open, page
from planq.api.page.route import body_of, fields_of, page_router, seen, values_of

conversation_page_routes = page_router()

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
    """Show the conversations, newest first."""
    listed = values_of(
        await get_conversations(services, who, channel=channel or None, thread=None, limit=_PAGE, cursor=cursor)
    )
    return page(request, "conversations.html", listed=listed, channel=channel, may_write=is_open(who, "/chat"))


@conversation_page_routes.get("/ui/conversations/{conversation_id}")
async def conversation_page(
    request: Request, conversation_id: str, services: Use, who: Who, cursor: _Cursor = None
) -> Response:
    """Show what stands in a conversation, a page of it at a time, the newest page first."""
    talk = values_of(await get_conversation(conversation_id, services, who))
    rows = values_of(await get_messages(conversation_id, services, who, limit=ROWS, cursor=cursor))
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


@conversation_page_routes.post("/ui/conversations/{conversation_id}/erase")
async def post_erasure(conversation_id: str, services: Use, who: Who) -> Response:
    await erase_conversation(conversation_id, services, who)
    return seen(f"/conversations/{conversation_id}")


@conversation_page_routes.post("/ui/conversations/{conversation_id}/close")
async def post_closing(request: Request, conversation_id: str, services: Use, who: Who) -> Response:
    body = await body_of(ConversationChange, {"is_closed": "open" not in fields_of(request)})
    await change_conversation(conversation_id, body, services, who)
    return seen(f"/conversations/{conversation_id}")
