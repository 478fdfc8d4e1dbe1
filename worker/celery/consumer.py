"""Celery's consumer, with fewer calls between the thread that takes messages and the one that carries them out.

Each call wakes a thread, which then waits for the interpreter, so messages on Redis are acknowledged where their work
ends, and events go out at intervals. Broker errors count as an outage, messages that are no wake-ups go to the dead
letters, and cancelled consumers are restored: none of these ends the worker. An AMQP connection belongs to the
consumer's thread: calls that write to it are made there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from time import monotonic, sleep
from typing import Any, ClassVar

from billiard.exceptions import WorkerLostError
from celery.worker.consumer import Consumer
from celery.worker.request import Request
from celery.worker.state import maybe_shutdown
from kombu.exceptions import OperationalError

from planq.shared.broker.dead_letters import DeadLetterWriter
from planq.shared.broker.depth import reply_of
from planq.shared.broker.messages import NewerWakeUp, check_message
from planq.shared.broker.transport import LONGEST_CHARS, Channel, Reserve, refuse_hostile
from planq.shared.platform.values.backoff import pause_after
from planq.worker.celery.control import GuardedControl, GuardedPidbox

_log = logging.getLogger("planq.consumer")

_FLUSH_SECONDS = 0.2

_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 5.0
_STEADY_SECONDS = 10.0
"""A connection that held for this long was good: after its loss the worker reconnects at once."""

_LOOK_SECONDS = 0.1

_HEAL_SECONDS = 3.0

_LOOK_AGAIN_SECONDS = 0.01
"""Ending a wait of a consumer that leaves queues out costs a round trip, so it is not done for each message."""


class Backoff:
    """The pause before a reconnect, so that a broker which refuses commands is not flooded; Celery calls `step`."""

    def __init__(self, wait: Callable[[float], None], clock: Callable[[], float] = monotonic) -> None:
        self._wait = wait
        self._clock = clock
        self._began = -_STEADY_SECONDS
        self._seconds = 0.0
        self._losses = 0

    def step(self) -> None:
        """Wait: not at all the first time, then twice as long each time, up to a maximum."""
        is_first = self._clock() - self._began >= _STEADY_SECONDS + self._seconds
        self._losses = 0 if is_first else self._losses + 1
        self._seconds = pause_after(self._losses, _FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
        self._wait(self._seconds)
        self._began = self._clock()


class WakeConsumer(Consumer):
    """The setting `worker_consumer` of a planq worker."""

    class Blueprint(Consumer.Blueprint):
        """Celery's steps, with a guard before remote control."""

        default_steps: ClassVar = [
            GuardedControl if step == "celery.worker.consumer.control:Control" else step
            for step in Consumer.Blueprint.default_steps
        ]

    planq_mailbox: GuardedPidbox | None = None
    _is_flush_due = False
    _has_seen_newer = False
    _is_look_due = False
    _is_stopping = False
    _healing: Any = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._own_queues = tuple(self.app.amqp.queues.consume_from)
        # What kombu makes of an error reply to the first command of a connection.
        self.connection_errors: tuple[type[BaseException], ...] = (*self.connection_errors, OperationalError)
        self._restart_state = Backoff(_pause)
        self._letters: DeadLetterWriter = self.app.planq_dead_letters
        self.initial_prefetch_count += self._reserved

    @property
    def max_prefetch_count(self) -> int:
        """Maximum number of messages in this worker."""
        most: int = super().max_prefetch_count
        return most + self._reserved

    @property
    def _reserved(self) -> int:
        reserve: Reserve | None = self.app.planq_reserve
        return 0 if reserve is None else reserve.more

    def create_task_handler(self, *args: Any, **kwargs: Any) -> Callable[[Any], None]:
        """Set the windows, and return Celery's message handler for wake-ups; called before each consumption."""
        self._set_windows()
        carry_out = super().create_task_handler(*args, **kwargs)

        def on_message(message: Any) -> None:
            try:
                check_message(message.headers, message.payload)
            except NewerWakeUp as error:
                if not self._has_seen_newer:
                    self._has_seen_newer = True
                    _log.warning("wake_up_of_a_newer_release", extra={"cause": str(error)})
                message.ack_log_error(_log, self.connection_errors)
                return
            except Exception as error:  # anybody may have written the message, so decoding may raise anything
                self._bury(message, error)
                return
            try:
                carry_out(message)
            except Exception as error:
                # kombu counts a KeyError as a loss of the connection.
                if isinstance(error, self.connection_errors) and not isinstance(error, KeyError):
                    raise
                self._bury(message, error)

        return on_message

    def on_decode_error(self, message: Any, exc: BaseException) -> None:
        self._bury(message, exc)

    def on_unknown_message(self, body: Any, message: Any) -> None:
        self._bury(message, ValueError("no message of a task"))

    def on_unknown_task(self, body: Any, message: Any, exc: BaseException) -> None:
        self._bury(message, exc)

    def on_invalid_task(self, body: Any, message: Any, exc: BaseException) -> None:
        self._bury(message, exc)

    def on_connection_error_before_connected(self, exc: BaseException) -> None:
        _log_reply(exc)
        super().on_connection_error_before_connected(exc)

    def on_connection_error_after_connected(self, exc: BaseException) -> None:
        _log_reply(exc)
        super().on_connection_error_after_connected(exc)

    def call_soon_ack(self, p: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Acknowledge on this thread where the transport keeps that in memory; on the consumer's thread otherwise."""
        message = getattr(p, "__self__", None)
        channel = getattr(message, "channel", None)
        if not isinstance(channel, Channel) or getattr(p, "__name__", "") != "ack_log_error":
            return super().call_soon_ack(p, *args, **kwargs)
        p(*args, **kwargs)
        if self.hub is not None and channel.qos.is_about_full:
            self.hub.call_soon(lambda: None)  # wakes its loop, which may wait for a free slot
        elif self.hub is not None and channel.leaves_out and not self._is_look_due:
            self._is_look_due = True
            self.hub.call_soon(self.hub.call_later, _LOOK_AGAIN_SECONDS, self._look_again, channel)
        return None

    def _look_again(self, channel: Channel) -> None:
        self._is_look_due = False
        channel.look_again()

    def _restore_prefetch_count_after_connection_restart(self, p: Any, *args: Any) -> None:
        """Widen the prefetch window on the consumer's thread: on the pool's, frames are torn (RabbitMQ, 2026-11)."""
        restore = super()._restore_prefetch_count_after_connection_restart
        if not self._maximum_prefetch_restored:
            self.hub.call_soon(restore, p, *args)

    def on_send_event_buffered(self) -> None:
        """Send what was noted within `_FLUSH_SECONDS`; from any thread."""
        if self.hub is None or self._is_flush_due:
            return
        self._is_flush_due = True
        if self._is_stopping:  # timers no longer run; events of what still ends are sent at once
            self.hub.call_soon(self._flush_due)
        else:
            self.hub.call_soon(self.hub.call_later, _FLUSH_SECONDS, self._flush_due)

    def on_ready(self) -> None:
        """Do what Celery does, then send what was noted while there was no connection."""
        super().on_ready()
        self._is_look_due = False  # the connection before had its own timers
        if isinstance(self.task_consumer.channel, Channel):
            self.task_consumer.channel.on_unreadable = self._letters.put
        else:
            self._listen_to(self._windows)
        if self._healing is not None:
            self._healing.cancel()  # of the connection before
        self._healing = self.hub.call_repeatedly(_HEAL_SECONDS, self._heal)
        self._flush_due()

    def stop(self) -> None:
        self._is_stopping = True
        super().stop()
        self._flush_due()

    def _heal(self) -> None:
        """Consume again from queues without our consumer, and bind remote control again."""
        if "cancel_consumer" not in self.app.planq_remote_control:
            for queue in self._own_queues:
                if not self.task_consumer.consuming_from(queue):
                    _log.warning("consumer_was_cancelled", extra={"queue": queue})
                    self._listen_to([queue])
        if self.planq_mailbox is not None:
            self.planq_mailbox.bind_again()

    def _listen_to(self, queues: Iterable[str]) -> None:
        channel, consumer = self.task_consumer.channel, self.task_consumer
        has_windows = not isinstance(channel, Channel)
        for queue in queues:
            if has_windows:
                channel.basic_qos(0, self._windows[queue], False)
            consumer.add_queue(self.app.amqp.queues[queue])
            consumer.consume()
        if has_windows:
            # RabbitMQ drops the window of a channel when a consumer gets its own, so the channel's is set last.
            self.qos.prev = None
            self.qos.update()

    def _set_windows(self) -> None:
        """Bound how many messages of some queues this worker takes (`app.planq_windows`), and keep its reserve."""
        channel = self.task_consumer.channel
        if isinstance(channel, Channel):
            channel.windows, channel.reserve = self.app.planq_windows, self.app.planq_reserve
            return
        refuse_hostile(channel)
        for queue in self._windows:
            self.task_consumer.cancel_by_queue(queue)  # RabbitMQ bounds only what is consumed from then on

    @property
    def _windows(self) -> Mapping[str, int]:
        """Maximum messages of each queue here (RabbitMQ, which sends one more of the first; 3.10, seen 2026-11)."""
        reserve: Reserve | None = self.app.planq_reserve
        most = self.max_prefetch_count if reserve is None or not reserve.few else reserve.most
        return {**dict.fromkeys(self._own_queues, most), **self.app.planq_windows}

    def _flush_due(self) -> None:
        self._is_flush_due = False
        self._flush_events()

    def _bury(self, message: Any, error: BaseException) -> None:
        delivery = message.delivery_info if isinstance(message.delivery_info, dict) else {}
        text = f"headers: {message.headers!r:.{LONGEST_CHARS}}, body: {message.body!r:.{LONGEST_CHARS}}"
        self._letters.put(str(delivery.get("routing_key", "")), text, str(error) or type(error).__name__)
        message.ack_log_error(_log, self.connection_errors)


def _log_reply(error: BaseException) -> None:
    if reply := reply_of(error):
        _log.warning("broker_refuses", extra={"cause": reply})


def _pause(seconds: float) -> None:
    until = monotonic() + seconds
    while (left := until - monotonic()) > 0:
        maybe_shutdown()
        sleep(min(left, _LOOK_SECONDS))


class StepRequest(Request):
    """Reports a process that others killed (`Terminated`: planq did) to the worker's lifecycle."""

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> None:
        """Do what Celery does, then release the step at once instead of after its timeout."""
        super().on_failure(exc_info, send_failed_event, return_ok)
        error = getattr(exc_info.exception, "exc", exc_info.exception)
        lifecycle = getattr(self.app, "planq_lifecycle", None)
        if isinstance(error, (WorkerLostError, SystemExit)) and lifecycle is not None and self.worker_pid:
            lifecycle.process_died(self.worker_pid)
