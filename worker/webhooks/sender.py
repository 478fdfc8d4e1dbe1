"""Sends all deliveries that are due, of all tenants, as long as its worker lives.

Every `io` worker does so when its sweep finds some. A claim takes each delivery once; one whose worker was lost
between sending and its commit is sent again under the same id, by which the receiver knows it. A receiver that is
slow holds up nobody else: of one recipient only so many are under way at once.
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
"""Between two looks of its own: a sweep finds what is due and wakes a sender (`DeliverySender.wake`)."""

TIMEOUT_SECONDS = 15.0
"""Time in which a receiver must answer; after it the delivery is retried."""

_AT_ONCE = 50
"""Maximum number of deliveries that one worker sends at the same time."""

EACH = 8
"""How many of one recipient are taken at once; a claim takes no more, so that at most twice as many are under way."""

CHANNEL = "channel "
"""How the recipient of a message of a conversation begins."""

_CLOSE_SECONDS = 2.0
"""Less than a supervisor waits beyond the drain of a worker: what a receiver holds up is sent again anyway."""


class SendsDeliveries(Protocol):
    """What makes an attempt (`Poster`)."""

    async def send(self, delivery: Delivery) -> DeliveryOutcome:
        """Make one attempt; returns what became of it. Raises `DatabaseUnavailable`."""
        ...


def hold_for(timeout: timedelta) -> timedelta:
    """Return how long an attempt is waited for whose receiver gets `timeout`: a busy loop and a commit have room."""
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
        """Begin as many deliveries as are due and have room here. Raises `DatabaseUnavailable`."""
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
                # Those passed over are looked for as soon as one of their recipient's has ended.
                self._is_full = bool(busy)
                return
            self._is_full = room <= 0

    async def settle(self) -> None:
        while self._under_way:
            await asyncio.wait(self._under_way)

    async def close(self) -> None:
        """Begin nothing more; let what is under way end, for some seconds. Another worker sends the rest again."""
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
