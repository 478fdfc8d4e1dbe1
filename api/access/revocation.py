"""Long requests (waits and streams) end within a second of the end of their key or session.

The guard checks both at the start of a request. Later on, one statement every `_LOOK_SECONDS` checks all keys of
ongoing requests, and another one all sessions of pages.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from time import time
from typing import Any, TypeVar

from planq.api.access.scopes import caller_by, digest_behind
from planq.api.access.sessions import SESSION, PageSession
from planq.shared.platform.timers import every
from planq.shared.subjects.tenants.api_keys import KnownKey

_LOOK_SECONDS = 0.4

_K = TypeVar("_K")


class Ongoing:
    """An ongoing request; `is_stopped` once its key or session has ended, or its tenant is disabled."""

    __slots__ = ("_key", "_stop", "is_stopped")

    def __init__(self, stop: Callable[[], None]) -> None:
        """`stop` is called once, when the key or the session ends."""
        self._stop = stop
        self._key: KnownKey | None = None
        self.is_stopped = False

    def stop(self, key: KnownKey | None) -> None:
        """End the request once, because of the present state of its key; None for an ended session."""
        if not self.is_stopped:
            self._key, self.is_stopped = key, True
            self._stop()

    def check(self) -> None:
        """Raise the refusal of a new request with the same key, if this one was stopped."""
        if self.is_stopped:
            caller_by(self._key)


class OngoingRequests:
    """The ongoing requests of each key and session in this process; for one event loop."""

    def __init__(
        self,
        look: Callable[[Sequence[bytes]], Awaitable[Sequence[KnownKey | None]]],
        ended: Callable[[Collection[bytes]], Awaitable[Collection[bytes]]],
        last_end: Callable[[PageSession], int],
    ) -> None:
        """`look` returns the state of keys by digest, `ended` the nonces of logged-out sessions.

        Both raise `DatabaseUnavailable`. `last_end` returns the latest end of a renewed session.
        """
        self._look = look
        self._ended = ended
        self._last_end = last_end
        self._under_keys: dict[bytes, set[Ongoing]] = {}
        self._under_sessions: dict[PageSession, set[Ongoing]] = {}

    @contextlib.contextmanager
    def under(self, scope: Mapping[str, Any], stop: Callable[[], None]) -> Iterator[Ongoing]:
        """Call `stop` if the key or the session of a request ends during the block."""
        session: PageSession | None = scope.get(SESSION)
        ongoing = Ongoing(stop)
        digest = digest_behind(scope)
        if digest is not None:
            self._under_keys.setdefault(digest, set()).add(ongoing)
        if session is not None and session.digest is not None:
            self._under_sessions.setdefault(session, set()).add(ongoing)
        try:
            yield ongoing
        finally:
            _remove(self._under_keys, digest, ongoing)
            _remove(self._under_sessions, session, ongoing)

    async def look(self) -> None:
        """Check the keys and sessions of ongoing requests repeatedly; cancel to stop.

        While the database is away all requests go on: each key was good a moment ago.
        """
        await every(_LOOK_SECONDS, self._stop_ended, name="keys", waits_first=True)

    async def _stop_ended(self) -> None:
        digests, now = list(self._under_keys), time()
        found = await self._look(digests) if digests else ()
        for digest, key in zip(digests, found, strict=True):
            if key is None or key.ended is not None or key.is_disabled:
                for ongoing in tuple(self._under_keys.get(digest, ())):
                    ongoing.stop(key)
        nonces = {session.nonce for session in self._under_sessions}
        ended = await self._ended(nonces) if nonces else ()
        for session, under in tuple(self._under_sessions.items()):
            if session.nonce in ended or self._last_end(session) <= now:
                for ongoing in tuple(under):
                    ongoing.stop(None)


def _remove(under: dict[_K, set[Ongoing]], what: _K | None, ongoing: Ongoing) -> None:
    if what is not None and (mine := under.get(what)) is not None:
        mine.discard(ongoing)
        if not mine:
            del under[what]
