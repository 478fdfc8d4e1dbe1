"""Shows fused stages and steps in Flower: Celery's own task events, under the id of each attempt."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from shared.broker.messages import encode
from shared.domain.errors import ErrorRecord
from shared.ports import Wake


class CeleryTracker:
    """The port `Tracker` over the worker's event dispatcher; silent while task events are off."""

    def __init__(self) -> None:
        self._consumer: Any = None

    def attach(self, consumer: Any) -> None:
        """Use the dispatcher (a `TaskEvents`) of a Celery consumer, which replaces it whenever it reconnects."""
        self._consumer = consumer

    def started(self, wake: Wake, attempt: int) -> None:
        """Send `task-received` and `task-started`."""
        self._note("task-received", partial(_received, wake, attempt))
        self._note("task-started", partial(_told, wake, attempt))

    def ended(self, wake: Wake, attempt: int, error: ErrorRecord | None, runtime_seconds: float) -> None:
        """Send `task-succeeded` or `task-failed`."""
        if error is None:
            self._note("task-succeeded", partial(_told, wake, attempt, result="succeeded", runtime=runtime_seconds))
        else:
            # The code alone: the message may quote a provider or a tool, and monitors show it to everybody.
            self._note("task-failed", partial(_told, wake, attempt, exception=error.code, traceback=""))

    def _note(self, kind: str, fields: Callable[[], dict[str, Any]]) -> None:
        dispatcher = getattr(self._consumer, "event_dispatcher", None)
        if dispatcher is not None:
            dispatcher.note(kind, fields)


def _received(wake: Wake, attempt: int) -> dict[str, Any]:
    message = encode(wake, attempt)
    shown = {"name": message.task, "args": "()", "kwargs": message.kwargs_repr}
    return {"uuid": message.task_id, **shown, "retries": 0, "eta": None, "expires": None}


def _told(wake: Wake, attempt: int, **fields: Any) -> dict[str, Any]:
    return {"uuid": encode(wake, attempt).task_id, **fields}


class SilentTracker:
    """For processes that fuse nothing."""

    def started(self, wake: Wake, attempt: int) -> None:
        """Show nothing."""

    def ended(self, wake: Wake, attempt: int, error: ErrorRecord | None, runtime_seconds: float) -> None:
        """Show nothing."""
