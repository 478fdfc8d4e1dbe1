"""Sends all due deliveries of all tenants while its worker lives.

A claim takes each delivery once; if a worker is lost between sending and its commit, the delivery is sent again with
the same id. A slow receiver delays no other: the deliveries of one recipient are bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import MutableMapping
from datetime import timedelta
from typing import Protocol

from planq.shared.platform.errors import DatabaseUnavailable, ErrorRecord
from planq.shared.platform.timers import every, woken_by
from planq.shared.subjects.webhooks.deliveries import PostgresDeliveries
from planq.shared.subjects.webhooks.rules import Delivery, DeliveryOutcome, after_failure
from planq.worker.engine.persist import persist

_log = logging.getLogger("planq.webhooks")

TICK_SECONDS = 60.0
"""Pause between two looks without a wake-up: a sweep finds what is due and calls `DeliverySender.wake`."""

TIMEOUT_SECONDS = 15.0
"""Time in which a receiver must answer; after it the delivery is retried."""

_AT_ONCE = 50
"""Maximum number of deliveries that one worker sends at the same time."""

EACH = 8
"""Maximum deliveries of one recipient in a claim, so at most twice as many are under way."""

CHANNEL = "channel "
"""Prefix of the recipients of conversation messages."""

_CLOSE_SECONDS = 2.0
"""Must be shorter than the supervisor's grace period. An interrupted delivery is retried anyway."""


class SendsDeliveries(Protocol):
    """Makes attempts at deliveries (`Poster`)."""

    async def send(self, delivery: Delivery) -> DeliveryOutcome:
        """Make one attempt; returns what became of it. Raises `DatabaseUnavailable`."""
        ...


def hold_for(timeout: timedelta) -> timedelta:
    """Return the hold of an attempt whose receiver has `timeout`, with room for a busy loop and a commit."""
    return 2 * timeout + timedelta(seconds=60)


class DeliverySender:
    """The deliveries of one worker; lives on one event loop. `counts` are totals by name and outcome."""

    def __init__(
        self,
        store: PostgresDeliveries,
        poster: SendsDeliveries,
        counts: MutableMapping[tuple[str, ...], int],
        *,
        most: int = _AT_ONCE,
        tick_seconds: float = TICK_SECONDS,
    ) -> None:
        self._store = store
        self._poster = poster
        self._counts = counts
        self._most = most
        self._tick_seconds = tick_seconds
        self._under_way: dict[asyncio.Task[None], str] = {}
        self._is_full = False
        self._freed = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._running = asyncio.create_task(
            every(self._tick_seconds, self.fill, name="deliveries", pause=woken_by(self._freed))
        )

    def wake(self) -> None:
        """Look at once for what is due."""
        self._freed.set()

    async def fill(self) -> None:
        """Start as many due deliveries as there is room for. Raises `DatabaseUnavailable`."""
        self._is_full = False
        while not self._is_full:
            of_each = Counter(self._under_way.values())
            busy = [recipient for recipient, count in of_each.items() if count >= EACH]
            room = min(EACH, self._most - len(self._under_way))
            claimed = await self._store.claim(room, busy) if room > 0 else ()
            for delivery in claimed:
                task = asyncio.create_task(self._deliver(delivery))
                self._under_way[task] = delivery.recipient
                task.add_done_callback(self._ended)
            if len(claimed) < room:
                # Skipped deliveries are looked for as soon as one of their recipient has ended.
                self._is_full = bool(busy)
                return
            self._is_full = room <= 0

    async def settle(self) -> None:
        while self._under_way:
            await asyncio.wait(self._under_way)

    async def close(self) -> None:
        """Start nothing more and give running deliveries some seconds to end. Another worker sends the rest again."""
        if self._running is not None:
            self._running.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self.settle()
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        recipient = self._under_way.pop(task)
        if self._is_full or recipient.startswith(CHANNEL):  # where more of its conversation may follow
            self.wake()
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("delivery_not_ended", exc_info=error)  # whoever finds it overdue sends it again

    async def _deliver(self, delivery: Delivery) -> None:
        if delivery.is_doubtful:
            _log.warning("delivery_repeated", extra={"delivery": str(delivery.id), "tenant": delivery.tenant_id})
        try:
            outcome = await persist(self._poster.send, delivery)
        except DatabaseUnavailable:
            raise
        except Exception as error:
            _log.exception("delivery_broke", extra={"delivery": str(delivery.id)})
            described = ErrorRecord.of(error)
            again = ErrorRecord(described.code, described.message, retryable=True)
            outcome = after_failure(again, delivery.tries, None, 0.0)
        applied = await persist(self._store.finish, delivery, outcome)
        _tell(delivery, outcome, applied=applied)
        result = "sent" if outcome.is_sent else "failed" if outcome.again is None else "again"
        if outcome.is_uncertain and outcome.again is None:
            result = "uncertain"
        key = ("delivery", result)
        self._counts[key] = self._counts.get(key, 0) + 1


def _tell(delivery: Delivery, outcome: DeliveryOutcome, *, applied: bool) -> None:
    if outcome.error is None:
        return
    fields = {
        "delivery": str(delivery.id),
        "tenant": delivery.tenant_id,
        "recipient": delivery.recipient,
        "code": outcome.error.code,
        "cause": outcome.error.message,
        "attempt": delivery.attempt,
        "applied": applied,
    }
    if outcome.problem is not None:
        _log.error("channel_problem", extra={"tenant": delivery.tenant_id, "channel": delivery.channel})
    event = "delivery_failed" if outcome.again is None else "delivery_retrying"
    _log.warning("delivery_uncertain" if outcome.is_uncertain else event, extra=fields)
