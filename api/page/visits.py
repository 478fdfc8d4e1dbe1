"""The way in: `/` leads to the first page that a key opens, `/ui/login` begins a session, `/ui/logout` ends it."""

from __future__ import annotations

from time import time
from typing import Annotated

from fastapi import Query
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from planq.api.access.callers import LOCAL, Caller
from planq.api.access.guard import LOGIN
from planq.api.access.sessions import UI
from planq.api.deps import Services, Use
from planq.api.http.exchange import HttpRefusal
from planq.api.page.rendering import assets, home_of, is_open, keep, page, session_of
from planq.api.page.route import fields_of, page_router, seen
from planq.shared.platform.errors import NotFound, Unauthorized

visit_routes = page_router()

_KEPT = "public, max-age=31536000, immutable"


@visit_routes.get("/")
@visit_routes.get(UI)
async def get_start(request: Request, services: Use) -> Response:
    return seen(home_of(await services.access.visitor(session_of(request))))


@visit_routes.get(f"{UI}/assets/{{name}}")
async def get_asset(name: str) -> Response:
    """Return a file that pages load."""
    asset = assets().get(name)
    if asset is None:
        raise NotFound("there is no such file; load the page again")
    return Response(asset.body, media_type=asset.media_type, headers={"Cache-Control": _KEPT})


@visit_routes.get(LOGIN)
async def get_login(request: Request, services: Use, next: Annotated[str, Query()] = "") -> Response:
    if not services.access.is_required:
        return seen(home_of(LOCAL))
    return page(request, "login.html", next=next, refused=None)


@visit_routes.post(LOGIN)
async def post_login(request: Request, services: Use) -> Response:
    """Begin a session with a key, and go on to where the visitor wanted to."""
    fields = fields_of(request)
    try:
        digest = await services.access.digest_of(fields.get("key", "").strip())
    except (Unauthorized, HttpRefusal) as error:
        message = error.message if isinstance(error, Unauthorized) else str(error.detail)
        return page(request, "login.html", status=403, next=fields.get("next", ""), refused=message)
    await _end(services, request)
    session = services.sessions.begin(digest, time())
    response = RedirectResponse(_way_on(fields.get("next", ""), await services.access.visitor(session)), 303)
    keep(request, response, session)
    return response


@visit_routes.post(f"{UI}/logout")
async def post_logout(request: Request, services: Use) -> Response:
    """End the session, wherever its cookie is."""
    await _end(services, request)
    response = seen("/login")
    keep(request, response, None)
    return response


async def _end(services: Services, request: Request) -> None:
    session = session_of(request)
    if session is not None and session.digest is not None:
        await services.ended_sessions.end(session.nonce, services.sessions.last_end(session))


def _way_on(wanted: str, who: Caller) -> str:
    """Return where to go after the login: only to one of our own pages, and to one that the key opens."""
    is_ours = wanted.startswith(f"{UI}/") and "\\" not in wanted and "//" not in wanted
    path = wanted.partition("?")[0].partition("#")[0].removeprefix(UI)
    return wanted if is_ours and is_open(who, path) else f"{UI}{home_of(who)}"
