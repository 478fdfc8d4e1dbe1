"""Duties of the whole installation, which one worker at a time carries out: its workers take turns.

No worker assigns a turn. Each one learns from the answer to its heartbeat which workers live, and computes its own
moments from their order. If two answers or two clocks differ for a moment, a duty is carried out twice or one turn is
skipped: every write of such a duty is guarded, and the next worker comes one pace later.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from planq.shared.kernel.states import Pool

_MOST = 10
"""Each worker has a turn at least every this many paces, however many others live."""


class Turns:
    """The place of one worker among those that take turns: all of the pool `io`; without any of these, all workers.

    Any other worker has one turn in `_MOST` paces: it finds the quarantined work of its pool, and lost workers.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """`clock` (seconds) is one that workers of other machines share."""
        self._clock = clock
        self._place, self._count = 0, 1

    def learn(self, worker_id: UUID, alive: Sequence[Mapping[str, Any]]) -> None:
        """Take the place of a worker among those that live, in the same order for all (`Standing.alive`)."""
        ids = [one["id"] for one in alive if Pool.IO in one["pools"]] or [one["id"] for one in alive]
        if str(worker_id) in ids:
            self._place, self._count = ids.index(str(worker_id)) % _MOST, min(len(ids), _MOST)
        else:
            self._place, self._count = 0, _MOST

    def cycle(self, pace: float) -> float:
        """Return the seconds between two turns of this worker; `pace` is the seconds between two turns of all."""
        return pace * self._count

    def until_next(self, pace: float) -> float:
        """Return the seconds to this worker's next turn, at least half a pace, so that none comes twice."""
        cycle, least = self.cycle(pace), pace / 2
        return least + (self._place * pace - self._clock() - least) % cycle

    async def pause(self, pace: float) -> None:
        """Return at this worker's next turn."""
        await asyncio.sleep(self.until_next(pace))
