"""Names on the wire: contracts that messages in flight and monitors know, so they never follow a module path."""

from __future__ import annotations

import re

from planq.shared.kernel.states import WakeQueue

PREFIX = "planq"
"""What the exchanges for remote control (`planq.pidbox`) and for events (`planqev`) begin with."""

PLAN = "planq.job.plan.v1"
STEP = "planq.step.run.v1"
RESPOND = "planq.job.respond.v1"
TASKS = (PLAN, STEP, RESPOND)
"""The planner, the executor and the one who responds: three names of one Celery task."""

_VERSIONED = re.compile(rf"({'|'.join(re.escape(name[:-1]) for name in TASKS)})(\d{{1,9}})")


def is_newer(name: str) -> bool:
    """True for one of these tasks in a version of a newer release."""
    found = _VERSIONED.fullmatch(name)
    return found is not None and int(found[2]) > 1


DEAD_LETTERS = "planq.dead-letters"
"""The list (RabbitMQ: the queue) of messages that are no wake-ups."""

_LISTS = 8
"""Each costs a command over Redis 1 µs, and an AMQP consumer. See `planq.shared.broker.lists`."""

PROBE = "planq.probe"
"""A list that never is: pushing to it if it exists changes nothing, and shows whether the broker takes writes."""


_LABELS = {PLAN: "planq.plan", STEP: "planq.step", RESPOND: "planq.respond"}

_LONGEST_SUBJECT = 128

_UNPRINTED = re.compile(r"[^\w.:/-]+")


def label(task: str, subject: str | None) -> str:
    """Return under which name monitors show a task: what is done, and with which tool or agent, if there is one.

    Names of tools come from other servers too, so what could break a label of a metric or a page is replaced.
    """
    if not subject:
        return _LABELS[task]
    return f"{_LABELS[task]}[{_UNPRINTED.sub('_', subject)[:_LONGEST_SUBJECT]}]"


_QUEUE = f"{PREFIX}."


def queue(which: WakeQueue) -> str:
    return f"{_QUEUE}{which}"


def queue_named(name: str) -> WakeQueue:
    return WakeQueue(name.removeprefix(_QUEUE))


def lists(which: WakeQueue) -> tuple[str, ...]:
    """Return the names of a queue's lists, each a queue for Celery: one for bulk work, for which nobody waits."""
    first = queue(which)
    return (first,) if which.is_bulk else (first, *(f"{first}.{number}" for number in range(1, _LISTS)))
