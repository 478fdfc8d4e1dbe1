"""Slots: how many chains one process carries out at once, and whose turn it is.

A step is claimed only when there is a slot for it, because the time of a claimed step runs.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias
from uuid import UUID

from planq.shared.kernel.states import Priority


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


_Place: TypeAlias = "tuple[bool, float, int, _Line]"
"""Where a party is among those that wait: at its most or not, its share, when its line began."""


@dataclass(slots=True, eq=False)
class _Line:
    """The turns of a party that waits, and its place among the parties of its kind."""

    party: Party
    number: int
    turns: list[_Turn] = field(default_factory=list)
    kind: list[_Place] = field(default_factory=list)
    place: _Place | None = None


class Slots:
    """Belongs to one event loop. Bulk work takes at most `bulk` of them, and only while nobody else waits for one.

    One that comes free goes to the tenant that holds the fewest for its weight (`Shares`), and of this one to its
    oldest job that waits. Nothing is taken from anybody, so there is a reserve beyond `count`, of an eighth for what
    is not slow while slow calls hold most slots, and of another one for tenants that hold next to nothing while
    others hold most. A tenant alone has all of `count`, as if there were no shares.

    Parties that wait are sorted as their shares change, so a grant costs the same however many tenants wait. There is
    one list for each priority and kind: tenants that hold next to nothing, what is not slow, what is slow. All of one
    list may take a slot, or none.
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
        self._lines: dict[str, dict[Party, _Line]] = {}
        self._kinds: dict[Priority, tuple[list[_Place], ...]] = {one: ([], [], []) for one in Priority}
        self._numbers = itertools.count()
        self._is_closed = False
        self._returned = asyncio.Event()

    def free(self, party: Party = ANYBODY) -> int:
        """Return how many can be had at once: 0 while others wait for theirs who go first."""
        ahead = self._next() if self._lines else None
        return self._left(party) if ahead is None or self._rank(party) < self._rank(ahead.party) else 0

    def reserve(self, most: int, party: Party = ANYBODY) -> int:
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
        self._change(-count, party)
        if self._lines:
            self._call_next()

    def hand_over(self, count: int, party: Party, to: Party) -> None:
        self._change(-count, party)
        self._change(count, to)
        self._call_next()

    @contextlib.asynccontextmanager
    async def closed(self, patience_seconds: float) -> AsyncIterator[bool]:
        """Give out no slots until all are back, within the patience, and while the block runs; it may `exceed`.

        The block is told whether they are. Not to be nested.
        """
        self._is_closed = True
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience_seconds):
                    while self._held:
                        self._returned.clear()
                        await self._returned.wait()
            yield not self._held
        finally:
            self._is_closed = False
            self._call_next()

    def exceed(self, count: int) -> None:
        """Take slots, however few are free: each of them is released as any other."""
        self._change(count, ANYBODY)

    def is_wanted_from(self, party: Party) -> bool:
        """True while this tenant should begin nothing more for itself.

        No slots are given out, or another waits, and holds not half as much for its weight, or this one has more than
        it may then.

        Where two hold about as much, each chain would give its slot up for the other's, a message each time.
        """
        if self._is_closed or not self._lines:
            return self._is_closed
        mine, share = self._shares[party.tenant], self._share(party.tenant)
        for priority in Priority if party.priority is Priority.BULK else (Priority.INTERACTIVE,):
            for places in self._kinds[priority]:
                # The first of another tenant holds the least; a tenant has at most two places in a list.
                for is_at_most, least, _, line in places[:3]:
                    if line.party.tenant != party.tenant:
                        if not is_at_most and (mine > self._most or 2 * least < share):
                            return True
                        break
        return False

    def _share(self, tenant: str) -> float:
        return self._shares[tenant] / self._weights.get(tenant, 1.0)

    def _left(self, party: Party) -> int:
        if self._is_closed:
            return 0
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
        if not self._held:
            self._returned.set()
        self._shares[party.tenant] += count
        if not self._shares[party.tenant]:
            del self._shares[party.tenant]
        if party.is_slow:
            self._slow += count
        if party.priority is Priority.BULK:
            self._bulk_held += count
        for line in self._lines.get(party.tenant, {}).values():
            self._sort(line)

    def _rank(self, party: Party) -> tuple[bool, bool, float]:
        tenant = party.tenant
        return party.priority is Priority.BULK, self._shares[tenant] >= self._most, self._share(tenant)

    async def _turn(self, party: Party, job_id: UUID) -> None:
        lines = self._lines.setdefault(party.tenant, {})
        if party not in lines:
            lines[party] = _Line(party, next(self._numbers))
            self._sort(lines[party])
        line = lines[party]
        loop = asyncio.get_running_loop()
        turn = _Turn(self._clock() // _PATIENCE_SECONDS, job_id, next(self._numbers), loop.create_future())
        bisect.insort(line.turns, turn)
        try:
            await turn.called
            # Between the call and now somebody who goes first may have taken it, or have come to wait.
            while not self._left(party) or self._is_behind(party):
                turn.called = loop.create_future()
                await turn.called
        except asyncio.CancelledError:
            self._leave(line, turn)
            self._call_next()  # the next in line must not wait for one who has gone
            raise
        self._leave(line, turn)

    def _is_behind(self, party: Party) -> bool:
        ahead = self._next()
        return ahead is not None and self._rank(ahead.party) < self._rank(party)

    def _leave(self, line: _Line, turn: _Turn) -> None:
        line.turns.remove(turn)
        if not line.turns:
            self._take_out(line)
            tenant = line.party.tenant
            del self._lines[tenant][line.party]
            if not self._lines[tenant]:
                del self._lines[tenant]

    def _sort(self, line: _Line) -> None:
        """Put a line in its place, again after each change of what its tenant holds."""
        self._take_out(line)
        party = line.party
        _, is_at_most, share = self._rank(party)
        number = 0 if self._shares[party.tenant] < self._few else 1 + party.is_slow
        line.kind, line.place = self._kinds[party.priority][number], (is_at_most, share, line.number, line)
        bisect.insort(line.kind, line.place)

    def _take_out(self, line: _Line) -> None:
        if line.place is not None:
            del line.kind[bisect.bisect_left(line.kind, line.place)]
            line.place = None

    def _next(self) -> _Line | None:
        """Return who gets the next slot: interactive before bulk, the smallest share, of a tenant the oldest job."""
        if self._is_closed:
            return None
        beyond = (2 * self._few, self._few if 2 * self._slow > self._count else 0, 0)  # as in `_left`
        for priority, kinds in self._kinds.items():
            if priority is Priority.BULK and self._bulk_held >= self._bulk:
                continue
            able = zip(kinds, beyond, strict=True)
            firsts = [places[0] for places, more in able if places and self._held < self._count + more]
            if firsts:
                *_, first = min(firsts)
                own = self._lines[first.party.tenant].values()
                alike = (line for line in own if line.party.priority is priority and self._left(line.party))
                return min(alike, key=lambda line: line.turns[0])
        return None

    def _call_next(self) -> None:
        line = self._next()
        if line is not None and not (called := line.turns[0].called).done():
            called.set_result(None)


def reserved_slots(slots: int) -> int:
    """Return half of how many slots a worker keeps beyond its own, above all for who holds next to none (`Slots`)."""
    return slots // 8


def bulk_slots(slots: int) -> int:
    """Return how many of a worker's slots bulk work may take: three quarters, and at least one.

    The rest is kept free so that an interactive job never waits for a bulk one to end.
    """
    return max(1, slots * 3 // 4)
