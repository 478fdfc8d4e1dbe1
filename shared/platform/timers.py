"""Duties that a process carries out again and again, and timers for what it has stored and is due within seconds.

The sweep finds all that is due, in its own time; a timer only makes it happen sooner. So a timer may be lost with its
process, and what it does is guarded in the database: the sweep, or the timer of another process, may have been first.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from planq.shared.platform.errors import DatabaseUnavailable, Unavailable

_log = logging.getLogger("planq.timers")

_ROUNDING_SECONDS = 0.002
"""So that the database's clock has passed the moment, too, when it is asked."""

_AT_ONCE = 2
"""Of the connections that the process shares with its work, so many are taken by timers; those of one job wait for
its row anyway."""

_AGAIN_SECONDS = 1.0
"""So soon is a duty tried again that found the database away: outcomes wait for the beat once a lease is stale."""

Duty = Callable[[], Awaitable[object]]
Pause = Callable[[float], Awaitable[object]]


async def every(
    seconds: float, duty: Duty, *, name: str, pause: Pause = asyncio.sleep, waits_first: bool = False
) -> None:
    """Carry out a duty for ever, with a pause of so many seconds after each time; cancel to stop.

    A duty that raises goes on with the next time. An outage is logged when it begins, under the code of its error;
    any other error each time, as `duty_failed` with its traceback.
    """
    is_away = False
    if waits_first:
        await pause(seconds)
    while True:
        rest = seconds
        try:
            await duty()
            is_away = False
        except Unavailable as error:
            if not is_away:
                _log.warning(error.code, extra={"duty": name, "cause": error.message})
            is_away, rest = True, min(seconds, _AGAIN_SECONDS)
        except Exception:
            _log.exception("duty_failed", extra={"duty": name})
        await pause(rest)


def woken_by(event: asyncio.Event) -> Pause:
    """Return a pause that ends early when `event` is set, which it clears: what is set later ends the next one."""

    async def pause(seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()
        event.clear()

    return pause


class NearTimers:
    """At most `most` timers, none of them further away than `within_seconds`. Belongs to one event loop."""

    def __init__(self, within_seconds: float = 5.0, most: int = 1000) -> None:
        self._within_seconds = within_seconds
        self._most = most
        self._tasks: set[asyncio.Task[None]] = set()
        self._places = asyncio.Semaphore(_AT_ONCE)

    def set(self, seconds: float, act: Duty) -> None:
        """Call `act` in so many seconds; what is too far away, or one too many, is left to the sweep.

        So is what `act` raises where the database is away; any other error is logged.
        """
        if seconds <= self._within_seconds and len(self._tasks) < self._most:
            task = asyncio.create_task(self._run(seconds + _ROUNDING_SECONDS, act))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self, seconds: float, act: Duty) -> None:
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
