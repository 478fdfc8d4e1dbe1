"""Slots: how many chains one process carries out at once, and whose turn it is.

A step is claimed only when there is a slot for it, because the time of a claimed step runs.
"""

from __future__ import annotations

import asyncio
import bisect
import itertools
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from planq.shared.domain.jobs.states import Priority


@dataclass(frozen=True, slots=True)
class Party:
    """For whom a slot is wanted: whose share it is of, whether somebody waits for it, and whether it waits itself.

    What `is_slow` waits for others, as a fetch does: other steps need not wait for it to end.
    """

    tenant: str = ""
    priority: Priority = Priority.INTERACTIVE
    is_slow: bool = False


ANYBODY = Party()
_NO_JOB = UUID(int=0)


_PATIENCE_SECONDS = 60.0
"""For so long, at most, the older jobs of a tenant pass a younger one by: else a wide job would keep it waiting until
its last step."""


@dataclass(frozen=True, slots=True)
class Shares:
    """How slots are shared among tenants: by their `weights`, 1 for one that has none, as fast as slots come free.

    One that holds `most` of all slots gets no more while another waits, whatever it weighs.
    """

    weights: Mapping[str, float] = field(default_factory=dict)
    most: float = 0.5


EQUAL_SHARES = Shares()


@dataclass(order=True, slots=True)
class _Turn:
    """A place in a line: who came in an earlier `period` goes first, then the older job, then who came first."""

    period: float
    job_id: UUID
    number: int
    called: asyncio.Future[None] = field(compare=False)


class Slots:
    """Belongs to one event loop. Bulk work takes at most `bulk` of them, and only while nobody else waits for one.

    One that comes free goes to the tenant that holds the fewest for its weight (`Shares`), and of this one to its
    oldest job that waits. Nothing is taken from anybody, so there is a reserve beyond `count`, of an eighth for what
    is not slow while slow calls hold most slots, and of another one for tenants that hold next to nothing while
    others hold most. A tenant alone has all of `count`, as if there were no shares.
    """

    def __init__(
        self,
        count: int,
        bulk: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        shares: Shares = EQUAL_SHARES,
    ) -> None:
        self._count = count
        self._weights = shares.weights
        self._most = shares.most * count
        self._clock = clock
        self._few = reserved_slots(count)
        self._held = 0
        self._slow = 0
        self._bulk = count if bulk is None else bulk
        self._bulk_held = 0
        self._shares = Counter[str]()
        self._waiting: dict[Party, list[_Turn]] = {}
        self._numbers = itertools.count()

    def free(self, party: Party = ANYBODY) -> int:
        """Return how many can be had at once: 0 while others wait for theirs who go first."""
        ahead = self._next() if self._waiting else None
        return self._left(party) if ahead is None or self._rank(party) < self._rank(ahead) else 0

    def reserve(self, most: int, party: Party = ANYBODY) -> int:
        """Take up to `most` of the free slots; returns how many."""
        taken = max(0, min(most, self.free(party)))
        self._change(taken, party)
        return taken

    async def wait(self, most: int = 1, party: Party = ANYBODY, job_id: UUID = _NO_JOB) -> int:
        """Wait for a slot, then take up to `most` of the free ones; returns how many, at least 1.

        Whose `job_id` is lower, and so older, waits less.
        """
        if not self.free(party):
            await self._turn(party, job_id)
        taken = min(most, self._left(party))
        self._change(taken, party)
        self._call_next()
        return taken

    def release(self, count: int = 1, party: Party = ANYBODY) -> None:
        """Give slots back."""
        self._change(-count, party)
        if self._waiting:
            self._call_next()

    def hand_over(self, count: int, party: Party, to: Party) -> None:
        """Count slots that somebody holds for another party."""
        self._change(-count, party)
        self._change(count, to)
        self._call_next()

    def is_wanted_from(self, party: Party) -> bool:
        """True while this tenant should begin nothing more for itself.

        Another waits, and holds not half as much for its weight, or this one has more than it may then.

        Where two hold about as much, each chain would give its slot up for the other's, a message each time.
        """
        if not self._waiting:
            return False
        mine = self._shares[party.tenant]
        share = self._share(party.tenant)
        return any(
            mine > self._most or 2 * self._share(other.tenant) < share
            for other in self._waiting
            if other.tenant != party.tenant
            and self._shares[other.tenant] < self._most
            and (other.priority is Priority.INTERACTIVE or party.priority is Priority.BULK)
        )

    def _share(self, tenant: str) -> float:
        return self._shares[tenant] / self._weights.get(tenant, 1.0)

    def _left(self, party: Party) -> int:
        mine = self._shares[party.tenant]
        most = self._count
        if mine < self._few and 2 * (self._held - mine) > self._count:
            most += 2 * self._few
            left = min(most - self._held, self._few - mine)
        else:
            most += self._few if not party.is_slow and 2 * self._slow > self._count else 0
            left = most - self._held
        if party.priority is Priority.BULK:
            left = min(left, self._bulk - self._bulk_held)
        return max(0, left)

    def _change(self, count: int, party: Party) -> None:
        self._held += count
        self._shares[party.tenant] += count
        if not self._shares[party.tenant]:
            del self._shares[party.tenant]
        if party.is_slow:
            self._slow += count
        if party.priority is Priority.BULK:
            self._bulk_held += count

    def _rank(self, party: Party) -> tuple[bool, bool, float]:
        tenant = party.tenant
        return party.priority is Priority.BULK, self._shares[tenant] >= self._most, self._share(tenant)

    async def _turn(self, party: Party, job_id: UUID) -> None:
        line = self._waiting.setdefault(party, [])
        loop = asyncio.get_running_loop()
        turn = _Turn(self._clock() // _PATIENCE_SECONDS, job_id, next(self._numbers), loop.create_future())
        bisect.insort(line, turn)
        try:
            await turn.called
            # Between the call and now somebody who goes first may have taken it, or have come to wait.
            while not self._left(party) or self._rank(self._next() or party) < self._rank(party):
                turn.called = loop.create_future()
                await turn.called
        except asyncio.CancelledError:
            self._leave(line, turn, party)
            self._call_next()  # the next in line must not wait for one who has gone
            raise
        self._leave(line, turn, party)

    def _leave(self, line: list[_Turn], turn: _Turn, party: Party) -> None:
        line.remove(turn)
        if not line:
            del self._waiting[party]

    def _next(self) -> Party | None:
        """Return who gets the next slot: interactive before bulk, the smallest share, of a tenant the oldest job."""
        able = [party for party in self._waiting if self._left(party)]
        if not able:
            return None
        first = min(able, key=self._rank)
        alike = (party for party in able if (party.tenant, party.priority) == (first.tenant, first.priority))
        return min(alike, key=lambda party: self._waiting[party][0])

    def _call_next(self) -> None:
        party = self._next()
        if party is not None and not (called := self._waiting[party][0].called).done():
            called.set_result(None)


def reserved_slots(slots: int) -> int:
    """Return half of how many slots a worker keeps beyond its own, above all for who holds next to none (`Slots`)."""
    return slots // 8


def bulk_slots(slots: int, share: float) -> int:
    """Return how many of a worker's slots bulk work may take: its share, and one at least."""
    return max(1, int(slots * share))
