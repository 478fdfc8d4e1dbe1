"""Wake-ups as messages and back: ids only, never results or secrets.

    {"job": "<uuid>", "round": 0, "steps": [[2, "calculate"], [3, "fetch"]], "pool": "io"}

Each of `steps` is an index and a tool. The task `planq.job.plan.v1` has the index -1 and `planq.job.respond.v1` -2,
with the job's agent or null; `planq.step.run.v1` the others. Names, `pool` and the headers' root, parent and group
are for people in Flower. Bulk jobs have `"priority": "bulk"`. The tenant, by whom slots are shared, is a header.

A newer release may add arguments, which are ignored, and tasks of a newer version (`….v2`), which are left to its own
workers: the sweeper publishes the wake-up again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from planq.shared.broker import names
from planq.shared.kernel.ids import PLAN, RESPOND, StepRef, attempt_id
from planq.shared.kernel.states import Pool, Priority, WakeQueue
from planq.shared.kernel.wakes import TaskLinks, Wake

TENANT_HEADER = "planq_tenant"
"""The header with the tenant; workers of other releases ignore it."""

_SHOWN_CHARS = 500
"""Maximum length for Flower."""

_SEVERAL = "several"
"""Replaces the tool's name if the steps of one message have different ones."""

_EXCERPT_CHARS = 100

MOST_BYTES = 256 * 1024
"""Larger messages are refused unread: the longest wake-up, for a hundred steps, has 30 kB."""

_LARGEST = 2**31 - 1
"""Maximum of PostgreSQL's `integer`, for rounds and steps."""


class NoWakeUp(ValueError):
    """A message that is no wake-up; the text says why, with at most an excerpt."""


class NewerWakeUp(NoWakeUp):
    """A message of a task in a version that only newer releases know."""


@dataclass(frozen=True, slots=True)
class WakeMessage:
    """A wake-up as Celery sends it; Flower shows `kwargs_repr`, and `shadow` as its name."""

    task: str
    task_id: str
    kwargs: dict[str, Any]
    queue: str
    shadow: str
    links: TaskLinks
    tenant: str

    @property
    def kwargs_repr(self) -> str:
        """Return the arguments for people, and the group, which Flower shows nowhere else."""
        text = " ".join(f"{name}={value}" for name, value in self.kwargs.items())
        text = text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
        return text if self.links.group is None else f"{text} group={self.links.group}[{self.links.group_index}]"


_TASKS = {PLAN: names.PLAN, RESPOND: names.RESPOND}


def encode_wake(wake: Wake) -> WakeMessage:
    """Return the message of a wake-up, with the attempt's id as task id."""
    ref, named = wake.ref, ((wake.ref.index, wake.name), *wake.more)
    kwargs: dict[str, Any] = {
        "job": str(ref.job_id),
        "round": ref.round,
        "steps": list(map(list, named)),
        "pool": str(wake.pool),
    }
    if wake.priority is not Priority.INTERACTIVE:
        kwargs["priority"] = str(wake.priority)
    task = _TASKS.get(ref.index, names.STEP)
    subject = wake.name if all(name == wake.name for _, name in named) else _SEVERAL
    return WakeMessage(
        task,
        attempt_id(ref, wake.attempt, len(wake.more)),
        kwargs,
        names.queue(WakeQueue.of(wake.pool, wake.priority)),
        names.label(task, subject),
        wake.links or TaskLinks.below(ref.job_id),
        wake.tenant,
    )


def read_links(headers: Mapping[str, Any]) -> TaskLinks:
    """Return the links in the headers of a checked wake-up."""
    return TaskLinks(headers["root_id"], headers.get("parent_id"), headers.get("group"), headers.get("group_index"))


def read_tenant(headers: Mapping[str, Any]) -> str:
    """Return the tenant of a checked wake-up, "" if unnamed."""
    return headers.get(TENANT_HEADER) or ""


def check_length(size: int) -> None:
    """Raise `NoWakeUp` for more than `MOST_BYTES` bytes, as received."""
    if size > MOST_BYTES:
        raise NoWakeUp(f"the message has {size} bytes: expected at most {MOST_BYTES}")


def check_unpacked(headers: Any) -> None:
    """Raise `NoWakeUp` for a compressed message: a few kilobytes could fill the memory."""
    if isinstance(headers, Mapping) and headers.get("compression"):
        raise NoWakeUp(f"the message is compressed ({shown(headers['compression'])}): expected a plain one")


def check_message(headers: Any, payload: Any) -> None:
    """Raise `NoWakeUp` unless a message is a wake-up of planq in Celery's protocol 2.

    Anybody with access to the broker can write there. Delays, expiry, canvas and positional arguments, which Celery
    would act on, are refused too.
    """
    if not isinstance(headers, Mapping):
        raise NoWakeUp(f"headers: expected an object, found {shown(headers)}")
    name = headers.get("task")
    if isinstance(name, str) and names.is_newer(name):
        raise NewerWakeUp(f"task: expected one of {', '.join(names.TASKS)}, found {shown(name)} of a newer release")
    if name not in names.TASKS:
        raise NoWakeUp(f"task: expected one of {', '.join(names.TASKS)}, found {shown(name)}")
    _check_headers(headers)
    try:
        wake = decode_wake(**_arguments(payload))
        if (expected := _TASKS.get(wake.ref.index, names.STEP)) != name:
            raise ValueError(f"the index {wake.ref.index} belongs to {expected}")
    except (TypeError, ValueError) as error:
        raise NoWakeUp(f"body of {name}: {str(error)[:_EXCERPT_CHARS]}") from error


def decode_wake(
    job: str,
    round: int,
    steps: Sequence[tuple[int, str | None]],
    pool: str,
    priority: str = Priority.INTERACTIVE,
    **_newer: Any,
) -> Wake:
    """Return the wake-up of a message; ignores arguments of newer releases, raises `ValueError`."""
    if not isinstance(steps, (list, tuple)) or not steps:
        raise ValueError(f"expected a list of steps, found {shown(steps)}")
    least = RESPOND if len(steps) == 1 else 0  # a stage has a message of its own
    try:
        (index, name), *more = [
            (_number(index, least), None if name is None else _text(name)) for index, name in steps
        ]
    except TypeError as error:
        raise ValueError(f"expected pairs of a number and a name, found {shown(steps)}") from error
    ref = StepRef(UUID(_text(job)), _number(round), index)
    return Wake(ref, Pool(_text(pool)), name, priority=Priority(_text(priority)), more=tuple(more))


def _check_headers(headers: Mapping[str, Any]) -> None:
    for field in ("id", "root_id"):
        if not isinstance(headers.get(field), str):
            raise NoWakeUp(f"{field}: expected a text, found {shown(headers.get(field))}")
    for field in ("parent_id", "group", "shadow", TENANT_HEADER):
        if not isinstance(headers.get(field), str | None):
            raise NoWakeUp(f"{field}: expected a text or null, found {shown(headers[field])}")
    if headers.get("group_index") is not None:
        try:
            _number(headers["group_index"])
        except ValueError as error:
            raise NoWakeUp(f"group_index: {error}") from error
    for field in ("eta", "expires"):
        if headers.get(field) is not None:
            raise NoWakeUp(f"{field}: a wake-up has none, found {shown(headers[field])}")
    limits = headers.get("timelimit", (None, None))
    if not isinstance(limits, (list, tuple)) or len(limits) != 2 or not all(map(_is_limit, limits)):
        raise NoWakeUp(f"timelimit: expected two numbers of seconds or nulls, found {shown(limits)}")


def _arguments(payload: Any) -> Mapping[str, Any]:
    """Return the arguments of a body [[], arguments, options]; raises `ValueError`."""
    if not isinstance(payload, (list, tuple)) or len(payload) != 3:
        raise ValueError(f"expected [[], arguments, options], found {shown(payload)}")
    positional, arguments, options = payload
    if not isinstance(positional, (list, tuple)) or positional:
        raise ValueError(f"expected no arguments by position, found {shown(positional)}")
    if not isinstance(arguments, Mapping):
        raise ValueError(f"arguments: expected an object, found {shown(arguments)}")
    if not isinstance(options, Mapping) or any(options.values()):
        raise ValueError(f"options: expected none, found {shown(options)}")
    return arguments


def _is_limit(limit: Any) -> bool:
    if limit is None:
        return True
    return isinstance(limit, (int, float)) and not isinstance(limit, bool) and 0 < limit < math.inf


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected a text, found {shown(value)}")
    return value


def _number(value: Any, least: int = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _LARGEST:
        raise ValueError(f"expected a number from {least}, found {shown(value)}")
    return value


def shown(value: Any) -> str:
    if isinstance(value, str):
        return repr(value[:_EXCERPT_CHARS])
    return type(value).__name__ if isinstance(value, (dict, list, tuple)) else repr(value)[:_EXCERPT_CHARS]
