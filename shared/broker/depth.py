"""Ask the broker with short timeouts whether it takes wake-ups, and how many wait in its queues.

Works with transports that answer a passive declaration with a count (AMQP, kombu's Redis).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Any

import redis
from celery import Celery
from kombu import Connection

from planq.shared.broker import names
from planq.shared.broker.transport import Channel
from planq.shared.kernel.states import OWN_QUEUES, WakeQueue
from planq.shared.platform.errors import Misconfigured

_log = logging.getLogger("planq.broker")

_PATIENCE_SECONDS = 2.0
_NO_SUCH_QUEUE = "404"
"""AMQP's reply code; on Redis an empty queue does not exist."""

_REPLY_CHARS = 300


def patient_connection(app: Celery, patience_seconds: float) -> Connection:
    """Return an unopened connection with this timeout; raises `Misconfigured` for a bad URL."""
    try:
        connection = app.connection_for_write(connect_timeout=patience_seconds)
        if "socket_timeout" in connection.transport_options:  # the Redis protocol
            patience = {"socket_connect_timeout": patience_seconds, "socket_timeout": patience_seconds}
            connection.transport_options.update(patience)
    except (ValueError, KeyError, ImportError) as error:
        raise Misconfigured(f"BROKER_URL: expected a URL that Celery can read, found {error}") from error
    return connection


def open_once(connection: Connection, patience_seconds: float) -> None:
    connection.ensure_connection(max_retries=1, interval_start=0, timeout=patience_seconds)


def require_service(connection: Connection, patience_seconds: float) -> None:
    """Raise the client's error unless the broker takes connections and, on Redis, writes for every queue."""
    open_once(connection, patience_seconds)
    channel = connection.default_channel
    if isinstance(channel, Channel):
        channel.require_writable([name for queue in OWN_QUEUES for name in names.lists(queue)])


def reply_of(error: BaseException) -> str | None:
    """Return the Redis server's error reply behind an exception, its code first; None without one."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, redis.ResponseError):
        cause = cause.__cause__ or cause.__context__
    if cause is None:
        return None
    code = getattr(cause, "status_code", None)
    # redis-py puts the command of a pipeline before the reply, with a part of its arguments.
    text = " ".join(str(cause).rpartition("of pipeline caused error: ")[2].split())
    return (text if code is None or text.startswith(code) else f"{code} {text}")[:_REPLY_CHARS]


def message_count(connection: Connection, channel: Any, queue: str) -> int | None:
    """Return a queue's messages, 0 for an undeclared one; None if the broker refuses.

    The channel stays usable: a failed passive declaration closes it (AMQP 0-9-1), and py-amqp opens it again.
    """
    try:
        return int(channel.queue_declare(queue=queue, passive=True).message_count)
    except connection.channel_errors as error:
        return 0 if str(getattr(error, "reply_code", "")) == _NO_SUCH_QUEUE else None


def waiting_count(connection: Connection, channel: Any, queue: WakeQueue) -> int | None:
    counts = [message_count(connection, channel, name) for name in names.lists(queue)]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


class BrokerQueues:
    """Counts messages over an own connection and channel, which are closed at the first error."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._connection: Connection | None = None
        self._channel: Any = None
        self._asking: asyncio.Task[Collection[WakeQueue]] | None = None

    async def empty(self, queues: Collection[WakeQueue]) -> Collection[WakeQueue]:
        # One thread at most: a question that hangs is left behind, not joined by another.
        if self._asking is not None and not self._asking.done():
            return ()
        self._asking = asyncio.create_task(asyncio.to_thread(self._empty, tuple(queues)))
        done, _ = await asyncio.wait([self._asking], timeout=_PATIENCE_SECONDS)
        return self._asking.result() if done else ()

    def _empty(self, queues: tuple[WakeQueue, ...]) -> Collection[WakeQueue]:
        try:
            connection, channel = self._opened()
            return [queue for queue in queues if waiting_count(connection, channel, queue) == 0]
        except Exception as error:  # every client library has errors of its own here; all mean "not known"
            _log.warning("queues_not_counted", extra={"cause": reply_of(error) or repr(error)})
            self.close()
            return ()

    def _opened(self) -> tuple[Connection, Any]:
        if self._connection is None:
            self._connection = patient_connection(self._app, _PATIENCE_SECONDS)
        if self._channel is None:
            open_once(self._connection, _PATIENCE_SECONDS)
            self._channel = self._connection.channel()
        return self._connection, self._channel

    def close(self) -> None:
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            connection.collect()
