"""The way in: `/` leads to the jobs, `/ui/login` makes a session of a key, `/ui/logout` ends it."""

from __future__ import annotations

from time import time
from typing import Annotated

from fastapi import Query
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from planq.api.access.guard import LOGIN
from planq.api.access.sessions import UI
from planq.api.deps import Use
from planq.api.http.exchange import HttpRefusal
from planq.api.page.frame.assets import assets
from planq.api.page.frame.rendering import keep, page
from planq.api.page.frame.route import fields_of, page_router, seen
from planq.shared.domain.errors import NotFound, Unauthorized

visit_routes = page_router()

_KEPT = "public, max-age=31536000, immutable"


@visit_routes.get("/")
@visit_routes.get(UI)
async def get_start() -> Response:
    """Lead to the jobs."""
    return seen("/jobs")


@visit_routes.get(f"{UI}/assets/{{name}}")
async def get_asset(name: str) -> Response:
    """Return a file that pages load."""
    asset = assets().get(name)
    if asset is None:
        raise NotFound("there is no such file; load the page again")
    return Response(asset.body, media_type=asset.media_type, headers={"Cache-Control": _KEPT})


@visit_routes.get(LOGIN)
async def get_login(request: Request, services: Use, next: Annotated[str, Query()] = "") -> Response:
    """Show the form that asks for a key."""
    if not services.access.is_required:
        return seen("/jobs")
    return page(request, "login.html", next=next, refused=None)


@visit_routes.post(LOGIN)
async def post_login(request: Request, services: Use) -> Response:
    """Begin a session with a key, and go on to where the visitor wanted to."""
    fields = fields_of(request)
    try:
        digest = await services.access.digest_of(fields.get("key", "").strip())
    except (Unauthorized, HttpRefusal) as error:
        told = error.message if isinstance(error, Unauthorized) else str(error.detail)
        return page(request, "login.html", status=403, next=fields.get("next", ""), refused=told)
    response = RedirectResponse(_way_on(fields.get("next", "")), 303)
    keep(request, response, services.sessions.begin(digest, time()))
    return response


@visit_routes.post(f"{UI}/logout")
async def post_logout(request: Request) -> Response:
    """End the session in this browser."""
    response = seen("/login")
    keep(request, response, None)
    return response


def _way_on(wanted: str) -> str:
    """Return where to go after the login: only to one of our own pages."""
    is_ours = wanted.startswith(f"{UI}/") and "\\" not in wanted and "//" not in wanted
    return wanted if is_ours else f"{UI}/jobs"
