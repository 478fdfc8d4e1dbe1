"""In which of a queue's lists at the broker a wake-up waits, so that no tenant stands behind a flood of another.

A queue for what somebody waits for has several lists (`names.lists`), and workers take from them in turn. A tenant
keeps to one of two, which its name says: to the one where others have put less of late. So one that floods fills a
list, those whom it would keep waiting leave that list, and nobody has to know how many messages wait anywhere. Each
process goes by what it has seen itself. A wake-up in the wrong list waits for longer, and no more than that.
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
    """What this process has seen of late, by list and tenant; callable from any thread.

    A single tenant, `default`, has the first list of each queue for itself, and is not counted.
    """

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
        """Return the lists of a queue; from now on wake-ups that come from them are counted."""
        lists = self._lists[queue] = names.lists(names.queue_named(queue))
        self._names.update(lists)
        return lists

    def choose(self, queue: str, tenant: str) -> str:
        """Return in which list of a queue the next wake-up of a tenant waits, and count it."""
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
        """Count a wake-up of a tenant that came from a list of a queue that is known here."""
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
