"""How late another thread's event loop is: what a step that blocks the loop costs all others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from time import monotonic

_SAMPLE_SECONDS = 0.5


class LoopLag:
    """Asks a loop again and again to run a callback, and keeps the longest wait."""

    def __init__(self, loop_of: Callable[[], asyncio.AbstractEventLoop | None]) -> None:
        """`loop_of` returns the loop, None while there is none."""
        self._loop_of = loop_of
        self._asked_at: float | None = None
        self._worst_seconds = 0.0

    async def sample(self) -> None:
        """Ask for ever, one question at a time; cancel to end."""
        while True:
            loop = self._loop_of()
            if self._asked_at is None and loop is not None and loop.is_running():
                self._asked_at = monotonic()
                loop.call_soon_threadsafe(self._answer)
            await asyncio.sleep(_SAMPLE_SECONDS)

    def _answer(self) -> None:
        if self._asked_at is not None:
            self._worst_seconds = max(self._worst_seconds, monotonic() - self._asked_at)
            self._asked_at = None

    def take_worst(self) -> timedelta:
        """Return the longest wait since the last call, an unanswered question's so far included."""
        asked_at = self._asked_at
        waiting = monotonic() - asked_at if asked_at is not None else 0.0
        worst, self._worst_seconds = max(self._worst_seconds, waiting), 0.0
        return timedelta(seconds=worst)
