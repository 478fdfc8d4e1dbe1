"""Writing messages to the broker as Celery's protocol 2 has them, without the cost of `Task.apply_async`.

Stock workers, Flower and `celery inspect` read them as any other: `tests/integration/broker/test_protocol.py`
compares them with what Celery itself sends. What never differs between two wake-ups is built once.

Source: Celery 5.7, `celery.app.amqp.AMQP.as_task_v2` and its documentation "Message Protocol", version 2.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from celery import Celery
from celery.utils.nodenames import anon_nodename
from kombu import Connection, Producer

from shared.broker import names
from shared.broker.depth import open_once
from shared.broker.messages import Message
from shared.domain.states import Lane

MAX_BATCH = 1_000
"""Messages in one pipelined write; a fan-out of 10 000 must not become one command of many megabytes."""

_OPEN_SECONDS = 5.0

_CONFIRM_SECONDS = 10.0
"""How long RabbitMQ may take to confirm a message; one with a memory alarm never does."""

_EMBED = json.dumps({"callbacks": None, "errbacks": None, "chain": None, "chord": None})

_CONSTANT: dict[str, Any] = {
    "lang": "py",
    "shadow": None,
    "eta": None,
    "expires": None,
    "group": None,
    "group_index": None,
    "retries": 0,
    "timelimit": [None, None],
    "parent_id": None,
    "argsrepr": "()",
    "ignore_result": None,
    "replaced_task_nesting": 0,
    "stamped_headers": None,
    "stamps": {},
}


class WakeProducer:
    """One connection to the broker for one thread; opened by the first message, and again after a fault."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._connection: Connection | None = None
        self._producer: Producer | None = None
        self._origin = ""

    def send(self, messages: Sequence[Message]) -> None:
        """Write messages, several in pipelined writes; raises what the broker's client raises.

        After an error it is not known which of them arrived.
        """
        try:
            producer = self._producer or self._open()
            for start in range(0, len(messages), MAX_BATCH):
                self._send_batch(producer, messages[start : start + MAX_BATCH])
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
        for lane in Lane:  # RabbitMQ drops a message to a queue that nobody has declared
            self._app.amqp.queues[names.queue(lane)](producer.channel).declare()
        self._producer = producer
        return producer

    def _send_batch(self, producer: Producer, messages: Sequence[Message]) -> None:
        if len(messages) == 1:
            self._write(producer, messages[0])
            return
        with producer.batch(MAX_BATCH):
            for message in messages:
                self._write(producer, message)

    def _write(self, producer: Producer, message: Message) -> None:
        task_id = message.task_id
        producer.publish(
            f"[[], {json.dumps(message.kwargs)}, {_EMBED}]",
            content_type="application/json",
            content_encoding="utf-8",
            exchange="",
            routing_key=message.queue,
            delivery_mode=2,
            headers={
                **_CONSTANT,
                "task": message.task,
                "id": task_id,
                "root_id": task_id,
                "kwargsrepr": message.kwargs_repr,
                "origin": self._origin,
            },
            correlation_id=task_id,
            reply_to="",
            confirm_timeout=_CONFIRM_SECONDS,
        )
