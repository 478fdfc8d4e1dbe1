"""How long a worker process may take its lease for granted, also in the child processes that it has forked.

The mark lies in anonymous shared memory, which children inherit; the clock is the same for all of them, and counts
the time for which the machine slept. Only the worker's companion thread moves the mark, after each heartbeat and the
comparison that follows it.

The mark is the moment before a renewal was asked for, and the database counts from a later one. So by this clock a
lease is over before it is by the database's, by its margin at least.
"""

from __future__ import annotations

import asyncio
import mmap
import struct
import time
from collections.abc import Callable
from datetime import timedelta

_POLL_SECONDS = 0.2

_FORMAT = "d"

_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_clock() -> float:
    """Return seconds since the machine was started; where the system can tell (Linux), with those of its sleep."""
    return time.clock_gettime(_BOOT_CLOCK)


class Lease:
    """The worker's own view of its lease. Make it before any child is forked.

    `on_renewal` may be set once: it is called after each renewal, in the same thread.
    """

    def __init__(
        self, duration: timedelta, margin: timedelta = timedelta(0), clock: Callable[[], float] = boot_clock
    ) -> None:
        """The worker's own lease ends `margin` before the database's. `clock` is the same in all its processes."""
        self._seconds = (duration - margin).total_seconds()
        self.margin_seconds = margin.total_seconds()
        self.clock = clock
        self.on_renewal: Callable[[], None] = lambda: None
        self._mark = mmap.mmap(-1, struct.calcsize(_FORMAT))
        self.renewed(clock())

    def renewed(self, at: float) -> None:
        """Note a renewal that was asked for at `at` on the clock, its consequences drawn; from one thread only."""
        struct.pack_into(_FORMAT, self._mark, 0, at)
        self.on_renewal()

    @property
    def ends_at(self) -> float:
        """The moment, on the clock, from which on this worker must not act on its lease any more."""
        (at,) = struct.unpack_from(_FORMAT, self._mark, 0)
        return float(at) + self._seconds

    @property
    def is_fresh(self) -> bool:
        """False when others may soon take over, or have taken over, what this worker holds."""
        return self.clock() <= self.ends_at

    async def until_fresh(self) -> None:
        """Return at once while the lease is fresh, else when it has been renewed; cancel to give up."""
        while True:  # the mark is moved by another thread or process, which can set no event here
            if self.is_fresh:
                return
            await asyncio.sleep(_POLL_SECONDS)
