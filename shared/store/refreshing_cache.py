"""What the database says, kept for a moment: many ask for the same again and again, and one look serves them all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from time import monotonic
from typing import Any, Generic, TypeVar

MOST_KEPT = 10_000
"""More are kept by nobody: what strangers make up would else fill the memory."""

MOST_YOUNG = 8
"""So many keys are asked for without a reader: whoever has more in use at the same time has readers for each."""

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class RefreshingCache(Generic[Key, Value]):
    """What `ask` returns for a key, never older than `seconds`; lives on one event loop.

    What is read again after half of that time is asked for beside the reader, so that nobody waits for what is in
    use. Those who wait for the same share one asking, and its error. The `MOST_YOUNG` keys that were read last are
    asked for again without a reader, until nobody has read them for `young_for` seconds, or an asking has failed.
    """

    def __init__(self, ask: Callable[[Key], Awaitable[Value]], seconds: float, *, young_for: float = 0.0) -> None:
        self._ask = ask
        self._seconds = seconds
        self._young_for = young_for
        self._read_at: dict[Key, float] = {}  # in the order of reading
        self._kept: dict[Key, tuple[float, Value]] = {}
        self._asking: dict[Key, asyncio.Task[Value]] = {}

    def peek(self, key: Key) -> Value | None:
        """Return the value of a key that was asked for a moment ago; None where `of` would ask."""
        kept = self._kept.get(key)
        return kept[1] if kept is not None and monotonic() < kept[0] + self._seconds / 2 else None

    async def of(self, key: Key) -> Value:
        """Return the value of a key; raises what `ask` raises where none is kept."""
        kept = self._kept.get(key)
        if self._young_for:
            self._note_reader(key)
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
            asyncio.get_running_loop().call_later(self._seconds * 0.45, self._keep_young, key, asked_at)
        return value

    def _note_reader(self, key: Key) -> None:
        self._read_at.pop(key, None)
        self._read_at[key] = monotonic()
        if len(self._read_at) > MOST_YOUNG:
            del self._read_at[next(iter(self._read_at))]

    def _keep_young(self, key: Key, asked_at: float) -> None:
        kept, read_at = self._kept.get(key), self._read_at.get(key)
        if kept is None or kept[0] != asked_at or key in self._asking or read_at is None:
            return  # a later asking goes on with it, or others were read since
        if monotonic() < read_at + self._young_for:
            self._begin(key)
        else:
            del self._read_at[key]

    def _forget(self) -> None:
        """Forget what is too old, or everything where that leaves too much."""
        since = monotonic() - self._seconds
        kept = {key: one for key, one in self._kept.items() if one[0] > since}
        self._kept = kept if len(kept) <= MOST_KEPT else {}


def _look_at_error(task: asyncio.Task[Any]) -> None:
    """A failed look beside a reader is no news: the next reader asks again, and hears of it."""
    if not task.cancelled():
        task.exception()
