"""Repeated duties of a process, and timers for what is due within seconds.

The sweep finds everything due; a timer only makes it sooner, so losing one is harmless, and the database guards its
action: the sweep or another process may have been first.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from planq.shared.platform.errors import DatabaseUnavailable, Unavailable

_log = logging.getLogger("planq.timers")

_ROUNDING_SECONDS = 0.002
"""Lets the database's clock pass the moment, too."""

_AT_ONCE = 2
"""Maximum connections that timers use; timers of one job wait for its row anyway."""

_AGAIN_SECONDS = 1.0
"""Pause of a duty that found the database away: outcomes wait for the beat after a stale lease."""

Duty = Callable[[], Awaitable[object]]
Pause = Callable[[float], Awaitable[object]]


async def every(
    seconds: float, duty: Duty, *, name: str, pause: Pause = asyncio.sleep, waits_first: bool = False
) -> None:
    """Carry out a duty for ever, with a pause after each time; cancel to stop.

    Errors do not end it: an outage is logged once by its code, any other error as `duty_failed` with its traceback.
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
    """Return a pause that ends early when `event` is set, and clears it."""

    async def pause(seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()
        event.clear()

    return pause


class NearTimers:
    """At most `most` timers of at most `within_seconds`, on one event loop."""

    def __init__(self, within_seconds: float = 5.0, most: int = 1000) -> None:
        self._within_seconds = within_seconds
        self._most = most
        self._tasks: set[asyncio.Task[None]] = set()
        self._places = asyncio.Semaphore(_AT_ONCE)

    def set(self, seconds: float, act: Duty) -> None:
        """Call `act` after `seconds`; the sweep does what is too far away, too much, or fails with the database."""
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
        """Cancel all timers and wait for them."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
