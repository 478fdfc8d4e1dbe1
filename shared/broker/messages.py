"""Wake-ups as messages and back: ids only, never results, never secrets.

    {"job": "<uuid>", "agent": "host"}                  planq.job.plan.v1, planq.job.respond.v1
    {"job": "<uuid>", "round": 0, "step": 2, "pool": "io", "tool": "calculate"}   planq.step.run.v1
    {"job": "<uuid>", "round": 0, "steps": [[2, "calculate"], [3, "fetch"]], "pool": "io"}   planq.steps.run.v1

`pool` and the names of tools and agents (where a job has one) are there for people who read them in Flower, and so is
what the headers say of root, parent and group. Wake-ups of bulk jobs also have `"priority": "bulk"`. The tenant, by
whom slots are shared, is a header, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from planq.shared.broker import names
from planq.shared.kernel.ids import (
    StepRef,
    plan_attempt_id,
    respond_attempt_id,
    step_attempt_id,
    steps_attempt_id,
)
from planq.shared.kernel.states import Pool, Priority, WakeQueue
from planq.shared.kernel.wakes import AnyWake, PlanWake, RespondWake, StepsWake, StepWake, TaskLinks

TENANT_HEADER = "planq_tenant"
"""The header that names the tenant: a worker of another release reads past it."""

_SHOWN_CHARS = 500
"""A wake-up for a hundred steps is longer than Flower need show."""

_SEVERAL = "several"
"""What stands for the tool where the steps of one message have different ones."""

_EXCERPT_CHARS = 100

MOST_BYTES = 256 * 1024
"""A message that is larger is refused before it is read: the longest wake-up, one for a hundred steps, has 30 kB."""

_LARGEST = 2**31 - 1
"""PostgreSQL's `integer`, which numbers of rounds and steps are."""


class NoWakeUp(ValueError):
    """A message that is no wake-up; the text says why, and holds no more than an excerpt of it."""


@dataclass(frozen=True, slots=True)
class WakeMessage:
    """A wake-up as Celery sends it; `kwargs_repr` is what Flower shows, `shadow` the name that it has there."""

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


def encode_wake(wake: AnyWake, attempt: int | None = None) -> WakeMessage:
    """Return the message of a wake-up; its task id is that of the attempt it asks for (`attempt` overrides)."""
    number = wake.attempt if attempt is None else attempt
    pool = Pool.IO
    subject: str | None
    match wake:
        case PlanWake():
            task, task_id, kwargs = names.PLAN, plan_attempt_id(wake.job_id, number), _job_fields(wake)
            job_id, subject = wake.job_id, wake.agent
        case RespondWake():
            task, task_id, kwargs = names.RESPOND, respond_attempt_id(wake.job_id, number), _job_fields(wake)
            job_id, subject = wake.job_id, wake.agent
        case StepWake(ref, pool):
            task, task_id = names.STEP, step_attempt_id(ref, number)
            job_id, subject = ref.job_id, wake.tool_name
            kwargs = {
                "job": str(ref.job_id),
                "round": ref.round,
                "step": ref.index,
                "pool": str(pool),
                "tool": wake.tool_name,
            }
        case StepsWake(job_id, round, pool):
            steps = [list(step) for step in wake.steps]
            task = names.STEPS
            task_id = steps_attempt_id(StepRef(job_id, round, wake.steps[0][0]), len(steps), number)
            kwargs = {"job": str(job_id), "round": round, "steps": steps, "pool": str(pool)}
            tools = {tool_name for _, tool_name in wake.steps}
            subject = tools.pop() if len(tools) == 1 else _SEVERAL
    if wake.priority is not Priority.INTERACTIVE:
        kwargs["priority"] = str(wake.priority)
    queue = names.queue(WakeQueue.of(pool, wake.priority))
    links = wake.links or TaskLinks.below(job_id)
    return WakeMessage(task, task_id, kwargs, queue, names.label(task, subject), links, wake.tenant)


def _job_fields(wake: PlanWake | RespondWake) -> dict[str, Any]:
    return {"job": str(wake.job_id)} if wake.agent is None else {"job": str(wake.job_id), "agent": wake.agent}


def read_links(headers: Mapping[str, Any]) -> TaskLinks:
    """Return the links that the headers of a wake-up name, which `check_message` has let through."""
    return TaskLinks(headers["root_id"], headers.get("parent_id"), headers.get("group"), headers.get("group_index"))


def read_tenant(headers: Mapping[str, Any]) -> str:
    """Return in whose share a wake-up is carried out, empty if none is named; `check_message` has let it through."""
    return headers.get(TENANT_HEADER) or ""


def check_length(size: int) -> None:
    """Raise `NoWakeUp` for a message of more than `MOST_BYTES` bytes, as they came over the wire."""
    if size > MOST_BYTES:
        raise NoWakeUp(f"the message has {size} bytes: expected at most {MOST_BYTES}")


def check_unpacked(headers: Any) -> None:
    """Raise `NoWakeUp` for headers of a compressed message: unpacked, a few kilobytes may fill the memory."""
    if isinstance(headers, Mapping) and headers.get("compression"):
        raise NoWakeUp(f"the message is compressed ({shown(headers['compression'])}): expected a plain one")


def check_message(headers: Any, payload: Any) -> None:
    """Raise `NoWakeUp` unless a message is a wake-up as planq writes them, in Celery's protocol 2.

    Anybody who reaches the broker can write there, so nothing is taken for granted. Delays, expiry, canvas and
    arguments by position are refused too: no wake-up has them, and Celery would act on them.
    """
    if not isinstance(headers, Mapping):
        raise NoWakeUp(f"headers: expected an object, found {shown(headers)}")
    name = headers.get("task")
    decode = _DECODERS.get(name) if isinstance(name, str) else None
    if decode is None:
        raise NoWakeUp(f"task: expected one of {', '.join(_DECODERS)}, found {shown(name)}")
    _check_headers(headers)
    try:
        decode(**_arguments(payload))
    except (TypeError, ValueError) as error:
        raise NoWakeUp(f"body of {name}: {str(error)[:_EXCERPT_CHARS]}") from error


def decode_plan(job: str, priority: str = Priority.INTERACTIVE, agent: str | None = None) -> PlanWake:
    """Return the wake-up of a PLAN message; raises ValueError for what is no such message."""
    return PlanWake(_job(job), priority=_priority(priority), agent=_optional_text(agent))


def decode_respond(job: str, priority: str = Priority.INTERACTIVE, agent: str | None = None) -> RespondWake:
    """Return the wake-up of a RESPOND message; raises ValueError for what is no such message."""
    return RespondWake(_job(job), priority=_priority(priority), agent=_optional_text(agent))


def decode_step(
    job: str, round: int, step: int, pool: str, tool: str, priority: str = Priority.INTERACTIVE
) -> StepWake:
    """Return the wake-up of a step message; raises ValueError for what is no such message."""
    ref = StepRef(_job(job), _number(round), _number(step))
    return StepWake(ref, _pool(pool), _text(tool), priority=_priority(priority))


def decode_steps(
    job: str, round: int, steps: Sequence[tuple[int, str]], pool: str, priority: str = Priority.INTERACTIVE
) -> StepsWake:
    """Return the wake-up of a message for several steps; raises ValueError for what is no such message."""
    if not isinstance(steps, (list, tuple)) or not steps:
        raise ValueError(f"expected a list of steps, found {shown(steps)}")
    try:
        named = tuple((_number(index), _text(tool)) for index, tool in steps)
    except TypeError as error:
        raise ValueError(f"expected pairs of a number and a tool, found {shown(steps)}") from error
    return StepsWake(_job(job), _number(round), _pool(pool), named, priority=_priority(priority))


_DECODERS: Mapping[str, Callable[..., AnyWake]] = {
    names.PLAN: decode_plan,
    names.RESPOND: decode_respond,
    names.STEP: decode_step,
    names.STEPS: decode_steps,
}


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
    """Return the arguments of a message's body, [[], arguments, options]; raises ValueError for another one."""
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


def _job(value: Any) -> UUID:
    return UUID(_text(value))


def _pool(value: Any) -> Pool:
    return Pool(_text(value))


def _priority(value: Any) -> Priority:
    return Priority(_text(value))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected a text, found {shown(value)}")
    return value


def _optional_text(value: Any) -> str | None:
    return None if value is None else _text(value)


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LARGEST:
        raise ValueError(f"expected a number from 0, found {shown(value)}")
    return value


def shown(value: Any) -> str:
    if isinstance(value, str):
        return repr(value[:_EXCERPT_CHARS])
    return type(value).__name__ if isinstance(value, (dict, list, tuple)) else repr(value)[:_EXCERPT_CHARS]
