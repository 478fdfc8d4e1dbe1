"""From a template to an answer: who looks, where they may go, and the token that their forms carry."""

from __future__ import annotations

import gzip
from functools import cache
from hashlib import sha256
from pathlib import Path
from time import time
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import Response

from planq.api.access.scopes import CALLER, Caller, opening_of
from planq.api.access.sessions import LIFETIME_SECONDS, SESSION, UI, PageSession, Sessions
from planq.api.http.prefix import below_prefix
from planq.api.page import words
from planq.api.page.trees import marks_of, tree
from planq.shared.platform.version import VERSION
from planq.shared.subjects.jobs.waiting import shown_seconds

_GROUPS = (
    (("Jobs", "/jobs"), ("Inbox", "/elicitations"), ("Chat", "/chat")),
    (("Conversations", "/conversations"), ("Batches", "/batches"), ("Schedules", "/schedules")),
    (("Agents", "/agents"), ("Tools", "/tools"), ("Webhooks", "/endpoints")),
    (("Workers", "/workers"), ("Insights", "/insights"), ("Costs", "/costs"), ("Tenants", "/tenants")),
    (("Manual", "/manual"),),
)
"""The pages that have a place in the navigation: of work, of more work at once, of its parts, of how it fares."""

_HOMES = ("/jobs", "/chat", "/tenants", "/elicitations")
"""Where a visit begins: on the first that the key opens; each key opens the last."""


_PACKED_FROM_BYTES = 4 * 1024
"""Longer pages are sent packed, one of 500 steps to an eighth: it is loaded anew each second.

That a length tells what a page holds helps nobody to guess the token of its forms: the requests of other sites come
without the session."""


@cache
def _environment() -> Environment:
    templates = Environment(
        loader=FileSystemLoader(sorted(Path(__file__).resolve().parents[1].glob("*/templates"))),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shown = (words.job_state, words.batch_state, words.step_state, words.status_state, words.took, tree, marks_of)
    templates.globals.update({one.__name__: one for one in shown}, url=page_url, asset=asset_url)
    texts = (words.inert, words.line, words.pretty, words.when, words.age, words.cost, words.size, words.dollars)
    templates.filters.update({one.__name__: one for one in (*texts, words.markdown)}, seconds=shown_seconds)
    return templates


def page_url(path: str) -> str:
    """Return the address of a page for the present request, from its path below `/ui`."""
    return below_prefix(f"{UI}{path}")


def session_of(request: Request) -> PageSession | None:
    session: PageSession | None = request.scope.get(SESSION)
    return session


def sessions_of(request: Request) -> Sessions:
    sessions: Sessions = request.app.state.services.sessions
    return sessions


def page(request: Request, template: str, *, status: int = 200, **shown: Any) -> Response:
    """Return a page; it begins a session where there is none, for the forms need one, and renews an old one."""
    sessions, now = sessions_of(request), time()
    given = session_of(request)
    session = given or sessions.begin(None, now)
    who: Caller | None = request.scope.get(CALLER)
    text = (
        _environment()
        .get_template(template)
        .render(
            token=sessions.token(session),
            who=who,
            has_session=session.digest is not None,
            sections=[] if who is None else [one for group in _GROUPS for one in group if is_open(who, one[1])],
            section_starts=[] if who is None else _beginnings(who),
            home=None if who is None else home_of(who),
            path=request.scope["path"].removeprefix(UI),
            version=VERSION,
            **shown,
        )
    )
    body = text.encode("utf-8", "replace")
    is_packed = len(body) >= _PACKED_FROM_BYTES and "gzip" in request.headers.get("accept-encoding", "")
    response = Response(gzip.compress(body, 1) if is_packed else body, status, media_type="text/html")
    response.headers["Vary"] = "Accept-Encoding"
    if is_packed:
        response.headers["Content-Encoding"] = "gzip"
    response.headers["Cache-Control"] = "no-store"
    renewed = sessions.renewed(session, now)
    if given is None or (given.ends_at - now < LIFETIME_SECONDS / 2 and renewed.ends_at > given.ends_at):
        keep(request, response, renewed)
    return response


def _beginnings(who: Caller) -> list[str]:
    seen = [[path for _, path in group if is_open(who, path)] for group in _GROUPS]
    return [paths[0] for paths in seen if paths][1:]


def is_open(who: Caller, path: str) -> bool:
    return not opening_of("GET", path).scopes.isdisjoint(who.scopes)


def home_of(who: Caller) -> str:
    return next(path for path in _HOMES if is_open(who, path))


def keep(request: Request, response: Response, session: PageSession | None) -> None:
    """Let the browser keep a session; None lets it forget the one that it has."""
    sessions, is_secure = sessions_of(request), request.scope["scheme"] == "https"
    response.set_cookie(
        sessions.cookie_name(below_prefix(""), is_secure=is_secure),
        "" if session is None else sessions.text(session),
        max_age=0 if session is None else LIFETIME_SECONDS,
        path=below_prefix("/"),
        secure=is_secure,
        httponly=True,
        samesite="strict",
    )


_FOLDER = Path(__file__).parent / "assets"
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


class Asset(NamedTuple):
    """One file as it is served."""

    media_type: str
    body: bytes


@cache
def assets() -> dict[str, Asset]:
    """Return the served files by name. The name contains a digest, so a browser may keep the file."""
    paths = (path for path in sorted(_FOLDER.iterdir()) if path.suffix in _TYPES)
    return {_served_name(path): Asset(_TYPES[path.suffix], path.read_bytes()) for path in paths}


@cache
def _served_name(path: Path) -> str:
    return f"{path.stem}.{sha256(path.read_bytes()).hexdigest()[:16]}{path.suffix}"


def asset_url(name: str) -> str:
    """Return the address of a file for the present request."""
    return below_prefix(f"{UI}/assets/{_served_name(_FOLDER / name)}")
