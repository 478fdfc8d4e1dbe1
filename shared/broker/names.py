"""Names on the wire: contracts with messages in flight and monitors, so they follow no module path."""

from __future__ import annotations

import re

from planq.shared.kernel.states import WakeQueue

PREFIX = "planq"
"""Prefix of the exchanges for remote control (`planq.pidbox`) and events (`planqev`)."""

PLAN = "planq.job.plan.v1"
STEP = "planq.step.run.v1"
RESPOND = "planq.job.respond.v1"
TASKS = (PLAN, STEP, RESPOND)
"""Planner, executor and responder: three names of one Celery task."""

_VERSIONED = re.compile(rf"({'|'.join(re.escape(name[:-1]) for name in TASKS)})(\d{{1,9}})")


def is_newer(name: str) -> bool:
    """True for one of these tasks in a version of a newer release."""
    found = _VERSIONED.fullmatch(name)
    return found is not None and int(found[2]) > 1


DEAD_LETTERS = "planq.dead-letters"
"""The list (RabbitMQ: queue) of messages that are no wake-ups."""

_LISTS = 8
"""Each costs 1 µs per command on Redis, and an AMQP consumer; see `planq.shared.broker.lists`."""

PROBE = "planq.probe"
"""A list that never exists: LPUSHX to it shows whether the broker takes writes."""


_LABELS = {PLAN: "planq.plan", STEP: "planq.step", RESPOND: "planq.respond"}

_LONGEST_SUBJECT = 128

_UNPRINTED = re.compile(r"[^\w.:/-]+")


def label(task: str, subject: str | None) -> str:
    """Return the name of a task in monitors: the stage, and its tool or agent with unsafe characters replaced."""
    if not subject:
        return _LABELS[task]
    return f"{_LABELS[task]}[{_UNPRINTED.sub('_', subject)[:_LONGEST_SUBJECT]}]"


_QUEUE = f"{PREFIX}."


def queue(which: WakeQueue) -> str:
    return f"{_QUEUE}{which}"


def queue_named(name: str) -> WakeQueue:
    return WakeQueue(name.removeprefix(_QUEUE))


def lists(which: WakeQueue) -> tuple[str, ...]:
    """Return the names of a queue's lists; only one for bulk work, which nobody waits for."""
    first = queue(which)
    return (first,) if which.is_bulk else (first, *(f"{first}.{number}" for number in range(1, _LISTS)))
