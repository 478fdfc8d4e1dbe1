"""The port `Queues`: which queues of the broker hold no message, asked from a thread with a bound.

Works with every transport that answers a passive declaration with a count (AMQP, and kombu's Redis).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Any

from celery import Celery

from shared.broker import names
from shared.domain.states import Lane

_log = logging.getLogger("planq.broker")

_NO_SUCH_QUEUE = "404"
"""AMQP's reply code; on Redis a queue without messages does not exist."""


class BrokerQueues:
    """Counts messages over a connection of its own, which is given up at the first fault."""

    def __init__(self, app: Celery, *, patience_seconds: float = 2.0) -> None:
        self._app = app
        self._patience_seconds = patience_seconds
        self._connection: Any = None
        self._asking: asyncio.Task[Collection[Lane]] | None = None

    async def empty(self, lanes: Collection[Lane]) -> Collection[Lane]:
        """Return those of `lanes` whose queue is known to hold no message; none when the broker does not answer."""
        # One thread at most: a question that hangs is left behind, not joined by another.
        if self._asking is not None and not self._asking.done():
            return ()
        self._asking = asyncio.create_task(asyncio.to_thread(self._empty, tuple(lanes)))
        done, _ = await asyncio.wait([self._asking], timeout=self._patience_seconds)
        return self._asking.result() if done else ()

    def close(self) -> None:
        """Close the connection; what still asks may fail. Idempotent."""
        self._give_up()

    def _empty(self, lanes: tuple[Lane, ...]) -> Collection[Lane]:
        try:
            return [lane for lane in lanes if self._count(lane) == 0]
        except Exception as error:  # every client library has errors of its own here; all mean "not known"
            _log.warning("queues_not_counted", extra={"cause": repr(error)})
            self._give_up()
            return ()

    def _count(self, lane: Lane) -> int:
        if self._connection is None:
            self._connection = self._app.connection_for_write(connect_timeout=self._patience_seconds)
            self._connection.ensure_connection(max_retries=1, interval_start=0, timeout=self._patience_seconds)
        connection = self._connection
        try:
            with connection.channel() as channel:
                count: int = channel.queue_declare(queue=names.queue(lane), passive=True).message_count
        except connection.channel_errors as error:
            if str(getattr(error, "reply_code", "")) != _NO_SUCH_QUEUE:
                raise
            return 0
        return count

    def _give_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.collect()
