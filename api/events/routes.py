"""Events as they happen: of a job until it has ended, and of everything that a tenant does.

A client that was cut off comes back with the id of the last event it has seen, to any API process, and gets the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from random import SystemRandom
from time import monotonic
from typing import Annotated, Any, Literal
from uuid import UUID

import orjson
from fastapi import Header, Query
from pydantic import WithJsonSchema
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from planq.api.access.guard import IS_HEAD
from planq.api.access.places import Kind
from planq.api.access.scopes import Caller, Who
from planq.api.deps import ConversationPath, JobPath, Services, Use, check_job_is_open_to, strict_router
from planq.api.http.exchange import HttpRefusal, error_responses
from planq.api.http.ids import conversation_id_of, job_id_of
from planq.api.http.protocol import ABORT_CONNECTION
from planq.api.streams.followers import (
    MEDIA_TYPE,
    Stream,
    StreamSubject,
    Topic,
    event_document,
    event_frame,
    retry_frame,
    text_frame,
)
from planq.api.streams.waiting import WAITED
from planq.shared.platform.errors import DatabaseUnavailable, capped
from planq.shared.subjects.events.position import BEGINNING, END, Position
from planq.shared.subjects.events.store import EventLog, LoggedEvent
from planq.shared.subjects.streams.contract import TextPiece

event_routes = strict_router("jobs")

_PAGE = 200
MAX_EVENTS = 1_000

_QUALITY = re.compile(r"[01](\.[0-9]{0,3})?")

_DRAW = SystemRandom()
_RETRY_MILLISECONDS = (500, 3_000)
"""When clients come back that a stopping process sends away: not all of them at once."""

_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}

_POSITION = WithJsonSchema({"type": "string", "pattern": "^[0-9]{1,18}-[0-9]{1,18}$"})
AfterQuery = Annotated[str | None, Query(description="The id of an event: begin with the one after it."), _POSITION]
LastHeader = Annotated[
    str | None,
    Header(alias="Last-Event-ID", description="The same, as browsers send it when they come back; it wins."),
    _POSITION,
]
Order = Annotated[Literal["asc", "desc"], Query(description="Of a page: the oldest events first, or the newest.")]
PageLimit = Annotated[int, Query(ge=1, le=MAX_EVENTS, description="Of a page: how many events it may hold.")]
FollowQuery = Annotated[bool, Query(description="`false` ends the stream after what there is now.")]

_FRAME: dict[str, Any] = {
    "description": "Each event of the stream; `data` holds JSON.",
    # Clients that generators make read no streams: to them it is anything.
    "if": {},
    "then": {
        "type": "object",
        "properties": {name: {"type": "string"} for name in ("id", "event", "data")},
        "required": ["event", "data"],
    },
}


_EVENT: dict[str, Any] = {
    "type": "object",
    "properties": {
        **{name: {"type": "string"} for name in ("id", "job_id", "kind", "created_at")},
        "sequence": {"type": "integer"},
        "data": {},
    },
    "required": ["id", "job_id", "sequence", "kind", "data", "created_at"],
}
_EVENTS: dict[str, Any] = {
    "description": "A part of the log; `next` is where the next page goes on, as `after`, or null.",
    "type": "object",
    "properties": {
        "events": {"type": "array", "items": _EVENT},
        "next": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["events", "next"],
}
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Server-sent events; docs/streams.md says which.",
        "content": {MEDIA_TYPE: {"schema": _FRAME}},
    }
}
_PAGED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Server-sent events; with `Accept: application/json` a page of the log.",
        "content": {**_STREAM[200]["content"], "application/json": {"schema": _EVENTS}},
    }
}
_OVER: dict[int | str, dict[str, Any]] = {
    204: {"description": "The job has ended, and the client has all its events: nothing is to come."}
}


@event_routes.get(
    "/jobs/{job_id}/events", response_class=Response, responses={**_PAGED, **_OVER, **error_responses(400, 404, 429)}
)
async def get_job_events(
    request: Request,
    job_id: JobPath,
    services: Use,
    who: Who,
    after: AfterQuery = None,
    last_event_id: LastHeader = None,
    follow: FollowQuery = True,
    limit: PageLimit = 100,
    order: Order = "asc",
    children: Annotated[bool, Query(description="Those of all jobs below it, too.")] = False,
) -> Response:
    """Follow a job: all its events from the first one on, and what its model says while it says it.

    After its end comes the job itself (`event: job`), and the stream ends. A client that asks again gets 204. With
    `Accept: application/json` the answer is a page of the events.
    """
    found = job_id_of(job_id)
    await check_job_is_open_to(who, services.requests, found)
    log = services.event_log
    position = await _position(request, log, after, last_event_id)
    view = await services.requests.view(who.tenant_id, found, only_ended=True)
    if _wants_page(request):
        first = partial(log.of_job, who.tenant_id, found, with_children=children)
        last = partial(log.last_of_job, who.tenant_id, found, with_children=children)
        return await _page(first, last, position, limit, order)
    may_be_over = view.has_ended and follow
    more = partial(log.has_more, who.tenant_id, found, with_children=children)
    if may_be_over and position is not None and not await more(position):
        return Response(status_code=204)
    topic = Topic(StreamSubject.TREE if children else StreamSubject.JOB, found)
    return await _opened(
        services,
        request,
        who,
        topic,
        position or BEGINNING,
        follow=follow,
        has_ended=view.has_ended,
        root=await log.root_of(who.tenant_id, found) if children else None,
    )


@event_routes.get(
    "/conversations/{conversation_id}/events",
    response_class=Response,
    responses={**_STREAM, **error_responses(400, 404, 429)},
    tags=["messages"],
)
async def get_conversation_events(
    request: Request,
    conversation_id: ConversationPath,
    services: Use,
    who: Who,
    after: AfterQuery = None,
    last_event_id: LastHeader = None,
    follow: FollowQuery = True,
    children: Annotated[
        bool, Query(description="With what is said in its turns and in all jobs below them.")
    ] = False,
) -> Response:
    """Follow a conversation: the events of all its turns and of the jobs below them, from the first one on.

    Texts come with `children`: keep one for each `job_id`. `job_submitted` names the job of each turn.
    """
    found = conversation_id_of(conversation_id)
    position = await _position(request, services.event_log, after, last_event_id)
    await services.conversations.get(who.tenant_id, found)
    topic = Topic(StreamSubject.TALK if children else StreamSubject.CONVERSATION, found)
    return await _opened(services, request, who, topic, position or BEGINNING, follow=follow)


@event_routes.get("/events", response_class=Response, responses={**_PAGED, **error_responses(400, 429)})
async def get_events(
    request: Request,
    services: Use,
    who: Who,
    after: AfterQuery = None,
    last_event_id: LastHeader = None,
    follow: FollowQuery = True,
    limit: PageLimit = 100,
    order: Order = "asc",
) -> Response:
    """Follow all jobs of the tenant, from now on or from an event on; texts are told of single jobs only.

    With `Accept: application/json` the answer is a page of the events, from the first one on.
    """
    position = await _position(request, services.event_log, after, last_event_id)
    if _wants_page(request):
        first = partial(services.event_log.of_tenant, who.tenant_id)
        last = partial(services.event_log.last_of_tenant, who.tenant_id)
        return await _page(first, last, position, limit, order)
    return await _opened(services, request, who, Topic(StreamSubject.TENANT, who.tenant_id), position, follow=follow)


def _wants_page(request: Request) -> bool:
    """Return whether a client names JSON and not, as much, a stream of events; `*/*` is content with the stream."""
    wanted = {MEDIA_TYPE: 0.0, "application/json": 0.0}
    for one in ",".join(request.headers.getlist("accept")).split(","):
        media, *parameters = (part.strip().lower() for part in one.split(";"))
        if media in wanted:
            given = next((text[2:] for text in parameters if text.startswith("q=")), "1")
            wanted[media] = float(given) if _QUALITY.fullmatch(given) else 0.0
    return wanted["application/json"] > wanted[MEDIA_TYPE]


async def _page(
    first: Callable[[Position, int], Awaitable[Sequence[LoggedEvent]]],
    last: Callable[[Position, int], Awaitable[Sequence[LoggedEvent]]],
    position: Position | None,
    limit: int,
    order: str,
) -> Response:
    """Answer with a page of the log, which `first` and `last` read from either end."""
    found = await (first(position or BEGINNING, limit + 1) if order == "asc" else last(position or END, limit + 1))
    following = found[limit - 1].position if len(found) > limit else None
    shown = [{"id": str(one.position), **event_document(one)} for one in found[:limit]]
    body = orjson.dumps({"events": shown, "next": None if following is None else str(following)})
    return Response(body, media_type="application/json", headers={"Cache-Control": "no-store", "Vary": "Accept"})


async def _position(request: Request, log: EventLog, after: str | None, last: str | None) -> Position | None:
    if len(request.headers.getlist("last-event-id")) > 1:
        raise HttpRefusal(400, "invalid_position", "expected one Last-Event-ID, found several; send one of them")
    name, text = ("after", after) if last is None else ("Last-Event-ID", last)
    if text is None:
        return None
    try:
        position = Position.parse(text)
    except ValueError as error:
        raise HttpRefusal(400, "invalid_position", f"{name}: {error}; found {capped(text, 80)!r}") from None
    if position.xid >= (await log.horizon()).following:
        raise HttpRefusal(
            400,
            "unknown_position",
            f"{name}: there is no event {position} yet; this database is another one, or was set back. Begin anew",
        )
    return position


async def _opened(
    services: Services,
    request: Request,
    who: Caller,
    topic: Topic,
    after: Position | None,
    *,
    follow: bool,
    has_ended: bool = False,
    root: UUID | None = None,
) -> Response:
    """Answer with the events of a topic; raises `HttpRefusal` (429) if the tenant has no place left."""
    stream = Stream(topic, who.tenant_id, request.scope.get(ABORT_CONNECTION, _nothing), root=root)
    follow = follow and not request.scope.get(IS_HEAD)
    headers: dict[str, str] = {}
    if follow:
        most = (await services.tenants.of(who.tenant_id)).config.max_streams
        headers = await services.places.take(Kind.STREAMS, who.tenant_id, most)
        try:
            await services.streams.join(stream, has_ended=has_ended)
        except BaseException:
            services.places.give(Kind.STREAMS, who.tenant_id)
            raise
    else:
        stream.joined = (await services.event_log.horizon()).position
    return EventStream(services, stream, after, headers, is_live=follow, has_ended=has_ended)


def _nothing() -> None:
    """Stands for the abort of a connection where the server has none."""


class EventStream(Response):
    """The answer that goes on: first what was before, then what the hub puts to the stream."""

    def __init__(
        self,
        services: Services,
        stream: Stream,
        after: Position | None,
        headers: Mapping[str, str],
        *,
        is_live: bool,
        has_ended: bool,
    ) -> None:
        """`after` None: nothing of what was before. A stream that `is_live` has joined; it leaves with the answer.

        Of a job that `has_ended` no text is shown: it has its answer. `headers` tell of the tenant's places.
        """
        super().__init__(headers={**_HEADERS, **headers}, media_type=MEDIA_TYPE)
        del self.headers["content-length"]
        self._services = services
        self._stream = stream
        self._after = stream.joined if after is None else after
        self._is_live = is_live
        self._has_ended = has_ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = monotonic()
        gone = asyncio.create_task(_gone(receive))
        gone.add_done_callback(lambda _: self._stream.cut())
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            with self._services.ongoing.under(scope, self._stream.cut):
                async for chunk in self._chunks():
                    if self._stream.is_cut:
                        break
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            gone.cancel()
            if self._is_live:
                self._services.streams.leave(self._stream)
                self._services.places.give(Kind.STREAMS, self._stream.tenant_id)
            scope[WAITED] = scope.get(WAITED, 0.0) + monotonic() - begun

    async def _chunks(self) -> AsyncIterator[bytes]:
        try:
            yield retry_frame(_DRAW.randint(*_RETRY_MILLISECONDS))
            async for events in self._past():
                yield b"".join(map(event_frame, events))
            if not self._is_live:
                return
            async for said in self._said():
                yield text_frame(said)
        except DatabaseUnavailable:
            return  # the client comes back for the rest
        while (chunk := await self._stream.next()) is not None:
            yield chunk

    async def _past(self) -> AsyncIterator[list[LoggedEvent]]:
        log, stream, after = self._services.event_log, self._stream, self._after
        # The pages of single jobs are read many at a time anyway.
        reading = (
            contextlib.nullcontext() if stream.topic.followed is StreamSubject.JOB else self._services.streams.reading
        )
        while after < stream.joined and not stream.is_cut:
            async with reading:
                if stream.topic.followed is StreamSubject.TENANT:
                    events = await log.of_tenant(stream.tenant_id, after, _PAGE, to=stream.joined)
                else:
                    assert isinstance(stream.topic.of, UUID)
                    page = (stream.tenant_id, stream.topic.of, after, _PAGE)
                    if stream.topic.followed in (StreamSubject.CONVERSATION, StreamSubject.TALK):
                        events = await log.of_conversation(*page, to=stream.joined)
                    else:
                        with_children = stream.topic.followed is StreamSubject.TREE
                        events = await log.of_job(*page, to=stream.joined, with_children=with_children)
            if events:
                yield list(events)
            after = events[-1].position if len(events) == _PAGE else stream.joined

    async def _said(self) -> AsyncIterator[TextPiece]:
        """Yield what models have said before the stream: of the job, of the turns, and of those below that run."""
        stream, log = self._stream, self._services.event_log
        followed, of = stream.topic
        if self._has_ended or not isinstance(of, UUID) or followed is StreamSubject.CONVERSATION:
            return
        parts = [] if followed is StreamSubject.TALK else [(of, stream.texts_below)]
        if followed is not StreamSubject.JOB:
            asked = log.unfinished_below if followed is StreamSubject.TREE else log.unfinished_in
            new, below = self._services.streams.show_below(stream, await asked(stream.tenant_id, of))
            parts += [(job_id, below) for job_id in new]
        for job_id, below in parts:
            text = await self._services.texts.live_text(stream.tenant_id, job_id, below)
            if text is not None:
                yield TextPiece(text.epoch, stream.tenant_id, text.stage, 0, text.text)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
