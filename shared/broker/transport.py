"""kombu's Redis transport, made to survive the loss of Redis.

Differences from stock kombu 5.7.0:
- Losing Redis with unacknowledged messages does not end the worker: they stay on the server or are lost, the claim
  makes a redelivery harmless, and the sweeper publishes missing ones.
- Remote control is read without waiting: the thread that takes messages would block for ever.
- An entry that is no message, too large or compressed goes to `Channel.on_unreadable` instead of ending the worker.
  `refuse_hostile` does the same for RabbitMQ.
- Unacknowledged messages are counted in memory (`ack_emulation` off), which bounds what a worker takes. The sweeper
  republishes those of a killed worker within seconds; Redis would after an hour, at two transactions per message.
- Queues with a window (bulk) come last, and are left out while that many of their messages are unacknowledged; a
  `Reserve` keeps slots for queues with few. A wait ends as soon as a left-out queue has room again.
- A fork gets new locks where kombu and Celery share one per class (their `cached_property`, and Python's before
  3.12): the heartbeat's thread may hold one during the fork of a `cpu` worker, and does not exist in the child.

kombu's integration tests for Redis run on it: `tests/integration/broker/test_kombu_suite.py`.
"""

from __future__ import annotations

import functools
import logging
import os
import socket
import ssl
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from queue import Empty
from types import MappingProxyType
from typing import Any, cast

import redis.client
from kombu.transport import TRANSPORT_ALIASES, pyamqp, virtual
from kombu.transport import redis as kombu_redis
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import dumps, loads
from kombu.utils.objects import cached_property
from kombu.utils.scheduling import round_robin_cycle

from planq.shared.broker import names
from planq.shared.broker.messages import NoWakeUp, check_length, check_unpacked

_log = logging.getLogger("planq.broker")

LONGEST_CHARS = 4_096
"""Maximum length kept of a refused message."""

# kombu 5.7 puts a prefix before the keys of these commands alone. One that it uses itself is missing, so that every
# queue seemed empty; the others are planq's.
_PREFIXED = kombu_redis.GlobalKeyPrefixMixin.PREFIXED_SIMPLE_COMMANDS
_PREFIXED += [command for command in ("EXISTS", "LPUSHX", "LRANGE", "LTRIM") if command not in _PREFIXED]

_SHARE_LOCKS = ("amqp", "celery", "kombu", "planq.shared.broker", "redis")
"""Packages whose classes have such locks."""

_SCHEMES = {"redis": "planqredis", "rediss": "planqrediss", "redis+socket": "planqredis+socket"}


@dataclass(frozen=True, slots=True)
class Reserve:
    """Above `most` unacknowledged messages, `more` slots are for queues with fewer than `few` of them."""

    most: int
    few: int
    more: int


class QoS(virtual.QoS):  # type: ignore[misc]
    """Tracks unacknowledged messages; tolerates a lost connection. Acknowledge from any thread."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._queues: dict[Any, str] = {}

    def restore_unacked(self) -> list[tuple[BaseException, Any]]:
        """Return messages to Redis, or forget them; returns no errors, which kombu would write to a file."""
        self._flush()
        delivered = self._delivered
        while delivered:
            _, message = delivered.popitem()
            try:
                self.channel._restore(message)
            except Exception as error:  # whatever redis-py and kombu raise on a torn-down connection
                _log.warning("unacknowledged_not_restored", extra={"count": 1 + len(delivered), "cause": repr(error)})
                delivered.clear()
        self._queues.clear()
        return []

    def append(self, message: Any, delivery_tag: Any) -> None:
        super().append(message, delivery_tag)
        self._queues[delivery_tag] = self.channel.taken_from

    def ack(self, delivery_tag: Any) -> None:
        self._queues.pop(delivery_tag, None)
        super().ack(delivery_tag)

    def reject(self, delivery_tag: Any, requeue: bool = False) -> None:
        self._queues.pop(delivery_tag, None)
        super().reject(delivery_tag, requeue)

    def counts(self) -> Counter[str]:
        return Counter(tuple(self._queues.values()))

    @property
    def is_about_full(self) -> bool:
        """True if the unacknowledged messages reach or just reached the maximum: the consumer may be pausing."""
        return bool(self.prefetch_count) and len(self._delivered) - len(self._dirty) >= self.prefetch_count - 1


class PubSub(redis.client.PubSub):
    """The connection for remote control, read without waiting or reconnecting behind kombu's back."""

    def parse_response(self, block: bool = True, timeout: float = 0) -> Any:
        """Return the next message that has arrived, or None; with `block` (kombu's way) it does not wait.

        Raises redis-py's `ConnectionError` for a lost connection: Celery then reconnects and registers all with its
        event loop, which redis-py cannot do.
        """
        connection: Any = self.connection
        if connection is None or not connection.is_connected:
            raise redis.ConnectionError("the connection for remote control is gone")
        if not connection.can_read(timeout=0 if block else timeout):
            return None
        response = connection.read_response(push_request=True)
        if self.is_health_check_response(response):
            self.health_check_response_counter -= 1
            return None
        return response


class PrefixedPubSub(kombu_redis.PrefixedRedisPubSub, PubSub):  # type: ignore[misc]
    """The same with prefixed keys."""


class _EntryMessage(virtual.Message):  # type: ignore[misc]
    """A message from a queue; raises `NoWakeUp` for other entries."""

    def __init__(self, payload: Any, channel: Any = None, **kwargs: Any) -> None:
        try:
            check_unpacked(payload.get("headers"))
            super().__init__(payload, channel=channel, **kwargs)
            hash(self.delivery_tag)
        except NoWakeUp:
            raise
        except Exception as error:  # whatever kombu stumbles over in what anybody may have written there
            raise NoWakeUp(f"the entry is no message ({type(error).__name__}: {error})") from error


class _AmqpMessage(pyamqp.Message):  # type: ignore[misc]
    """A message of RabbitMQ; too large or compressed, it is an error with its beginning only."""

    def __init__(self, msg: Any, channel: Any = None, **kwargs: Any) -> None:
        try:
            check_length(len(msg.body))
            check_unpacked(msg.properties.get("application_headers"))
        except NoWakeUp as refusal:
            self.errors = [(NoWakeUp, refusal, None)]  # kombu unpacks nothing that has errors
            msg.body = msg.body[:LONGEST_CHARS]
        super().__init__(msg, channel=channel, **kwargs)


def refuse_hostile(channel: Any) -> None:
    """Pass too large or compressed AMQP messages unread to `on_decode_error`."""
    channel.Message = _AmqpMessage


class _OpenQueues(round_robin_cycle):  # type: ignore[misc]
    """The queues to wait for: in turn, those with a window last, none without room."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel

    def consume(self, n: int) -> list[str]:
        channel = self._channel
        wanted = [queue for queue in self.items[:n] if queue not in channel._left_out]
        return sorted(wanted, key=channel.windows.__contains__)


class Channel(kombu_redis.Channel):  # type: ignore[misc]
    """A Redis channel with tolerant bookkeeping, one client for commands, and a listener that never waits."""

    Message = _EntryMessage

    on_unreadable: Callable[[str, Any, str], None] | None = None
    """Set by the consumer: gets each invalid entry with its queue and the reason."""

    heard_by: int | None = None
    """Connections that got the last fan-out message; None before the first."""

    windows: Mapping[str, int] = MappingProxyType({})
    """Set by the consumer: maximum unacknowledged messages by queue; other queues come first."""

    reserve: Reserve | None = None
    """Set by the consumer: slots above its `most` are for some queues only."""

    taken_from = ""
    """The queue of the message being delivered."""

    _commands: Any = None
    _in_poll: Any = None
    _left_out: tuple[str, ...] = ()
    _waiter: Any = None
    _waiter_id = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._queue_cycle = _OpenQueues(self)
        if not self.ack_emulation:
            self.QoS = QoS

    def _after_fork(self) -> None:
        """Drop connections in a forked child, with new locks: redis-py 8 would wait for ever for the parent's."""
        for pool in (self._pool, self._async_pool):
            if pool is not None:
                pool._lock, pool._fork_lock = threading.RLock(), threading.RLock()
        super()._after_fork()

    @contextmanager
    def conn_or_acquire(self, client: Any = None) -> Iterator[Any]:
        """Yield one client of the channel's pool; stock kombu makes one per command (60 µs)."""
        if client is None:
            client = self._commands
            if client is None or client.connection_pool is not self.pool:
                client = self._commands = self._create_client()
        yield client

    def plain_socket(self) -> socket.socket | None:
        """Return the socket of a new own connection, None for TLS; raises redis-py's errors."""
        connection = self.pool.connection_class(**self.pool.connection_kwargs)
        connection.connect()
        connected = connection._sock
        if isinstance(connected, ssl.SSLSocket):
            connection.disconnect()
            return None
        connection._sock = None  # it would be closed with the object
        return cast(socket.socket, connected)

    def _brpop_read(self, **options: Any) -> bool:
        """Deliver the entry that has arrived like kombu, or pass it to `on_unreadable`."""
        try:
            try:
                reply = self.client.parse_response(self.client.connection, "BRPOP", **options)
            except self.connection_errors:
                self.client.connection.disconnect()
                raise
            if not reply:
                raise Empty
            key, entry = reply
            queue = bytes_to_str(key).rsplit(self.sep, 1)[0]
            self._queue_cycle.rotate(queue)
            self.taken_from = queue
            try:
                self.connection._deliver(_parsed(entry), queue)
            except NoWakeUp as unreadable:
                self._give_away(queue, entry, str(unreadable))
            return True
        finally:
            self._in_poll = None
            self._flush_brpop_reauth()

    def _brpop_start(self, timeout: float | None = None) -> None:
        """Wait for a message like kombu, in the queues that have room."""
        if self.windows or self.reserve is not None:
            counts = self.qos.counts()
            self._left_out = tuple(
                queue
                for queue in self.active_queues
                if counts[queue] >= self.windows.get(queue, inf) or not self._is_open(queue, counts)
            )
            if self._left_out:
                self._ask_who_waits()
        super()._brpop_start(timeout)

    @property
    def leaves_out(self) -> bool:
        """True while some queue is left out of the wait; thread-safe."""
        return bool(self._left_out)

    def look_again(self) -> None:
        """End a wait that leaves out a queue with room; on the consumer's thread."""
        counts = self.qos.counts()
        if not self._in_poll or not any(self._has_room(queue, counts) for queue in self._left_out):
            return
        self._left_out = ()
        try:
            with self.conn_or_acquire() as client:
                client.execute_command("CLIENT UNBLOCK", self._waiter_id)
        except redis.ResponseError as error:  # a server may forbid it: the wait ends by itself within a second
            _log.warning("wait_not_ended", extra={"cause": str(error)})

    def _has_room(self, queue: str, counts: Counter[str]) -> bool:
        """Return whether ending a wait is worth it: an eighth of the queue's window is free."""
        most = self.windows.get(queue)
        is_worth_it = most is None or counts[queue] <= most - max(1, most // 8)
        return is_worth_it and self._is_open(queue, counts)

    def _is_open(self, queue: str, counts: Counter[str]) -> bool:
        """Return whether the queue has room, maybe in the reserve."""
        reserve = self.reserve
        if reserve is None or counts.total() < reserve.most:
            return True
        return queue not in self.windows and counts[queue] < reserve.few

    def _ask_who_waits(self) -> None:
        """Store the server's id of the waiting connection."""
        connection = self.client.connection
        if self._waiter is not connection._sock:
            connection.send_command("CLIENT", "ID")
            self._waiter_id = int(self.client.parse_response(connection, "CLIENT ID"))
            self._waiter = connection._sock

    def require_writable(self, queues: Iterable[str]) -> None:
        """Raise redis-py's `ResponseError` if the server would refuse a message for one of these queues."""
        with self.conn_or_acquire() as client:
            client.lpushx(names.PROBE, "")
            for queue in queues:
                client.llen(queue)  # refused where the key is of another type

    def _give_away(self, queue: str, entry: Any, reason: str) -> None:
        if self.on_unreadable is not None:
            self.on_unreadable(queue, entry, reason)
        else:
            _log.error("message_unreadable", extra={"queue": queue, "cause": reason})

    def _handle_message(self, client: Any, r: Any) -> Any:
        """Return a fan-out message like kombu; raises `NoWakeUp` for a long one."""
        received = super()._handle_message(client, r)
        if isinstance(received["data"], (bytes, str)):
            check_length(len(received["data"]))
        return received

    def _receive_one(self, c: Any) -> Any:
        """Deliver a fan-out message like kombu; invalid ones are dropped."""
        try:
            return super()._receive_one(c)
        except (NoWakeUp, RecursionError) as error:
            self._give_away("", "", str(error))
            return None

    def _put_fanout(self, exchange: str, message: Any, routing_key: str, **kwargs: Any) -> None:
        """Send a fan-out message and store how many got it, unlike stock kombu."""
        if kwargs.get("_publish_batch") is not None:
            super()._put_fanout(exchange, message, routing_key, **kwargs)
            return
        payload = dumps(message)
        topics = self._get_publish_topics(exchange, routing_key)
        with self.conn_or_acquire() as client:
            self.heard_by = sum(client.publish(topic, payload) for topic in topics)

    @cached_property  # type: ignore[untyped-decorator]
    def subclient(self) -> PubSub:
        """The channel's pub/sub connection."""
        pool = self._create_client(asynchronous=True).connection_pool
        if self.global_keyprefix:
            prefixed: Any = PrefixedPubSub
            listener: PubSub = prefixed(pool, global_keyprefix=self.global_keyprefix)
            return listener
        return PubSub(pool)


def _parsed(entry: Any) -> Any:
    check_length(len(entry))
    try:
        return loads(bytes_to_str(entry))
    except (ValueError, RecursionError) as error:
        raise NoWakeUp(f"the entry is no JSON ({type(error).__name__}: {error})") from error


class Transport(kombu_redis.Transport):  # type: ignore[misc]
    """The transport of the `planqredis` URL schemes."""

    Channel = Channel


def hardened(broker_url: str) -> str:
    """Return the broker URL for this transport and register its scheme with kombu; other URLs unchanged."""
    scheme, separator, rest = broker_url.partition("://")
    if scheme not in _SCHEMES:
        return broker_url
    TRANSPORT_ALIASES.update(dict.fromkeys(("planqredis", "planqrediss"), f"{__name__}:Transport"))
    return f"{_SCHEMES[scheme]}{separator}{rest}"


def properties_with_a_lock() -> Iterator[Any]:
    """Yield the loaded cached properties with one lock per class."""
    prefixes = tuple(f"{package}." for package in _SHARE_LOCKS)
    for name in [name for name in sys.modules if f"{name}.".startswith(prefixes)]:
        for kind in list(vars(sys.modules[name]).values()):
            # `isinstance` would ask Celery's proxies what they stand for.
            if issubclass(type(kind), type) and kind.__module__ == name:
                for value in list(vars(kind).values()):
                    if issubclass(type(value), functools.cached_property) and hasattr(value, "lock"):
                        yield value


def _renew_locks() -> None:
    for found in properties_with_a_lock():
        found.lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_locks)
