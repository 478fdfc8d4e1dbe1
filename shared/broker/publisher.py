"""The port `Publisher` over Celery: wake-ups by task name, in one batch, from a thread that may block.

Publishing is synchronous in kombu and can stall as long as the socket timeout when the broker is in trouble, so one
thread a process does it and the event loop only waits for its answer, or does not wait at all (`publish_soon`).
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future

from celery import Celery, group
from kombu import Producer

from shared.broker.messages import Message, encode
from shared.ports import Wake

_log = logging.getLogger("planq.broker")

_MAX_BATCH = 1_000
"""Messages in one pipelined write; a fan-out of 10 000 must not become one command of many megabytes."""


class CeleryPublisher:
    """Publishes wake-ups through a Celery application; the thread starts with the first wake-up."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._inbox: queue.SimpleQueue[tuple[Sequence[Wake], Future[bool]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._lock = threading.Lock()

    def publish_soon(self, wakes: Sequence[Wake]) -> Future[bool]:
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

    async def publish(self, wakes: Sequence[Wake]) -> bool:
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
        while (item := self._inbox.get()) is not None:
            wakes, outcome = item
            # Whoever waited may have been cancelled; the wake-ups are wanted all the same.
            is_awaited = outcome.set_running_or_notify_cancel()
            taken = self._try_send(wakes)
            if is_awaited:
                outcome.set_result(taken)

    def _try_send(self, wakes: Sequence[Wake]) -> bool:
        try:
            self._send([encode(wake) for wake in wakes])
        except Exception as error:  # every client library has errors of its own here; all mean "not taken"
            _log.warning("publish_failed", extra={"count": len(wakes), "cause": repr(error)})
            return False
        return True

    def _send(self, messages: Sequence[Message]) -> None:
        with self._app.producer_pool.acquire(block=True, timeout=5) as producer:
            try:
                for start in range(0, len(messages), _MAX_BATCH):
                    self._send_batch(producer, messages[start : start + _MAX_BATCH])
            except Exception:
                # The connection may be half dead; the next publish must not inherit it.
                producer.connection.collect()
                raise

    def _send_batch(self, producer: Producer, messages: Sequence[Message]) -> None:
        signatures = [
            self._app.signature(m.task, kwargs=m.kwargs, app=self._app).set(
                task_id=m.task_id, queue=m.queue, argsrepr="()", kwargsrepr=m.kwargs_repr
            )
            for m in messages
        ]
        if len(signatures) == 1:
            signatures[0].apply_async(producer=producer, retry=False)
            return
        with producer.batch(_MAX_BATCH):
            group(signatures, app=self._app).apply_async(producer=producer, retry=False)
