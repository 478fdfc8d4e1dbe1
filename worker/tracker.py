"""Shows fused stages and steps in Flower: Celery's own task events, under the id of each attempt."""

from __future__ import annotations

from functools import partial
from typing import Any

from shared.broker.messages import Message, encode
from shared.domain.errors import ErrorRecord
from shared.ports import Wake


class CeleryTracker:
    """The port `Tracker` over the worker's event dispatcher; silent while task events are off."""

    def __init__(self) -> None:
        self._consumer: Any = None

    def attach(self, consumer: Any) -> None:
        """Use the dispatcher of a Celery consumer, which replaces it whenever it reconnects."""
        self._consumer = consumer

    def started(self, wake: Wake, attempt: int) -> None:
        """Send `task-received` and `task-started`."""
        message = encode(wake, attempt)
        shown = {"name": message.task, "args": "()", "kwargs": message.kwargs_repr}
        self._send("task-received", message, **shown, retries=0, eta=None, expires=None)
        self._send("task-started", message)

    def ended(self, wake: Wake, attempt: int, error: ErrorRecord | None, runtime_seconds: float) -> None:
        """Send `task-succeeded` or `task-failed`."""
        message = encode(wake, attempt)
        if error is None:
            self._send("task-succeeded", message, result="succeeded", runtime=runtime_seconds)
        else:
            self._send("task-failed", message, exception=f"{error.code}: {error.message}", traceback="")

    def _send(self, kind: str, message: Message, **fields: Any) -> None:
        consumer = self._consumer
        dispatcher = getattr(consumer, "event_dispatcher", None)
        if dispatcher is None or not dispatcher.enabled:
            return
        hub = getattr(consumer, "hub", None)
        if hub is not None:
            # A broker channel belongs to the consumer's thread.
            hub.call_soon(partial(dispatcher.send, kind, uuid=message.task_id, **fields))


class SilentTracker:
    """For processes that fuse nothing."""

    def started(self, wake: Wake, attempt: int) -> None:
        """Show nothing."""

    def ended(self, wake: Wake, attempt: int, error: ErrorRecord | None, runtime_seconds: float) -> None:
        """Show nothing."""
