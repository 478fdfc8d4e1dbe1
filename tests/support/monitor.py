"""What Celery's own events tell, to whoever listens as Flower does."""

from __future__ import annotations

import threading
from typing import Any

from celery import Celery
from celery.events import EventReceiver

RECEIVED = ["task-received", "task-started", "task-succeeded"]
"""What is told of a task that succeeds, sorted."""


class Monitor:
    """Listens on a thread of its own, as Flower does."""

    def __init__(self, app: Celery) -> None:
        self.events: list[dict[str, Any]] = []
        self.lists: list[int] = []
        self._connection = app.connection_for_read()
        self._receiver = EventReceiver(self._connection, app=app, handlers={"*": self.events.append})
        receive = self._receiver._receive

        def count(body: Any, message: Any) -> None:
            if isinstance(body, list):
                self.lists.append(len(body))
            receive(body, message)

        self._receiver._receive = count
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        self._receiver.capture(limit=None, timeout=None, wakeup=False)

    def kinds(self, task_id: str) -> list[str]:
        return [event["type"] for event in self.events if event.get("uuid") == task_id]

    def knows(self, task_id: str) -> bool:
        return len(self.kinds(task_id)) == len(RECEIVED)

    def close(self) -> None:
        self._receiver.should_stop = True
        self._thread.join(60)
        self._connection.release()
