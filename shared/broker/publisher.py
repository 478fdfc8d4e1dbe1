"""The port `Publisher` over Celery: wake-ups by task name, all that wait in one write, from a thread that may block.

Publishing is synchronous in kombu and can stall as long as the socket timeout when the broker is in trouble, so one
thread a process does it and the event loop only waits for its answer, or does not wait at all (`publish_soon`). What
gathers while the broker answers goes out together: under load a message costs a fraction of a round trip.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TypeAlias

from celery import Celery

from shared.broker.depth import reply_of
from shared.broker.messages import Message, encode
from shared.broker.producer import MAX_BATCH, WakeProducer
from shared.ports import AnyWake

_log = logging.getLogger("planq.broker")

_Item: TypeAlias = "tuple[Sequence[AnyWake], Future[bool]]"


class CeleryPublisher:
    """Publishes wake-ups through a Celery application; the thread starts with the first wake-up."""

    def __init__(self, app: Celery) -> None:
        self._wake_producer = WakeProducer(app)
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
            # Whoever waited may have been cancelled; the wake-ups are wanted all the same.
            awaited = [outcome for _, outcome in items if outcome.set_running_or_notify_cancel()]
            taken = self._try_send([wake for wakes, _ in items for wake in wakes])
            for outcome in awaited:
                outcome.set_result(taken)
        self._wake_producer.close()

    def _gather(self) -> tuple[list[_Item], bool]:
        """Wait for something to publish and take all that has gathered, up to one write; False when told to close."""
        items: list[_Item] = []
        count = 0
        item = self._inbox.get()
        while item is not None:
            items.append(item)
            count += len(item[0])
            if count >= MAX_BATCH:
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
            self._send([encode(wake) for wake in wakes])
        except Exception as error:  # every client library has errors of its own here; all mean "not taken"
            _log.warning("publish_failed", extra={"count": len(wakes), "cause": reply_of(error) or repr(error)})
            return False
        return True

    def _send(self, messages: Sequence[Message]) -> None:
        self._wake_producer.send(messages)
