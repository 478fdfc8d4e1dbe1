"""When the sweeper looks again: after its pause, or earlier, where a job is known to run out of time before that.

A job whose time is shorter than the pause may be made, begin and run out of it between two looks; whoever claims it
tells of it here. All others the sweeper itself has seen before.
"""

from __future__ import annotations

import asyncio
import contextlib

_LEAST_SECONDS = 0.05
"""The shortest pause: however many jobs run out of time, a process looks at most twenty times a second."""

_ROUNDING_SECONDS = 0.002
"""So that the database's clock has passed the moment, too, when it is asked."""


class Pace:
    """Belongs to one event loop, in which everything here is called."""

    def __init__(self) -> None:
        self._is_due = asyncio.Event()

    def due_in(self, seconds: float) -> None:
        """End the pause, this or a later one, in so many seconds, if it has not ended by then."""
        asyncio.get_running_loop().call_later(seconds + _ROUNDING_SECONDS, self._is_due.set)

    async def pause(self, seconds: float) -> None:
        """Return after so many seconds, or earlier, when something is due."""
        loop = asyncio.get_running_loop()
        earliest = loop.time() + min(seconds, _LEAST_SECONDS)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_due.wait()
        await asyncio.sleep(earliest - loop.time())
        # What has become due is looked at now.
        self._is_due.clear()
