"""Who may ask, and how much: host, origin, key, media type and size, checked before anything of a request is read.

Without keys the API is open to this machine, and only to it: a web page must not reach it through a visitor's
browser, neither by a name that resolves to the loopback (DNS rebinding: the Host header is checked) nor across
origins (there are no CORS headers, a foreign Origin is refused, and bodies must be JSON, which forms cannot send).
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import respond
from api.problems import Refusal
from shared.domain.errors import PlanqError, TooLarge, Unauthorized, capped

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""What a supervisor may ask without a key."""

_LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
_BODY_METHODS = frozenset({"POST", "PUT", "PATCH"})


class Guard:
    """ASGI middleware; `keys` empty means: this machine only."""

    def __init__(self, app: ASGIApp, *, keys: Collection[str], max_body_bytes: int) -> None:
        self._app = app
        self._keys = [_hash(key.encode()) for key in keys]
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            headers = Headers(scope=scope)
            if self._keys:
                self._check_key(scope["path"], headers)
            else:
                _check_host(headers)
            _check_origin(headers)
            self._check_body(scope["method"], headers)
        except (PlanqError, HTTPException) as refusal:
            await respond(refusal)(scope, receive, send)
            return
        await self._app(scope, self._measured(receive), send)

    def _check_key(self, path: str, headers: Headers) -> None:
        if path in OPEN_PATHS:
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not given:
            raise Unauthorized("expected the header Authorization: Bearer <key>, with a key of PLANQ_API_KEYS")
        # Hashes have one length, and every key is compared, so that the time says nothing about any of them.
        found = _hash(given.strip().encode("latin-1"))
        if not sum(hmac.compare_digest(found, key) for key in self._keys):
            raise Unauthorized("the API key is not known; expected one of PLANQ_API_KEYS")

    def _check_body(self, method: str, headers: Headers) -> None:
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length[:20]) > self._max_body_bytes:
            raise self._too_large(f"{capped(length, 20)} bytes")
        has_body = length.strip("0") != "" or "transfer-encoding" in headers
        if method not in _BODY_METHODS or not has_body:
            return
        given = headers.get("content-type", "")
        if given.partition(";")[0].strip().lower() != "application/json":
            found = repr(capped(given, 100)) if given else "none"
            raise Refusal(415, "unsupported_media_type", f"expected Content-Type: application/json, found {found}")

    def _measured(self, receive: Receive) -> Receive:
        received = 0

        async def measured() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_body_bytes:
                # FastAPI lets only HTTPException through while it reads a body.
                error = self._too_large("a longer one")
                raise Refusal(413, error.code, error.message)
            return message

        return measured

    def _too_large(self, found: str) -> TooLarge:
        return TooLarge(f"expected a body of at most {self._max_body_bytes} bytes, found {found}")


def _check_host(headers: Headers) -> None:
    # Several Host headers become one that is no host; which of them others would believe is not ours to guess.
    host = ",".join(headers.getlist("host"))
    if _hostname(host) not in _LOCAL_HOSTS:
        raise Refusal(
            421,
            "misdirected",
            f"expected the host localhost, 127.0.0.1 or [::1], found {capped(host, 100)!r}; "
            "an API that other names may reach needs PLANQ_API_KEYS",
        )


def _check_origin(headers: Headers) -> None:
    origin = headers.get("origin")
    if origin is None:
        return
    scheme, separator, host = origin.lower().partition("://")
    if not separator or scheme not in ("http", "https") or host != headers.get("host", "").lower():
        found = capped(origin, 100)
        raise Refusal(403, "foreign_origin", f"web pages of another origin are refused; found {found!r}")


def _hostname(host: str) -> str | None:
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return None
    is_host_alone = parts.username is None and not (parts.path or parts.query or parts.fragment)
    return parts.hostname if is_host_alone else None


def _hash(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
