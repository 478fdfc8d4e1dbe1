"""Sessions of the page: a signed cookie that names a key, and the token that every form carries.

Nothing of a session is stored. Its cookie names the digest of a key, so it ends when the key does; it also ends by
itself, soon. Who forges one needs the digest of a key, which only the database knows, and the secret of the
signature, which only processes of the API know.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
from collections.abc import Iterable, Mapping
from hashlib import sha256
from http.cookies import CookieError, SimpleCookie
from typing import Any, NamedTuple

COOKIE = "planq_session"
SESSION = "planq.session"
"""Key of the ASGI scope under which the guard puts the `PageSession` of a request for a page, if it has one."""

UI = "/ui"
"""Below it lie the pages; a session opens nothing else."""

LIFETIME_SECONDS = 2 * 3600
"""A page that is looked at renews its session once half of it is over."""

_NONCE_BYTES = 16
_DIGEST_BYTES = 32


class PageSession(NamedTuple):
    """One browser's session; without a `digest` nobody has logged in."""

    nonce: bytes
    digest: bytes | None
    ends_at: int


class Sessions:
    """Makes sessions, and knows its own again."""

    def __init__(self, secrets: Iterable[str]) -> None:
        """`secrets` are what only processes of this API know; a change of any ends all sessions."""
        self._secret = sha256("\n".join(["planq sessions", *secrets]).encode()).digest()

    @staticmethod
    def begin(digest: bytes | None, now: float) -> PageSession:
        """Return a new session of a key, or of nobody."""
        return PageSession(os.urandom(_NONCE_BYTES), digest, int(now) + LIFETIME_SECONDS)

    def text(self, session: PageSession) -> str:
        """Return the value of a session's cookie."""
        body = session.nonce + session.ends_at.to_bytes(8, "big") + (session.digest or b"")
        return base64.urlsafe_b64encode(body + self._sign(b"session", body)).rstrip(b"=").decode()

    def read(self, text: str, now: float) -> PageSession | None:
        """Return the session of a cookie; None for one that is not ours, or has ended."""
        try:
            raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        except (ValueError, binascii.Error):
            return None
        body, signature = raw[:-_DIGEST_BYTES], raw[-_DIGEST_BYTES:]
        if len(body) not in (_NONCE_BYTES + 8, _NONCE_BYTES + 8 + _DIGEST_BYTES):
            return None
        if not hmac.compare_digest(signature, self._sign(b"session", body)):
            return None
        ends_at = int.from_bytes(body[_NONCE_BYTES : _NONCE_BYTES + 8], "big")
        return PageSession(body[:_NONCE_BYTES], body[_NONCE_BYTES + 8 :] or None, ends_at) if ends_at > now else None

    def token(self, session: PageSession) -> str:
        """Return what every form of a session carries; a page of another origin cannot read it."""
        return self._sign(b"form", session.nonce + (session.digest or b"")).hex()

    def has_token(self, session: PageSession | None, given: str) -> bool:
        """Return whether a form is one of a session's own."""
        return session is not None and hmac.compare_digest(given.encode(), self.token(session).encode())

    def _sign(self, purpose: bytes, body: bytes) -> bytes:
        return hmac.new(self._secret, purpose + b"\x00" + body, sha256).digest()


def is_page(path: str) -> bool:
    """Return whether a path is one of the pages, and not of the API."""
    return path == "/" or path == UI or path.startswith(f"{UI}/")


def cookie_of(fields: Mapping[bytes, bytes]) -> str:
    """Return the value of the session's cookie in the header of a request, empty for none."""
    given = fields.get(b"cookie")
    if given is None:
        return ""
    try:
        found: Any = SimpleCookie(given.decode("latin-1")).get(COOKIE)
    except CookieError:
        return ""
    return "" if found is None else str(found.value)
