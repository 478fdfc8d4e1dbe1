"""The guard of the API: it checks host, origin, key, media type and size before a request is read.

Without keys, only this machine may use the API. A web page in a visitor's browser cannot: the Host header is checked
(DNS rebinding), a foreign Origin is refused, there are no CORS headers, and forms cannot send the media types of
bodies.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from time import perf_counter, time
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from planq.api.access.scopes import CALLER, Access, admitted
from planq.api.access.sessions import SESSION, UI, Sessions, cookie_of, is_page
from planq.api.http import bounds
from planq.api.http.exchange import GUARDING_FIELDS, PAGE_FIELDS, HttpRefusal, error_response
from planq.api.http.prefix import Prefix, below_prefix
from planq.api.metrics.exposition import Metrics, route_of
from planq.api.streams.waiting import WAITED
from planq.shared.agentic.turns.channel_kinds import KINDS
from planq.shared.platform.errors import PlanqError, TooLarge, capped
from planq.shared.settings.settings import Settings

FIELDS = "planq.fields"
"""Key of the scope: the header fields of a request, as `Fields`."""

IS_HEAD = "planq.is_head"
"""Key of the scope: true for HEAD. A stream without an end must then not begin."""

STATUS = "/statusz"
OPEN_PATHS = frozenset({"/healthz", "/readyz", STATUS, "/docs", "/openapi.json"})
"""Paths that need no key: supervisors and browsers have none. `STATUS` accepts a key, and shows more to operators."""

OPEN_BELOW = ("/docs/", f"{UI}/assets/")  # scripts and styles of pages

LOGIN = f"{UI}/login"
_OPEN_PAGES = frozenset({"/", UI, LOGIN, f"{UI}/logout"})
"""Pages without a login: they show no data."""

_NOT_STORED = (b"cache-control", b"no-store")
_ANSWERED = (*GUARDING_FIELDS, _NOT_STORED)

_FROM_CHANNELS = re.compile(rf"/webhooks/({'|'.join(kind.inbound for kind in KINDS.values())})")
"""Paths to which chat systems post, under any host name; each post proves its channel by a secret."""

_LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
_BODY_METHODS = frozenset({"POST", "PUT", "PATCH"})
_MEDIA_TYPES = {"/agents/": ("application/json", "application/yaml"), "/skills/": ("text/markdown",)}
_FORM_MEDIA_TYPES = ("application/x-www-form-urlencoded", "multipart/form-data")
"""Media types of forms, the last for a file of lines. Any site can make a browser send one, so each form has a token
(`api/page/route.py`)."""

_BATCHES = "/batches"  # the only upload: it is streamed, so it may be long
_BATCH_MEDIA_TYPES = ("application/jsonl", "application/x-ndjson")
_OF_PLANS = frozenset({"/jobs", "/plans/validate"})
_OF_STORED_JOBS = ("/fork", "/settle")
"""Bodies with a plan of thousands of calls, or the output of a step, may be longer than others."""

Fields = Mapping[bytes, bytes]
"""The header fields of a request by name in lower case; of several with one name the first."""

_UNREAD_BYTES = 64 * 1024 * 1024
_UNREAD_SECONDS = 10.0
_UNREAD_PAUSE_SECONDS = 0.02
"""Maximum size and time for reading the body of a refused request; a client that sends more loses its connection. The
pause lets other requests run between two pieces."""


class Guard:
    """Checks each request by its headers."""

    def __init__(self, access: Access, sessions: Sessions, settings: Settings) -> None:
        self._access = access
        self._sessions = sessions
        self._settings = settings

    async def check(self, scope: Scope) -> None:
        """Note the caller in the scope; raises `PlanqError` or `HttpRefusal` unless the headers allow the request."""
        fields, path = scope[FIELDS], scope["path"]
        is_proved_there = _FROM_CHANNELS.fullmatch(path) is not None
        if not (self._access.is_required or is_proved_there):
            _check_host(scope)
        if is_page(path):
            name = self._sessions.cookie_name(below_prefix(""), is_secure=scope["scheme"] == "https")
            session = scope[SESSION] = self._sessions.read(cookie_of(fields, name), time())
            if path not in _OPEN_PAGES and not path.startswith(OPEN_BELOW):
                scope[CALLER] = visitor = await self._access.visitor(session)
                # Once the caller is known, so that the page of a refusal links to what the key opens.
                admitted(visitor, scope["method"], path.removeprefix(UI))
        elif not is_proved_there and self._asks_for_key(path, fields) and not path.startswith(OPEN_BELOW):
            given = fields.get(b"authorization")
            text = None if given is None else given.decode("latin-1")
            scope[CALLER] = await self._access.caller(scope["method"], path, text)
        if b"origin" in fields:
            _check_origin(fields)
        if b"idempotency-key" in fields and sum(name == b"idempotency-key" for name, _ in scope["headers"]) > 1:
            message = "expected one Idempotency-Key, found several; send one of them"
            raise HttpRefusal(400, "invalid_idempotency_key", message)
        if scope["method"] in _BODY_METHODS or b"content-length" in fields:
            self._check_body(scope["method"], path, fields)

    def _asks_for_key(self, path: str, fields: Fields) -> bool:
        if path == STATUS:
            return b"authorization" in fields or not self._access.is_required
        return path not in OPEN_PATHS

    def _check_body(self, method: str, path: str, fields: Fields) -> None:
        length = _text(fields, b"content-length")
        if length.isdecimal() and int(length[:20]) > (limit := self.limit(path)):
            raise _too_large(limit, f"{capped(length, 20)} bytes")
        has_body = length.strip("0") != "" or b"transfer-encoding" in fields
        if method not in _BODY_METHODS or not has_body:
            return
        coding = _text(fields, b"content-encoding").strip().lower()
        if coding not in ("", "identity"):
            raise HttpRefusal(
                415,
                "unsupported_media_type",
                f"expected a body without Content-Encoding, found {capped(coding, 100)!r}; send it as it is",
                headers={"Accept-Encoding": "identity"},
            )
        given = _text(fields, b"content-type")
        expected = _media_types(method, path)
        if given.partition(";")[0].strip().lower() not in expected:
            found, known = repr(capped(given, 100)) if given else "none", " or ".join(expected)
            raise HttpRefusal(415, "unsupported_media_type", f"expected Content-Type: {known}, found {found}")

    def limit(self, path: str) -> int:
        """Return the maximum size of a body, in bytes."""
        if path.removeprefix(UI) == _BATCHES:
            return bounds.MAX_BATCH_BYTES
        if path.removeprefix(UI) in _OF_PLANS or path.endswith(_OF_STORED_JOBS):
            return bounds.MAX_PLAN_BYTES
        return self._settings.max_body_bytes


class GuardMiddleware:
    """ASGI middleware, the outermost one: it checks and counts each request, and answers HEAD as GET without a body.

    One middleware instead of several, because each costs a closure and a coroutine or two a request. An answer ends
    only when the body of the request was read, within bounds: a client that sends everything before it reads would
    find its connection reset instead of the answer.
    """

    def __init__(
        self,
        app: ASGIApp,
        guard: Guard,
        metrics: Metrics,
        prefix: Prefix | None = None,
        refuse: Callable[[Scope, PlanqError | HTTPException], Response] | None = None,
    ) -> None:
        """Without a `prefix` the API is at the root of its server. `refuse` returns the answer for a refused page."""
        self._prefix = prefix
        self._refuse = refuse
        self._app = app
        self._guard = guard
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500
        begun = perf_counter()
        prefix = ""
        if self._prefix is not None:
            scope, prefix = self._prefix.enter(scope)
        fields = scope[FIELDS] = dict(reversed(scope["headers"]))
        body = _Body(fields, receive, self._guard.limit(scope["path"]))
        is_head = scope["method"] == "HEAD"
        of_page = is_page(scope["path"])
        is_open = scope["path"] in OPEN_PATHS or scope["path"].startswith(OPEN_BELOW)

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                given = message.get("headers", ())
                if prefix:
                    given = [(name, _located(prefix, name, value)) for name, value in given]
                added = PAGE_FIELDS if of_page else GUARDING_FIELDS
                if not is_open and b"cache-control" not in dict(given):
                    added = (*PAGE_FIELDS, _NOT_STORED) if of_page else _ANSWERED
                message = {**message, "headers": [*given, *added]}
            else:
                if is_head and message.get("body"):
                    message = {**message, "body": b""}
                if not body.is_read and not message.get("more_body", False):
                    await send({**message, "more_body": True})
                    await body.read_out()
                    message = {"type": "http.response.body"}
            await send(message)

        asked = {**scope, "method": "GET", IS_HEAD: True} if is_head else scope
        try:
            try:
                await self._guard.check(asked)
            except (PlanqError, HTTPException) as refusal:
                refused = (
                    error_response(refusal) if self._refuse is None or not of_page else self._refuse(asked, refusal)
                )
                await refused(asked, body.receive, watched)
                return
            await self._app(asked, body.receive_within, watched)
        finally:
            seconds = max(0.0, perf_counter() - begun - asked.get(WAITED, 0.0))
            self._metrics.count(scope["method"], route_of(asked), status, seconds)


class _Body:
    """The body of a request as it is received; `is_read` once it is complete."""

    def __init__(self, fields: Fields, receive: Receive, limit: int) -> None:
        self._receive = receive
        self._limit = self._left = limit
        # A client that waits for 100 Continue has sent nothing, and need not.
        has_body = b"content-length" in fields or b"transfer-encoding" in fields
        self.is_read = not has_body or b"expect" in fields

    async def receive(self) -> Message:
        message = await self._receive()
        if not message.get("more_body", False):
            self.is_read = True
        return message

    async def receive_within(self) -> Message:
        """Receive the next message; raises `HttpRefusal` (413) once the body is over its limit."""
        message = await self.receive()
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            # FastAPI lets only HTTPException through while it reads a body.
            error = _too_large(self._limit, "a longer one")
            raise HttpRefusal(413, error.code, error.message)
        return message

    async def read_out(self) -> None:
        """Receive the rest, within bounds, and drop it."""
        left = _UNREAD_BYTES
        try:
            async with asyncio.timeout(_UNREAD_SECONDS):
                while not self.is_read and left > 0:
                    left -= len((await self.receive()).get("body", b""))
                    if not self.is_read:
                        await asyncio.sleep(_UNREAD_PAUSE_SECONDS)
        except TimeoutError:
            pass


def _located(prefix: str, name: bytes, value: bytes) -> bytes:
    return prefix.encode() + value if name.lower() == b"location" and value.startswith(b"/") else value


def _media_types(method: str, path: str) -> Sequence[str]:
    if is_page(path):
        return _FORM_MEDIA_TYPES if path.removeprefix(UI) == _BATCHES else _FORM_MEDIA_TYPES[:1]
    if method == "POST":
        return _BATCH_MEDIA_TYPES if path == _BATCHES else ("application/json",)
    return _MEDIA_TYPES.get(path[:8], ("application/json",))


def _too_large(limit: int, found: str) -> TooLarge:
    return TooLarge(f"expected a body of at most {limit} bytes, found {found}", limit=limit)


def _check_host(scope: Scope) -> None:
    # Several Host headers become one that is no host: proxies differ in which of them they believe.
    host = b",".join([value for name, value in scope["headers"] if name == b"host"]).decode("latin-1")
    if _hostname(host) not in _LOCAL_HOSTS:
        raise HttpRefusal(
            421,
            "misdirected",
            f"expected the host localhost, 127.0.0.1 or [::1], found {capped(host, 100)!r}; "
            "an API that other names may reach needs PLANQ_API_KEYS, or PLANQ_REQUIRE_KEYS=true",
        )


def _check_origin(fields: Fields) -> None:
    origin = _text(fields, b"origin")
    scheme, separator, host = origin.lower().partition("://")
    if not separator or scheme not in ("http", "https") or host != _text(fields, b"host").lower():
        found = capped(origin, 100)
        raise HttpRefusal(403, "foreign_origin", f"web pages of another origin are refused; found {found!r}")


def _text(fields: Fields, name: bytes) -> str:
    return fields.get(name, b"").decode("latin-1")


@lru_cache(maxsize=64)
def _hostname(host: str) -> str | None:
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return None
    is_host_alone = parts.username is None and not (parts.path or parts.query or parts.fragment)
    return parts.hostname if is_host_alone else None
