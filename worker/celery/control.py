"""Remote control of a worker, for everybody who can write to the broker: reading is allowed, changing is not.

Celery carries out any command of any sender: `shutdown` ends the worker, `cancel_consumer` makes it deaf. Here only
the questions of Flower and `celery inspect` are answered, and the commands in `PLANQ_REMOTE_CONTROL`. The arguments
of a command are bounded, too: patterns over host names, and other reply exchanges than Celery's own, are refused.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from time import monotonic
from typing import Any

from celery.worker.consumer.control import Control
from celery.worker.control import Panel
from celery.worker.pidbox import Pidbox

from planq.shared.broker.dead_letters import DeadLetterWriter
from planq.shared.broker.messages import shown
from planq.shared.broker.transport import Channel, refuse_hostile

_log = logging.getLogger("planq.consumer")

LOOKS = frozenset(
    {
        *("ping", "clock", "report", "conf", "stats", "active_queues", "registered"),
        *("active", "reserved", "scheduled", "revoked", "query_task"),
        *("enable_events", "disable_events", "heartbeat"),
    }
)
"""Commands of Flower and `celery inspect`, and Flower's switch for task events. Not `hello`, whose sender may name
tasks that this worker has to discard; not those that inspect the process's memory, which may take any time."""

_ALIASES = {"dump_conf", "dump_schedule", "dump_reserved", "dump_active", "dump_revoked", "dump_tasks"}
"""Older names of looks, which old clients send."""

_FIELDS = frozenset({"method", "arguments", "destination", "pattern", "matcher", "reply_to", "ticket"})

_FURTHEST_CLOCK = 2**53
"""The largest integer that all readers of JSON agree on; events carry the clock."""

_LOG_SECONDS = 1.0


class RefusedCommand(ValueError):
    """A message for remote control that is not carried out; the text says why."""


def check_command(body: Any, allowed: Collection[str], reply_exchange: str) -> None:
    """Raise `RefusedCommand` unless a body is an allowed command that replies to `reply_exchange`."""
    if not isinstance(body, Mapping) or not _FIELDS.issuperset(body):
        raise RefusedCommand(f"expected a command, found {shown(body)}")
    method = body.get("method")
    if not isinstance(method, str) or method not in allowed:
        raise RefusedCommand(f"the command {shown(method)} is not allowed here (PLANQ_REMOTE_CONTROL)")
    if not isinstance(body.get("arguments"), Mapping | None):
        raise RefusedCommand(f"arguments of {method}: expected an object, found {shown(body['arguments'])}")
    destination = body.get("destination")
    if not isinstance(destination, list | None) or not all(isinstance(name, str) for name in destination or ()):
        raise RefusedCommand(f"destination: expected a list of names, found {shown(destination)}")
    if body.get("pattern") is not None or body.get("matcher") is not None:
        raise RefusedCommand("a pattern of host names: expected `destination`")
    reply_to = body.get("reply_to")
    if reply_to is not None:
        is_ours = isinstance(reply_to, Mapping) and reply_to.get("exchange") == reply_exchange
        if not is_ours or not isinstance(reply_to.get("routing_key"), str):
            raise RefusedCommand(f"reply_to: expected a queue of {reply_exchange}, found {shown(reply_to)}")


def check_clock(headers: Any) -> None:
    """Raise `RefusedCommand` for headers whose logical clock is too large: the worker's clock continues from it."""
    clock = headers.get("clock") if isinstance(headers, Mapping) else None
    if clock is not None and not (isinstance(clock, int) and 0 <= clock < _FURTHEST_CLOCK):
        raise RefusedCommand(f"clock: expected a number, found {shown(clock)}")


class GuardedPidbox(Pidbox):
    """Celery's mailbox of a worker, with the commands that are allowed."""

    def __init__(self, c: Any) -> None:
        super().__init__(c)
        more: Collection[str] = c.app.planq_remote_control
        allowed = {*LOOKS, *_ALIASES, *more}
        self.node.handlers = {name: command for name, command in Panel.data.items() if name in allowed}
        self._letters: DeadLetterWriter = c.app.planq_dead_letters
        self._logged_at = -_LOG_SECONDS
        self._unlogged = 0

    def on_message(self, body: Any, message: Any) -> None:
        """Carry out a command if it is allowed; count it otherwise."""
        try:
            check_clock(message.headers)
            check_command(body, self.node.handlers, self.node.mailbox.reply_exchange.name)
        except RefusedCommand as refusal:
            self._refuse(str(refusal))
            return
        super().on_message(body, message)

    def start(self, c: Any) -> None:
        """Listen; on RabbitMQ, too, refuse unread what is too large or compressed."""
        super().start(c)
        channel = self.node.channel
        if isinstance(channel, Channel):
            channel.on_unreadable = lambda _queue, _entry, reason: self._refuse(reason)
        else:
            refuse_hostile(channel)
        self.consumer.on_decode_error = lambda _message, error: self._refuse(str(error))

    def bind_again(self) -> None:
        """Bind the mailbox to its exchange again if that was undone; on the consumer's thread."""
        for queue in self.consumer.queues if self.consumer is not None else ():
            queue.exchange.declare()
            queue.queue_bind()

    def _refuse(self, reason: str) -> None:
        """Count a message, and log it at most once a second: a sender can write a lot."""
        self._letters.counts["control_refused",] += 1
        self._unlogged += 1
        if monotonic() - self._logged_at >= _LOG_SECONDS:
            _log.warning("control_refused", extra={"count": self._unlogged, "cause": reason})
            self._logged_at, self._unlogged = monotonic(), 0


class GuardedControl(Control):
    """Celery's step of a consumer for remote control, with the guarded mailbox."""

    def __init__(self, c: Any, **kwargs: Any) -> None:
        super().__init__(c, **kwargs)
        c.planq_mailbox = self.box = GuardedPidbox(c)
        self.start, self.stop, self.shutdown = self.box.start, self.box.stop, self.box.shutdown
