"""The port `Publisher` over Celery: wake-ups by task name, all that wait in one write, from a thread that may block.

Publishing is synchronous in kombu and can stall as long as the socket timeout when the broker is in trouble, so one
thread a process does it and the event loop only waits for its answer, or does not wait at all (`publish_soon`). What
gathers while the broker answers goes out together: under load a message costs a fraction of a round trip.

Messages have the form of Celery's protocol 2, without the cost of `Task.apply_async`: what never differs between two
wake-ups is built once. Stock workers, Flower and `celery inspect` read them as any other;
`tests/integration/broker/test_protocol.py` compares them with what Celery itself sends.

Source: Celery 5.7, `celery.app.amqp.AMQP.as_task_v2` and its documentation "WakeMessage Protocol", version 2.
"""

from __future__ import annotations

import asyncio
import json
import logging
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, TypeAlias

from celery import Celery
from celery.utils.nodenames import anon_nodename
from kombu import Connection, Producer

from planq.shared.broker import names
from planq.shared.broker.celery_config import known_queue
from planq.shared.broker.depth import open_once, reply_of
from planq.shared.broker.messages import TENANT_HEADER, WakeMessage, encode_wake
from planq.shared.domain.jobs.states import OWN_QUEUES
from planq.shared.ports import AnyWake

_log = logging.getLogger("planq.broker")

_Item: TypeAlias = "tuple[Sequence[AnyWake], Future[bool]]"

_BATCH = 1_000
"""Messages in one pipelined write; a fan-out of 10 000 must not become one command of many megabytes."""

_OPEN_SECONDS = 5.0

_CONFIRM_SECONDS = 10.0
"""How long RabbitMQ may take to confirm a message; one with a memory alarm never does."""

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

    def __init__(self, app: Celery) -> None:
        self._producer = _Producer(app)
        self._inbox: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._lock = threading.Lock()

    def publish_soon(self, wakes: Sequence[AnyWake]) -> Future[bool]:
        """Hand wake-ups to the thread and return at once; the future says whether the broker took them.

        When it did not, or after `close`, the sweeper publishes them once their `wake_at` has come. Callable from any
        thread.
        """
        outcome: Future[bool] = Future()
        with self._lock:
            if self._closed:
                outcome.set_result(False)
            else:
                self._start()
                self._inbox.put((wakes, outcome))
        return outcome

    async def publish(self, wakes: Sequence[AnyWake]) -> bool:
        """Publish and wait for the broker's answer; True when it took all of them."""
        if not wakes:
            return True
        return await asyncio.wrap_future(self.publish_soon(wakes))

    def close(self, timeout_seconds: float = 5.0) -> None:
        """Publish what was handed over and end the thread, waiting at most `timeout_seconds`."""
        with self._lock:
            self._closed = True
            thread = self._thread
            self._inbox.put(None)
        if thread is not None:
            thread.join(timeout_seconds)

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

    def _try_send(self, wakes: Sequence[AnyWake]) -> bool:
        if not wakes:
            return True
        try:
            self._send([encode_wake(wake) for wake in wakes])
        except Exception as error:  # every client library has errors of its own here; all mean "not taken"
            _log.warning("publish_failed", extra={"count": len(wakes), "cause": reply_of(error) or repr(error)})
            return False
        return True

    def _send(self, messages: Sequence[WakeMessage]) -> None:
        self._producer.send(messages)


class _Producer:
    """One connection to the broker for one thread; opened by the first message, and again after a fault."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._connection: Connection | None = None
        self._producer: Producer | None = None
        self._origin = ""
        self._declared: set[str] = set()

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

    def close(self) -> None:
        """Give the connection up; idempotent."""
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
        task_id, links = message.task_id, message.links
        self._declare(producer, message.queue)
        producer.publish(
            f"[[], {json.dumps(message.kwargs)}, {_EMBED}]",
            content_type="application/json",
            content_encoding="utf-8",
            exchange="",
            routing_key=self._app.planq_lists.choose(message.queue, message.tenant),
            delivery_mode=2,
            headers={
                **_CONSTANT,
                "task": message.task,
                "id": task_id,
                "shadow": message.shadow,
                "root_id": links.root_id,
                "parent_id": links.parent_id,
                "group": links.group,
                "group_index": links.group_index,
                "kwargsrepr": message.kwargs_repr,
                "origin": self._origin,
                **({TENANT_HEADER: message.tenant} if message.tenant else {}),
            },
            correlation_id=task_id,
            reply_to="",
            confirm_timeout=_CONFIRM_SECONDS,
        )
