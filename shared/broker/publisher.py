"""The port `Publisher` over Celery: wake-ups by task name, all that wait in one write, from a thread that may block.

Publishing is synchronous in kombu and can stall as long as the socket timeout when the broker is in trouble, so one
thread a process does it and the event loop only waits for its answer, or does not wait at all (`publish_soon`). What
gathers while the broker answers goes out together: under load a message costs a fraction of a round trip.

Where the broker speaks the Redis protocol without TLS, the loop itself writes what is short (`loop_connection`), over
a connection that the thread has made once it could send. Whatever is not answered there goes to the thread: that
connects anew, and says whether the broker takes it. So outages are its business alone, and all that kombu can do with
a URL holds for both. A wake-up that comes twice is harmless.

Messages have the form of Celery's protocol 2, without the cost of `Task.apply_async`: what never differs between two
wake-ups is built once. Stock workers, Flower and `celery inspect` read them as any other;
`tests/integration/broker/test_protocol.py` compares them with what Celery itself sends.

Source: Celery 5.7, `celery.app.amqp.AMQP.as_task_v2` and its documentation "WakeMessage Protocol", version 2.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import queue
import socket
import threading
from base64 import b64encode
from collections.abc import Sequence
from concurrent.futures import Future
from time import monotonic
from typing import Any, TypeAlias
from uuid import uuid4

import orjson
from celery import Celery
from celery.utils.nodenames import anon_nodename
from kombu import Connection, Producer

from planq.shared.broker import names
from planq.shared.broker.celery_config import known_queue
from planq.shared.broker.depth import open_once, reply_of
from planq.shared.broker.loop_connection import LoopConnection, pushed
from planq.shared.broker.messages import TENANT_HEADER, WakeMessage, encode_wake
from planq.shared.broker.transport import Channel
from planq.shared.kernel.states import OWN_QUEUES
from planq.shared.kernel.wakes import Wake

_log = logging.getLogger("planq.broker")

_Item: TypeAlias = "tuple[Sequence[Wake], Future[bool]]"

_BATCH = 1_000
"""Messages in one pipelined write; a fan-out of 10 000 must not become one command of many megabytes."""

_OPEN_SECONDS = 5.0

_CONFIRM_SECONDS = 10.0
"""How long RabbitMQ may take to confirm a message; one with a memory alarm never does."""

_FEW = 16
"""Messages that the loop writes by itself: more would hold up the rest of it, and gain nothing."""

_SILENT_SECONDS = 2.0
"""A broker that is silent for so long is in trouble; by then the sweeper looks whether the wake-up is there."""

_CONNECT_SECONDS = 5.0
"""The pause between two connections for the loop: a broker may take one and end it again."""

_EMBED = json.dumps({"callbacks": None, "errbacks": None, "chain": None, "chord": None})

_CONSTANT: dict[str, Any] = {
    "lang": "py",
    "eta": None,
    "expires": None,
    "retries": 0,
    "timelimit": [None, None],
    "argsrepr": "()",
    "ignore_result": None,
    "replaced_task_nesting": 0,
    "stamped_headers": None,
    "stamps": {},
}


class CeleryPublisher:
    """Publishes wake-ups through a Celery application; the thread starts with the first wake-up."""

    def __init__(self, app: Celery, *, from_loop: bool = False) -> None:
        """With `from_loop` what is asked for on an event loop is written there, once there is a connection for it."""
        self._producer = _Producer(app)
        self._from_loop = from_loop
        self._loop: asyncio.AbstractEventLoop | None = None
        self._direct: LoopConnection[_Item] | None = None
        self._connected_at = -_CONNECT_SECONDS
        self._inbox: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._lock = threading.Lock()

    def publish_soon(self, wakes: Sequence[Wake]) -> Future[bool]:
        """Write wake-ups, or hand them to the thread, and return at once.

        The future says whether the broker took them. When it did not, or after `close`, the sweeper publishes them
        once their `wake_at` has come. Callable from any thread.
        """
        item: _Item = (wakes, Future())
        if not wakes:
            item[1].set_result(True)
        elif not self._write(item):
            self._hand_over(item)
        return item[1]

    async def publish(self, wakes: Sequence[Wake]) -> bool:
        """Publish and wait for the broker's answer; True when it took all of them."""
        return await asyncio.wrap_future(self.publish_soon(wakes))

    def close(self, timeout_seconds: float = 5.0) -> None:
        """Publish what was handed over and end the thread, waiting at most `timeout_seconds`."""
        with self._lock:
            self._closed = True
            thread = self._thread
            self._inbox.put(None)
        if (direct := self._direct) is not None:
            self._direct = None
            direct.abandon()
        if thread is not None:
            thread.join(timeout_seconds)

    def _write(self, item: _Item) -> bool:
        """Write wake-ups from the loop on which this is called; False where the thread has to."""
        if not self._from_loop:
            return False
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return False
        wakes, direct = item[0], self._direct
        if direct is None or direct.loop is not loop or len(wakes) > _FEW:
            self._loop = loop
            return False
        direct.write(item, [self._producer.command(encode_wake(wake)) for wake in wakes])
        return True

    def _hand_over(self, item: _Item) -> None:
        with self._lock:
            if not self._closed:
                self._start()
                self._inbox.put(item)
                return
        if item[1].set_running_or_notify_cancel():
            item[1].set_result(False)

    def _connect_loop(self) -> None:
        """Let the loop write by itself from now on, if it can; the broker has just taken what the thread sent."""
        loop, now = self._loop, monotonic()
        if loop is None or not self._from_loop or self._direct is not None:
            return
        if now - self._connected_at < _CONNECT_SECONDS:
            return
        self._connected_at = now
        try:
            connected = self._producer.connect_plainly()
        except Exception as error:  # the thread goes on with the connection that it has
            _log.info("loop_not_connected", extra={"cause": reply_of(error) or repr(error)})
            return
        if connected is None:
            self._from_loop = False
            return
        try:
            loop.call_soon_threadsafe(self._adopt, connected, loop)
        except RuntimeError:  # the loop has ended
            connected.close()

    def _adopt(self, connected: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        if self._closed:
            connected.close()
            return
        self._direct = LoopConnection(connected, loop, taken=_took, lost=self._lost, silent_seconds=_SILENT_SECONDS)

    def _lost(self, items: Sequence[_Item]) -> None:
        self._direct = None
        for item in items:
            self._hand_over(item)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="planq-publisher", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        is_open = True
        while is_open:
            items, is_open = self._gather()
            # A caller that waited may have been cancelled; the wake-ups are wanted all the same.
            awaited = [outcome for _, outcome in items if outcome.set_running_or_notify_cancel()]
            taken = self._try_send([wake for wakes, _ in items for wake in wakes])
            for outcome in awaited:
                outcome.set_result(taken)
            if taken and is_open:
                self._connect_loop()
        self._producer.close()

    def _gather(self) -> tuple[list[_Item], bool]:
        """Wait for something to publish and take all that has gathered, up to one write; False when closing."""
        items: list[_Item] = []
        count = 0
        item = self._inbox.get()
        while item is not None:
            items.append(item)
            count += len(item[0])
            if count >= _BATCH:
                return items, True
            try:
                item = self._inbox.get_nowait()
            except queue.Empty:
                return items, True
        return items, False

    def _try_send(self, wakes: Sequence[Wake]) -> bool:
        try:
            self._send([encode_wake(wake) for wake in wakes])
        except Exception as error:  # every client library has errors of its own here; all mean "not taken"
            _log.warning("publish_failed", extra={"count": len(wakes), "cause": reply_of(error) or repr(error)})
            return False
        return True

    def _send(self, messages: Sequence[WakeMessage]) -> None:
        self._producer.send(messages)


def _took(item: _Item) -> None:
    if item[1].set_running_or_notify_cancel():
        item[1].set_result(True)


class _Producer:
    """One connection to the broker for one thread; opened by the first message, and again after a fault."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._connection: Connection | None = None
        self._producer: Producer | None = None
        self._origin = ""
        self._prefix: str = app.conf.broker_transport_options.get("global_keyprefix", "")
        self._declared: set[str] = set()
        self._tags, self._numbers = f"{uuid4()}.", itertools.count()

    def send(self, messages: Sequence[WakeMessage]) -> None:
        """Write messages, several in pipelined writes; raises what the broker's client raises.

        After an error it is not known which of them arrived.
        """
        try:
            producer = self._producer or self._open()
            for start in range(0, len(messages), _BATCH):
                self._send_batch(producer, messages[start : start + _BATCH])
        except Exception:
            # The connection may be half dead; the next message must not inherit it.
            self.close()
            raise

    def connect_plainly(self) -> socket.socket | None:
        """Return a socket of a further connection to the same server; None where it has to be kombu that writes.

        Raises what the broker's client raises.
        """
        channel = None if self._producer is None else self._producer.channel
        return channel.plain_socket() if isinstance(channel, Channel) else None

    def command(self, message: WakeMessage) -> bytes:
        """Return the command by which kombu's Redis transport would send a message; on any thread."""
        name = self._app.planq_lists.choose(message.queue, message.tenant)
        entry = {
            "body": b64encode(_body(message).encode()).decode(),
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": _headers(message, self._origin),
            "properties": {
                "correlation_id": message.task_id,
                "reply_to": "",
                "delivery_mode": 2,
                "delivery_info": {"exchange": "", "routing_key": name},
                "priority": 0,
                "body_encoding": "base64",
                "delivery_tag": f"{self._tags}{next(self._numbers)}",
            },
        }
        return pushed(f"{self._prefix}{name}", orjson.dumps(entry))

    def close(self) -> None:
        connection, self._connection, self._producer = self._connection, None, None
        if connection is not None:
            connection.collect()

    def _open(self) -> Producer:
        self._origin = anon_nodename()
        self._connection = self._app.connection_for_write()
        open_once(self._connection, _OPEN_SECONDS)
        producer = Producer(self._connection.default_channel, auto_declare=False)
        self._declared = set()
        for one in OWN_QUEUES:
            self._declare(producer, names.queue(one))
        self._producer = producer
        return producer

    def _declare(self, producer: Producer, which: str) -> None:
        """Declare the lists of a queue once: RabbitMQ drops a message to one that nobody has declared."""
        if which not in self._declared:
            for name in names.lists(names.queue_named(which)):
                known_queue(self._app, name)(producer.channel).declare()
            self._declared.add(which)

    def _send_batch(self, producer: Producer, messages: Sequence[WakeMessage]) -> None:
        if len(messages) == 1:
            self._write(producer, messages[0])
            return
        with producer.batch(_BATCH):
            for message in messages:
                self._write(producer, message)

    def _write(self, producer: Producer, message: WakeMessage) -> None:
        self._declare(producer, message.queue)
        producer.publish(
            _body(message),
            content_type="application/json",
            content_encoding="utf-8",
            exchange="",
            routing_key=self._app.planq_lists.choose(message.queue, message.tenant),
            delivery_mode=2,
            headers=_headers(message, self._origin),
            correlation_id=message.task_id,
            reply_to="",
            confirm_timeout=_CONFIRM_SECONDS,
        )


def _body(message: WakeMessage) -> str:
    return f"[[], {json.dumps(message.kwargs)}, {_EMBED}]"


def _headers(message: WakeMessage, origin: str) -> dict[str, Any]:
    links = message.links
    return {
        **_CONSTANT,
        "task": message.task,
        "id": message.task_id,
        "shadow": message.shadow,
        "root_id": links.root_id,
        "parent_id": links.parent_id,
        "group": links.group,
        "group_index": links.group_index,
        "kwargsrepr": message.kwargs_repr,
        "origin": origin,
        **({TENANT_HEADER: message.tenant} if message.tenant else {}),
    }
