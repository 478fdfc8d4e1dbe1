"""Which of a queue's lists a tenant's wake-up waits in, so a flood of one tenant does not delay the others.

Workers take from the lists in turn. A tenant uses one of two lists, given by its name: the one where this process has
seen fewer wake-ups of others lately. So the others leave the list that one tenant floods. A wake-up in the wrong list
only waits longer.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from time import monotonic
from zlib import crc32

from planq.shared.broker import names
from planq.shared.kernel.ids import TENANT
from planq.shared.kernel.states import OWN_QUEUES

_HALF_LIFE_SECONDS = 30.0


class TenantLists:
    """Recent wake-ups by list and tenant; thread-safe. The tenant `default` always has the first list."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._halved_at = clock()
        self._seen: dict[str, Counter[str]] = {}
        self._totals = Counter[str]()
        self._lists: dict[str, tuple[str, ...]] = {}
        self._names: set[str] = set()
        for one in OWN_QUEUES:
            self.know(names.queue(one))

    def know(self, queue: str) -> tuple[str, ...]:
        """Return the lists of a queue, whose wake-ups are counted from now on."""
        lists = self._lists[queue] = names.lists(names.queue_named(queue))
        self._names.update(lists)
        return lists

    def choose(self, queue: str, tenant: str) -> str:
        """Return the list for the tenant's next wake-up, and count it."""
        first, *others = self._lists.get(queue) or self.know(queue)
        if not others or tenant in ("", TENANT):
            return first
        number = crc32(tenant.encode())
        home, places = number % len(others), len(others) - 1
        other = (home + 1 + number // len(others) % places) % len(others)
        with self._lock:
            self._fade()
            chosen = min(others[home], others[other], key=lambda name: self._of_others(name, tenant))
            self._count(chosen, tenant)
        return chosen

    def note(self, name: str, tenant: str) -> None:
        """Count a wake-up that came from a list of a known queue."""
        if tenant not in ("", TENANT) and name in self._names:
            with self._lock:
                self._fade()
                self._count(name, tenant)

    def _count(self, name: str, tenant: str) -> None:
        self._seen.setdefault(name, Counter())[tenant] += 1
        self._totals[name] += 1

    def _of_others(self, name: str, tenant: str) -> int:
        seen = self._seen.get(name)
        return 0 if seen is None else self._totals[name] - seen[tenant]

    def _fade(self) -> None:
        while self._clock() - self._halved_at >= _HALF_LIFE_SECONDS and self._seen:
            self._halved_at += _HALF_LIFE_SECONDS
            halves = {
                name: Counter({t: n // 2 for t, n in seen.items() if n > 1}) for name, seen in self._seen.items()
            }
            self._seen = {name: seen for name, seen in halves.items() if seen}
            self._totals = Counter({name: seen.total() for name, seen in self._seen.items()})
        if not self._seen:
            self._halved_at = self._clock()
