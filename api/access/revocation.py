"""Requests that go on for long, waits and streams, end within a second of their key's end.

A key is looked at when a request comes. What goes on after that is looked at here: all keys under which something
goes on, in one statement every `_LOOK_SECONDS`, as long as there are any.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence

from planq.api.access.scopes import caller_by
from planq.shared.store.tenants.api_keys import KnownKey
from planq.shared.timers import every

_LOOK_SECONDS = 0.4


class Ongoing:
    """Something that goes on under a key; `is_stopped` once the key has ended or its tenant is disabled."""

    __slots__ = ("_key", "_stop", "is_stopped")

    def __init__(self, stop: Callable[[], None]) -> None:
        """`stop` is called once, when the key has ended."""
        self._stop = stop
        self._key: KnownKey | None = None
        self.is_stopped = False

    def stop(self, key: KnownKey | None) -> None:
        """End it, because of how its key stands now; once."""
        if not self.is_stopped:
            self._key, self.is_stopped = key, True
            self._stop()

    def check(self) -> None:
        """Raise as a new request with its key would be refused, if it was stopped."""
        if self.is_stopped:
            caller_by(self._key)


class OngoingRequests:
    """What goes on under each key in this process; lives on one event loop."""

    def __init__(self, look: Callable[[Sequence[bytes]], Awaitable[Sequence[KnownKey | None]]]) -> None:
        """`look` says of digests of keys how they stand now; raises `DatabaseUnavailable`."""
        self._look = look
        self._under: dict[bytes, set[Ongoing]] = {}

    @contextlib.contextmanager
    def under(self, digest: bytes | None, stop: Callable[[], None]) -> Iterator[Ongoing]:
        """Call `stop` if a key ends meanwhile; None stands for what no key of the database has let in."""
        ongoing = Ongoing(stop)
        if digest is None:
            yield ongoing
            return
        self._under.setdefault(digest, set()).add(ongoing)
        try:
            yield ongoing
        finally:
            mine = self._under[digest]
            mine.discard(ongoing)
            if not mine:
                del self._under[digest]

    async def look(self) -> None:
        """Look at the keys under which something goes on, again and again; cancel to stop.

        While the database is away everything goes on: each key was good a moment ago.
        """
        await every(_LOOK_SECONDS, self._stop_ended, name="keys", waits_first=True)

    async def _stop_ended(self) -> None:
        digests = list(self._under)
        found = await self._look(digests) if digests else ()
        for digest, key in zip(digests, found, strict=True):
            if key is None or key.ended is not None or key.is_disabled:
                for ongoing in tuple(self._under.get(digest, ())):
                    ongoing.stop(key)
