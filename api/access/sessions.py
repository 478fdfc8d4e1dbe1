"""Sessions of the page: a signed cookie that names a key, and the token that every form carries.

A session is its cookie, which names the digest of a key, so it ends when the key does. It ends by itself when no page
was looked at for a while, and in any case some hours after it began. Only the end of one that was logged out is
stored (`EndedSessions`). Whoever forges one needs the digest of a key, which only the database knows, and the secret
of the signature, which only processes of the API know.
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

SESSION = "planq.session"
"""Key of the ASGI scope under which the guard puts the `PageSession` of a request for a page, if it has one."""

UI = "/ui"
"""Below it lie the pages; a session opens nothing else."""

LIFETIME_SECONDS = 2 * 3600
"""A page that is looked at renews its session once half of it is over."""

_NONCE_BYTES = 16
_HEAD_BYTES = _NONCE_BYTES + 8 + 8
_DIGEST_BYTES = 32


class PageSession(NamedTuple):
    """One browser's session; without a `digest` nobody has logged in."""

    nonce: bytes
    digest: bytes | None
    ends_at: int
    begun_at: int


class Sessions:
    """Makes sessions, and knows its own again."""

    def __init__(self, secrets: Iterable[str], most_seconds: float = 12 * 3600) -> None:
        """`secrets` are what only processes of this API know; a change of any ends all sessions.

        No session lasts longer than `most_seconds`, however it is renewed.
        """
        self._secret = sha256("\n".join(["planq sessions", *secrets]).encode()).digest()
        self._most = int(most_seconds)
        # Browsers send a host's cookies to each of its ports.
        self._name = f"planq_session_{self._sign(b'cookie', b'')[:4].hex()}"

    def begin(self, digest: bytes | None, now: float) -> PageSession:
        return self.renewed(PageSession(os.urandom(_NONCE_BYTES), digest, 0, int(now)), now)

    def renewed(self, session: PageSession, now: float) -> PageSession:
        return session._replace(ends_at=min(int(now) + LIFETIME_SECONDS, self.last_end(session)))

    def last_end(self, session: PageSession) -> int:
        """Return when a session ends that is renewed again and again, in seconds of Unix time."""
        return session.begun_at + self._most

    def cookie_name(self, prefix: str, *, is_secure: bool) -> str:
        """Return the name of the cookie: another one for each installation, and over TLS one that is sent only so."""
        if not is_secure:
            return self._name
        # RFC 6265bis: a cookie named __Host- is of this host alone, and of all its paths.
        return f"__Secure-{self._name}" if prefix else f"__Host-{self._name}"

    def text(self, session: PageSession) -> str:
        times = session.begun_at.to_bytes(8, "big") + session.ends_at.to_bytes(8, "big")
        body = session.nonce + times + (session.digest or b"")
        return base64.urlsafe_b64encode(body + self._sign(b"session", body)).rstrip(b"=").decode()

    def read(self, text: str, now: float) -> PageSession | None:
        """Return the session of a cookie; None for one that is not ours, or has ended."""
        try:
            raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        except (ValueError, binascii.Error):
            return None
        body, signature = raw[:-_DIGEST_BYTES], raw[-_DIGEST_BYTES:]
        if len(body) not in (_HEAD_BYTES, _HEAD_BYTES + _DIGEST_BYTES):
            return None
        if not hmac.compare_digest(signature, self._sign(b"session", body)):
            return None
        begun_at, ends_at = (int.from_bytes(body[at : at + 8], "big") for at in (_NONCE_BYTES, _NONCE_BYTES + 8))
        session = PageSession(body[:_NONCE_BYTES], body[_HEAD_BYTES:] or None, ends_at, begun_at)
        return session if min(ends_at, self.last_end(session)) > now else None

    def token(self, session: PageSession) -> str:
        """Return what every form of a session carries; a page of another origin cannot read it."""
        return self._sign(b"form", session.nonce + (session.digest or b"")).hex()

    def has_token(self, session: PageSession | None, given: str) -> bool:
        return session is not None and hmac.compare_digest(given.encode(), self.token(session).encode())

    def _sign(self, purpose: bytes, body: bytes) -> bytes:
        return hmac.new(self._secret, purpose + b"\x00" + body, sha256).digest()


def is_page(path: str) -> bool:
    return path == "/" or path == UI or path.startswith(f"{UI}/")


def cookie_of(fields: Mapping[bytes, bytes], name: str) -> str:
    """Return the value of the session's cookie of this name in the header of a request, empty for none."""
    given = fields.get(b"cookie")
    if given is None:
        return ""
    try:
        found: Any = SimpleCookie(given.decode("latin-1")).get(name)
    except CookieError:
        return ""
    return "" if found is None else str(found.value)
