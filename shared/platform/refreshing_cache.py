"""A cache of query results that expires after seconds and refreshes ahead; concurrent readers share one query."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from time import monotonic
from typing import Any, Generic, TypeVar

MOST_KEPT = 10_000
"""Maximum cached keys, so that invented keys cannot exhaust the memory."""

MOST_YOUNG = 8
"""Maximum keys that are refreshed without a reader."""

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class RefreshingCache(Generic[Key, Value]):
    """Caches what `ask` returns for a key, for at most `seconds`; belongs to one event loop.

    A read after half of that time returns the cached value and starts a background refresh. Concurrent readers of a
    key share one call of `ask`, and its error. The `MOST_YOUNG` keys read last are refreshed until nobody has read
    them for `young_for` seconds or a refresh fails.
    """

    def __init__(self, ask: Callable[[Key], Awaitable[Value]], seconds: float, *, young_for: float = 0.0) -> None:
        self._ask = ask
        self._seconds = seconds
        self._young_for = young_for
        self._read_at: dict[Key, float] = {}  # in the order of reading
        self._kept: dict[Key, tuple[float, Value]] = {}
        self._asking: dict[Key, asyncio.Task[Value]] = {}
        self._pausing: set[asyncio.Task[None]] = set()

    def peek(self, key: Key) -> Value | None:
        """Return the cached value without waiting; None if `of` would call `ask`."""
        kept = self._kept.get(key)
        return kept[1] if kept is not None and monotonic() < kept[0] + self._seconds / 2 else None

    async def of(self, key: Key) -> Value:
        """Return the value of a key; raises like `ask` if none is cached."""
        kept = self._kept.get(key)
        if self._young_for:
            self._read_at.pop(key, None)
            self._read_at[key] = monotonic()
            if len(self._read_at) > MOST_YOUNG:
                del self._read_at[next(iter(self._read_at))]
        if kept is not None and monotonic() < kept[0] + self._seconds / 2:
            return kept[1]
        asking = self._asking.get(key) or self._begin(key)
        if kept is not None and monotonic() < kept[0] + self._seconds:
            return kept[1]
        return await asyncio.shield(asking)

    def _begin(self, key: Key) -> asyncio.Task[Value]:
        task = asyncio.get_running_loop().create_task(self._renewed(key))
        self._asking[key] = task
        task.add_done_callback(_look_at_error)
        return task

    async def _renewed(self, key: Key) -> Value:
        asked_at = monotonic()  # what is committed after this moment may be missed
        try:
            value = await self._ask(key)
        finally:
            del self._asking[key]
        self._kept[key] = asked_at, value
        if len(self._kept) > MOST_KEPT:
            self._forget()
        if key in self._read_at:
            # A task, not a timer: a loop that ends cancels its tasks, and a timer's refresh would begin after that.
            pause = asyncio.get_running_loop().create_task(self._keep_young(key, asked_at))
            self._pausing.add(pause)
            pause.add_done_callback(self._pausing.discard)
        return value

    async def _keep_young(self, key: Key, asked_at: float) -> None:
        await asyncio.sleep(self._seconds * 0.45)
        kept, read_at = self._kept.get(key), self._read_at.get(key)
        if kept is None or kept[0] != asked_at or key in self._asking or read_at is None:
            return  # a later asking goes on with it, or others were read since
        if monotonic() < read_at + self._young_for:
            self._begin(key)
        else:
            del self._read_at[key]

    def _forget(self) -> None:
        since = monotonic() - self._seconds
        kept = {key: one for key, one in self._kept.items() if one[0] > since}
        self._kept = kept if len(kept) <= MOST_KEPT else {}


def _look_at_error(task: asyncio.Task[Any]) -> None:
    """Ignore a failed background refresh: the next reader asks again."""
    if not task.cancelled():
        task.exception()
