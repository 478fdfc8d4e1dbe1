"""Celery's consumer, with less to and fro between the thread that takes messages and the one that carries them out.

Every call from one to the other wakes a thread, which then waits for the interpreter: several times the cost of what
is called. So a message on Redis is acknowledged where its work ends, and events for monitors go out at intervals.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery.worker.consumer import Consumer

from shared.broker.transport import Channel

_FLUSH_SECONDS = 0.2


class WakeConsumer(Consumer):  # type: ignore[misc]
    """The setting `worker_consumer` of a planq worker."""

    _is_flush_due = False
    _is_stopping = False

    def call_soon_ack(self, p: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Acknowledge on this thread where the transport keeps that in memory; on the consumer's thread otherwise."""
        message = getattr(p, "__self__", None)
        channel = getattr(message, "channel", None)
        if not isinstance(channel, Channel) or getattr(p, "__name__", "") != "ack_log_error":
            return super().call_soon_ack(p, *args, **kwargs)
        p(*args, **kwargs)
        if self.hub is not None and channel.qos.is_about_full:
            self.hub.call_soon(_nothing)  # it may be pausing for want of a slot
        return None

    def on_send_event_buffered(self) -> None:
        """Send what was noted within `_FLUSH_SECONDS`; from any thread."""
        if self.hub is None or self._is_flush_due:
            return
        self._is_flush_due = True
        if self._is_stopping:  # timers do not matter any more; what the pool still ends is told at once
            self.hub.call_soon(self._flush_due)
        else:
            self.hub.call_soon(self.hub.call_later, _FLUSH_SECONDS, self._flush_due)

    def on_ready(self) -> None:
        """Do what Celery does, then send what was noted while there was no connection."""
        super().on_ready()
        self._flush_due()

    def stop(self) -> None:
        """Do what Celery does, and send what was noted."""
        self._is_stopping = True
        super().stop()
        self._flush_due()

    def _flush_due(self) -> None:
        self._is_flush_due = False
        self._flush_events()


def _nothing() -> None:
    """Let the consumer's loop come round."""
