"""Sends Celery's task events for monitors: many in one message, and none if no monitor listens.

Celery sends such a list whenever its loop comes round: nearly one message for each event. Here events are only noted
as they happen; `flush`, which `planq.worker.celery.consumer` calls a few times a second, builds and sends them.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from celery.events.dispatcher import EventDispatcher
from celery.utils.time import utcoffset

from planq.shared.broker.messages import encode_wake
from planq.shared.kernel.claims import Claim
from planq.shared.kernel.ids import attempt_id
from planq.shared.kernel.wakes import Origin, TaskLinks, wake_of
from planq.shared.platform.errors import ErrorRecord

_LIST = 500
"""Maximum number of events in one message: about 200 kB."""

_MAX_PENDING = 20_000
"""Maximum number of events kept while the broker is away; the oldest are dropped."""

_Fields: TypeAlias = "dict[str, Any] | Callable[[], dict[str, Any]]"
_Noted: TypeAlias = "tuple[str, float, _Fields]"


class TaskEvents(EventDispatcher):
    """An event dispatcher that takes task events from any thread, at the cost of a few microseconds."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._pending: deque[_Noted] = deque(maxlen=_MAX_PENDING)
        self._is_heard = False
        super().__init__(*args, **kwargs)

    def send(self, type: str, *args: Any, **fields: Any) -> None:
        """Note a task event for the next `flush`; send any other event at once."""
        if type.startswith("task-"):
            self.note((type, fields))
        else:
            super().send(type, *args, **fields)

    def note(self, *events: tuple[str, _Fields]) -> None:
        """Note task events of this moment, if they are switched on; fields may be a function, called if needed."""
        if self.enabled and (not self.groups or "task" in self.groups):
            self._pending.extend([(type, time.time(), fields) for type, fields in events])
            if self.on_send_buffered:
                self.on_send_buffered()

    def flush(self, errors: bool = True, groups: bool = True) -> None:
        """Send what was noted; call it on the thread of the consumer's connections."""
        super().flush(errors=errors, groups=False)
        if not groups:
            return
        with self.mutex:
            while self._pending and not self._closed:
                noted = _taken(self._pending, _LIST if self._is_heard else 1)
                try:
                    self._publish(self._made(noted), self.producer, "task.multi")
                except BaseException:
                    self._pending.extendleft(reversed(noted))
                    raise
                self._is_heard = getattr(self.producer.channel, "heard_by", None) != 0
                if not self._is_heard:
                    # No monitor received that one, so none would receive the others.
                    self._pending.clear()

    def extend_buffer(self, other: EventDispatcher) -> None:
        """Add the unsent events of the dispatcher of a lost connection."""
        super().extend_buffer(other)
        left = getattr(other, "_pending", None)
        if left is not None:
            self._pending.extendleft(reversed(_taken(left, _MAX_PENDING)))

    def _made(self, noted: list[_Noted]) -> list[dict[str, Any]]:
        common = {"hostname": self.hostname, "utcoffset": utcoffset(), "pid": self.pid}
        return [
            {
                **(fields() if callable(fields) else fields),
                **common,
                "type": type,
                "timestamp": timestamp,
                "clock": self.clock.forward(),
            }
            for type, timestamp, fields in noted
        ]


def _taken(pending: deque[_Noted], most: int) -> list[_Noted]:
    """Remove and return the oldest notes. Other threads append meanwhile, so nothing may iterate over them."""
    noted: list[_Noted] = []
    with contextlib.suppress(IndexError):
        while len(noted) < most:
            noted.append(pending.popleft())
    return noted


class CeleryTracker:
    """Implements `Tracker` over the worker's event dispatcher, if one is attached and task events are on."""

    def __init__(self) -> None:
        self._consumer: Any = None

    def attach(self, consumer: Any) -> None:
        """Use the dispatcher (a `TaskEvents`) of a Celery consumer, which replaces it whenever it reconnects."""
        self._consumer = consumer

    def started(self, claim: Claim, origin: Origin | TaskLinks | None) -> None:
        dispatcher = getattr(self._consumer, "event_dispatcher", None)
        if dispatcher is not None and dispatcher.enabled:
            received, started = partial(_received, claim, origin), partial(_identified, claim)
            dispatcher.note(("task-received", received), ("task-started", started))

    def ended(
        self, claim: Claim, origin: Origin | TaskLinks | None, error: ErrorRecord | None, runtime_seconds: float
    ) -> None:
        dispatcher = getattr(self._consumer, "event_dispatcher", None)
        if dispatcher is None or not dispatcher.enabled:
            return
        if error is None:
            shown = {"result": "succeeded", "runtime": runtime_seconds}
            dispatcher.note(("task-succeeded", partial(_identified, claim, **shown)))
        else:
            # The code alone: the message may quote a provider or a tool, and monitors show it to everybody.
            shown = {"exception": error.code, "traceback": ""}
            dispatcher.note(("task-failed", partial(_identified, claim, **shown)))


def _received(claim: Claim, origin: Origin | TaskLinks | None) -> dict[str, Any]:
    message = encode_wake(wake_of(claim, origin.links if isinstance(origin, Origin) else origin))
    shown = {"name": message.shadow, "args": "()", "kwargs": message.kwargs_repr}
    tree = {"root_id": message.links.root_id, "parent_id": message.links.parent_id}
    return {"uuid": message.task_id, **shown, **tree, "retries": 0, "eta": None, "expires": None}


def _identified(claim: Claim, **fields: Any) -> dict[str, Any]:
    return {"uuid": attempt_id(claim.ref, claim.attempt), **fields}
