"""When the sweeper looks again: after its pause, or earlier, where a job is known to run out of time before that.

A job whose time is shorter than the pause may be made, begin and run out of it between two looks; whoever claims it
tells of it here. All others the sweeper itself has seen before.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from heapq import heappop, heappush
from time import monotonic

_LEAST_SECONDS = 0.05
"""The shortest pause: however many jobs run out of time, a process looks at most twenty times a second."""

_ROUNDING_SECONDS = 0.002
"""So that the database's clock has passed the moment, too, when it is asked."""


class Pace:
    """Belongs to one event loop. `clock` counts seconds."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._due: list[float] = []
        self._is_sooner = asyncio.Event()

    def due_in(self, seconds: float) -> None:
        """End the pause, this or a later one, in so many seconds, if it has not ended by then."""
        at = self._clock() + seconds + _ROUNDING_SECONDS
        heappush(self._due, at)
        if self._due[0] == at:
            self._is_sooner.set()

    async def pause(self, seconds: float) -> None:
        """Return after so many seconds, or earlier, when something is due."""
        begun = self._clock()
        while True:
            self._is_sooner.clear()
            ends = begun + seconds
            if self._due:
                ends = min(ends, max(begun + _LEAST_SECONDS, self._due[0]))
            left = ends - self._clock()
            if left <= 0:
                break
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._is_sooner.wait()
        # What is due later than now ends a later pause.
        while self._due and self._due[0] <= self._clock():
            heappop(self._due)
