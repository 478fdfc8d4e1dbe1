"""Notices that this worker beats but hears no wake-ups any more: its consumer was cancelled or lost in a reconnect.

Such a worker looks alive to everybody and does nothing (celery/celery #8030, #8091, #8384; hatchet #1796). The sign:
work of its own lane was published again and again while it stood idle, and nobody has claimed it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from time import monotonic

from shared.domain.states import Lane
from shared.store.worker_registry import WorkerRegistry

_log = logging.getLogger("planq.lifecycle")

_SETTLED = timedelta(seconds=3)
"""A wake-up reaches an idle worker in milliseconds; one that was published so long ago is not under way any more."""


class ConsumerWatchdog:
    """Asked at every heartbeat; `received` counts the messages that this worker has taken so far."""

    def __init__(
        self, worker_registry: WorkerRegistry, lane: Lane, patience: timedelta, received: Callable[[], int]
    ) -> None:
        self._registry = worker_registry
        self._lane = lane
        self._patience = patience
        self._received = received
        self._count = -1
        self._idle_since = 0.0

    async def is_lost(self, in_flight: int) -> bool:
        """Return whether this worker has been idle for its patience while wake-ups for it were published in vain.

        What the broker did not take counts as not published, so a broker that is away is no sign. Raises
        `DatabaseUnavailable`.
        """
        count, now = self._received(), monotonic()
        if in_flight or count != self._count:
            self._count, self._idle_since = count, now
            return False
        idle = timedelta(seconds=now - self._idle_since)
        if idle < self._patience:
            return False
        unheard = await self._registry.unanswered_wakes(self._lane, idle, _SETTLED)
        if unheard:
            _log.critical("consumer_stalled", extra={"lane": str(self._lane), "unheard": unheard, "idle": str(idle)})
        return bool(unheard)
