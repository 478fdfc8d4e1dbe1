"""How many attempts a process may carry out at once, over all the messages that it has taken.

A step is claimed only when there is a slot for it, because the time of a claimed step runs. Whoever waits is served
in turn, and takes as many slots as are free by then: what ends together makes room for one claim of many.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Slots:
    """Belongs to one event loop."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def free(self) -> int:
        """How many can be had at once: 0 while others wait for theirs."""
        return 0 if self._waiting else self._free

    def reserve(self, most: int) -> int:
        """Take up to `most` of the free slots; returns how many."""
        taken = max(0, min(most, self.free))
        self._free -= taken
        return taken

    async def wait(self, most: int = 1) -> int:
        """Wait for a slot, then take up to `most` of the free ones; returns how many, at least 1."""
        if not self.free:
            await self._turn()
        taken = min(most, self._free)
        self._free -= taken
        self._call_next()
        return taken

    def release(self, count: int = 1) -> None:
        """Give slots back."""
        self._free += count
        self._call_next()

    async def _turn(self) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            self._waiting.remove(turn)
            self._call_next()  # whoever stands behind must not wait for one who has gone
            raise
        self._waiting.popleft()

    def _call_next(self) -> None:
        if self._free > 0 and self._waiting and not self._waiting[0].done():
            self._waiting[0].set_result(None)
