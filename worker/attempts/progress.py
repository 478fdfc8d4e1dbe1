"""What a call reports while it runs: kept with its step, told to those who follow, and worth more time.

A report counts here at once. It is written at most once a second, less often the longer the call runs, and in time
for what the database gives the step.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from time import monotonic

from planq.shared.domain.errors import DatabaseUnavailable, capped

_MOST_CHARS = 500

_PAUSE_SECONDS = 1.0
_PAUSE_SHARE = 0.01
"""Of the time that the call has run: an hour has some 500 events, a day some 800."""

Write = Callable[[float | None, str, float | None], Awaitable[bool]]
"""Keeps what is done and the message, and gives so many seconds more; see `JobStore.report_progress`."""


class CallProgress:
    """The reports of one call (`Calling.report`); belongs to the event loop on which it is made.

    A report gives the call `seconds` more, and `prolong` is called with that, where it may take `longest` seconds in
    all; None: a report gives no time.
    """

    def __init__(
        self,
        write: Write,
        prolong: Callable[[float], None],
        *,
        seconds: float,
        longest: float | None,
        began: float | None = None,
        hide: Callable[[str], str] = str,
        clock: Callable[[], float] = monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`hide` takes out of a message what nobody may read; `clock` counts seconds, `sleep` lets some pass.

        `began` is when the call did, None for now.
        """
        self._write = write
        self._prolong = prolong
        self._seconds = seconds
        self._longest = longest
        self._hide = hide
        self._clock = clock
        self._sleep = sleep
        self._loop = asyncio.get_running_loop()
        self._began = clock() if began is None else began
        self._written_at = self._given_at = float("-inf")
        self._latest: tuple[float | None, str] | None = None
        self._writing: asyncio.Task[None] | None = None
        self._is_over = False

    def report(self, done: float | None, message: str) -> None:
        """Take a report; raises `ValueError` where `done` is no part of the whole."""
        if done is not None and not 0 <= done <= 1:
            raise ValueError(f"progress: expected a part from 0 to 1, or None, found {done!r}")
        if self._is_over:  # a thread that nobody waits for any more
            return
        self._latest = done, capped(self._hide(message), _MOST_CHARS)
        if self._longest is not None and (left := self._left(self._seconds)) > 0:
            self._prolong(left)
        if self._writing is None or self._writing.done():
            self._writing = self._loop.create_task(self._write_latest())

    def close(self) -> None:
        """Write nothing more: the call has ended."""
        self._is_over = True
        if self._writing is not None:
            self._writing.cancel()

    def _left(self, seconds: float) -> float:
        """Return how many of these seconds the call may still take."""
        return min(seconds, self._began + (self._longest or 0.0) - self._clock())

    async def _write_latest(self) -> None:
        while self._latest is not None:
            now = self._clock()
            is_worth_time = self._longest is not None and now - self._given_at >= self._seconds / 3
            pause = max(_PAUSE_SECONDS, _PAUSE_SHARE * (now - self._began))
            if not is_worth_time and (wait := self._written_at + pause - now) > 0:
                await self._sleep(min(wait, self._seconds / 3))
                continue
            (done, message), self._latest = self._latest, None
            # Beyond what counts here, so that the database never ends a call that this process lets go on.
            more = self._left(self._seconds * 4 / 3) if is_worth_time else None
            with contextlib.suppress(DatabaseUnavailable):  # the next report is written, or the lease is over
                await self._write(done, message, more)
                self._written_at = self._clock()
                self._given_at = now if is_worth_time else self._given_at
