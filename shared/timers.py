"""Timers of a process for what it has stored and what is due within seconds.

The sweep finds all that is due, in its own time; a timer only makes it happen sooner. So a timer may be lost with its
process, and what it does is guarded in the database: the sweep, or the timer of another process, may have been first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from planq.shared.domain.errors import DatabaseUnavailable

_log = logging.getLogger("planq.timers")

_ROUNDING_SECONDS = 0.002
"""So that the database's clock has passed the moment, too, when it is asked."""

_AT_ONCE = 2
"""Of the connections that the process shares with its work, so many are taken by timers; those of one job wait for
its row anyway."""


class NearTimers:
    """At most `most` timers, none of them further away than `within_seconds`. Belongs to one event loop."""

    def __init__(self, within_seconds: float = 5.0, most: int = 1000) -> None:
        self._within_seconds = within_seconds
        self._most = most
        self._tasks: set[asyncio.Task[None]] = set()
        self._places = asyncio.Semaphore(_AT_ONCE)

    def set(self, seconds: float, act: Callable[[], Awaitable[object]]) -> None:
        """Call `act` in so many seconds; what is too far away, or one too many, is left to the sweep.

        So is what `act` raises where the database is away; any other error is logged.
        """
        if seconds <= self._within_seconds and len(self._tasks) < self._most:
            task = asyncio.create_task(self._run(seconds + _ROUNDING_SECONDS, act))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self, seconds: float, act: Callable[[], Awaitable[object]]) -> None:
        await asyncio.sleep(seconds)
        try:
            async with self._places:
                await act()
        except DatabaseUnavailable:
            return
        except Exception:
            _log.exception("timer_failed")

    async def close(self) -> None:
        """Forget all timers, and return once none acts any more."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
