"""How long a worker process may take its lease for granted, also in the child processes that it has forked.

The mark lies in anonymous shared memory, which children inherit; the system's monotonic clock is the same for all of
them. Only the worker's companion thread moves the mark, after each heartbeat and the comparison that follows it.
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


class Lease:
    """The worker's own view of its lease. Make it before any child is forked."""

    def __init__(self, duration: timedelta, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` counts seconds and is the same in every process of the worker."""
        self._seconds = duration.total_seconds()
        self._clock = clock
        self._mark = mmap.mmap(-1, struct.calcsize(_FORMAT))
        self.renewed(clock())

    def renewed(self, at: float) -> None:
        """Note a renewal that was asked for at `at` on the clock, its consequences drawn; from one thread only."""
        struct.pack_into(_FORMAT, self._mark, 0, at)

    @property
    def is_fresh(self) -> bool:
        """False when others may have taken over what this worker holds."""
        (at,) = struct.unpack_from(_FORMAT, self._mark, 0)
        return bool(self._clock() - at <= self._seconds)

    async def until_fresh(self) -> None:
        """Return at once while the lease is fresh, else when it has been renewed; cancel to give up."""
        while True:  # the mark is moved by another thread or process, which can set no event here
            if self.is_fresh:
                return
            await asyncio.sleep(_POLL_SECONDS)
