"""Publish wake-ups over Celery from a thread, all waiting ones in one write.

kombu publishes synchronously and can stall for the socket's timeout, so one thread per process publishes; the event
loop waits for its answer, or not at all (`publish_soon`).

If the broker speaks the Redis protocol without TLS, the loop itself writes short ones (`loop_connection`), over a
connection of the thread. Unanswered ones go to the thread, which reconnects and reports failures. A repeated wake-up
is harmless.

Messages have the form of Celery's protocol 2 (Celery 5.7, `celery.app.amqp.AMQP.as_task_v2`) without the cost of
`Task.apply_async`; `tests/integration/broker/test_protocol.py` compares both.
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
"""Maximum messages in one write; 10 000 would be one command of many megabytes."""

_OPEN_SECONDS = 5.0

_CONFIRM_SECONDS = 10.0
"""Timeout for RabbitMQ's confirmation; with a memory alarm none comes."""

_FEW = 16
"""Maximum messages that the loop writes itself: more would hold up the loop."""

_SILENT_SECONDS = 2.0
"""Timeout of a silent broker; then the sweeper looks for the wake-up."""

_CONNECT_SECONDS = 5.0
"""Pause between two connections for the loop: a broker may accept and end them."""

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
    """Publishes wake-ups through a Celery application; the first one starts the thread."""

    def __init__(self, app: Celery, *, from_loop: bool = False) -> None:
        """With `from_loop`, calls on an event loop are written there once there is a connection."""
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
        """Write wake-ups or pass them to the thread, and return at once; from any thread.

        The future says whether the broker took them. Otherwise the sweeper publishes them after their `wake_at`.
        """
        item: _Item = (wakes, Future())
        if not wakes:
            item[1].set_result(True)
        elif not self._write(item):
            self._hand_over(item)
        return item[1]

    async def publish(self, wakes: Sequence[Wake]) -> bool:
        """Publish and wait for the broker; True if it took all of them."""
        return await asyncio.wrap_future(self.publish_soon(wakes))

    def close(self, timeout_seconds: float = 5.0) -> None:
        """Publish what was passed to the thread and end it, within `timeout_seconds`."""
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
        """Write wake-ups on the running loop; False if the thread has to."""
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
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="planq-publisher", daemon=True)
                    self._thread.start()
                self._inbox.put(item)
                return
        if item[1].set_running_or_notify_cancel():
            item[1].set_result(False)

    def _connect_loop(self) -> None:
        """Let the loop write from now on, if it can; the broker has just taken the thread's messages."""
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
        """Wait for items and take all that are there, up to one write; False when closing."""
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
            self._producer.send([encode_wake(wake) for wake in wakes])
        except Exception as error:  # every client library has errors of its own here; all mean "not taken"
            _log.warning("publish_failed", extra={"count": len(wakes), "cause": reply_of(error) or repr(error)})
            return False
        return True


def _took(item: _Item) -> None:
    if item[1].set_running_or_notify_cancel():
        item[1].set_result(True)


class _Producer:
    """One connection for one thread; opened by the first message, and again after an error."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._connection: Connection | None = None
        self._producer: Producer | None = None
        self._origin = ""
        self._prefix: str = app.conf.broker_transport_options.get("global_keyprefix", "")
        self._declared: set[str] = set()
        self._tags, self._numbers = f"{uuid4()}.", itertools.count()

    def send(self, messages: Sequence[WakeMessage]) -> None:
        """Write messages, pipelined; raises the client's error, after which some may have arrived."""
        try:
            producer = self._producer or self._open()
            for start in range(0, len(messages), _BATCH):
                self._send_batch(producer, messages[start : start + _BATCH])
        except Exception:
            # The connection may be half dead; the next message must not inherit it.
            self.close()
            raise

    def connect_plainly(self) -> socket.socket | None:
        """Return the socket of another connection to the server; None if only kombu can write."""
        channel = None if self._producer is None else self._producer.channel
        return channel.plain_socket() if isinstance(channel, Channel) else None

    def command(self, message: WakeMessage) -> bytes:
        """Return the command with which kombu's Redis transport would send a message; thread-safe."""
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
        """Declare the lists of a queue once: RabbitMQ drops messages to undeclared ones."""
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
