"""Job actions on all jobs of a filter: running → completed | cancelled."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from inspect import Parameter, signature
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from planq.shared.kernel.states import TERMINAL_JOB, JobStatus, Priority, Strategy
from planq.shared.platform.errors import InvalidRequest


class JobAct(StrEnum):
    """The change of each job."""

    CANCEL = "cancel"
    PAUSE = "pause"
    RESUME = "resume"  # lets paused jobs go on
    RETRY = "retry"  # lets jobs with failures try again what has not succeeded


class ActionStatus(StrEnum):
    """State of a job action."""

    RUNNING = "running"
    COMPLETED = "completed"  # every job that it concerned was looked at
    CANCELLED = "cancelled"  # somebody has stopped it; what is done stays done


_UNFINISHED = tuple(status for status in JobStatus if status not in TERMINAL_JOB)
_STATUSES = {
    JobAct.CANCEL: _UNFINISHED,
    JobAct.PAUSE: _UNFINISHED,
    JobAct.RESUME: _UNFINISHED,
    JobAct.RETRY: (JobStatus.FAILED, JobStatus.COMPLETED),
}
_USUAL = {**_STATUSES, JobAct.RETRY: (JobStatus.FAILED,)}
"""Completed jobs with failures are only retried if their status is named."""


class FilterField(NamedTuple):
    """One field of a filter, for all places that have one.

    `name` is that of `GET /jobs` and `POST /job-actions`, `option` the commands', `form` the page's, in `unit`s of
    the API's. `bounds` are of pydantic's `Field`, `meaning` is for the API's reference, `chip` for a chosen value on
    the page, `html` for the form field's attributes.
    """

    name: str
    kind: Any
    bounds: Mapping[str, Any]
    meaning: str | None
    option: str
    metavar: str | None
    help: str
    form: str
    unit: float
    label: str
    chip: str
    html: Mapping[str, str]


# fmt: off
def _field(
    name: str, kind: Any = str, bounds: Mapping[str, Any] = {}, meaning: str | None = None, *,
    option: str = "", metavar: str | None = None, help: str = "", form: str = "", unit: float = 1.0, label: str = "",
    chip: str = "", **html: str,
) -> FilterField:
    option = option or name
    help = help or f"Only jobs with this {option}."
    given = (kind, bounds, meaning, option, metavar, help, form or name, unit)
    html |= {"inputmode": "decimal"} if kind is float else {}
    return FilterField(name, *given, label or option.capitalize(), chip or f"{option} {{}}", html)


_TEXT = {"min_length": 1, "max_length": 200}
_UUID = {"pattern": "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"}
_SECONDS = {"ge": 0, "le": 1e9}
_TIME = {"max_length": 40, "json_schema_extra": {"format": "date-time"}}
_AGO = "Seconds since it was submitted."
_AT = "When it was submitted; UTC without a zone."

FILTER_FIELDS = (
    _field("status", JobStatus, help="Only jobs in this state."),
    _field("strategy", Strategy),
    _field("priority", Priority),
    _field("agent", str, _TEXT, "The name of its agent.", metavar="NAME", help="Only jobs of this agent."),
    _field("batch_id", str, _UUID, "The batch of its line.", option="batch", metavar="ID",
           help="Only jobs of this batch.", placeholder="its id"),
    _field("words", str, _TEXT, "Words of its input, in any case.",
           help="Only jobs with these words in their input.", label="Words of the input"),
    _field("metadata", metavar="KEY=VALUE", label="Metadata has", placeholder="team=blue, or JSON",
           help="Only jobs with this in their metadata, as a text, number, true, false or null; repeatable."),
    _field("older_than_seconds", float, _SECONDS, _AGO, option="older_than", metavar="SECONDS",
           help="Only jobs older than this.",
           form="older_than_hours", unit=3600.0, label="Older than, hours", chip="older than {} h"),
    _field("newer_than_seconds", float, _SECONDS, _AGO, option="newer_than", metavar="SECONDS",
           help="Only jobs newer than this.",
           form="newer_than_hours", unit=3600.0, label="Younger than, hours", chip="younger than {} h"),
    _field("created_before", str, _TIME, _AT, option="before", metavar="TIME",
           help="Only jobs submitted before this.", label="Submitted before (UTC)", type="datetime-local"),
    _field("created_after", str, _TIME, _AT, option="after", metavar="TIME", help="Only jobs submitted since this.",
           label="Submitted since (UTC)", chip="since {}", type="datetime-local"),
    _field("min_cost_usd", float, {"ge": 0, "lt": 1e9}, "Least cost so far.", option="min_cost",
           metavar="USD", help="Only jobs that have cost at least this.",
           label="Cost at least, USD", chip="cost at least ${}"),
)
# fmt: on
"""Every field of a filter. The API's parameters, the options of commands and the page's forms are made of these.

A text or an enum of this name is compared with the column of the same name (`shared/subjects/jobs/find.py`).
"""

Function = TypeVar("Function", bound=Callable[..., Any])


def takes(parameters: Iterable[Parameter], *, before: str) -> Callable[[Function], Function]:
    """Give a function with `**given` these parameters before `before`: FastAPI and typer read the signature."""

    def said(function: Function) -> Function:
        whole = signature(function, eval_str=True)
        own = [one for one in whole.parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
        place = [one.name for one in own].index(before)
        known = [*own[:place], *parameters, *own[place:]]
        function.__signature__ = whole.replace(parameters=known)  # type: ignore[attr-defined]
        return function

    return said


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Conditions for jobs, all at once, without child jobs, which follow their parents.

    Fields are named like `FilterField`s; times become `made_before` and `made_after`. `words` match in any case.
    """

    status: JobStatus | None = None
    strategy: Strategy | None = None
    agent: str | None = None
    priority: Priority | None = None
    batch_id: UUID | None = None
    words: str | None = None
    metadata: Mapping[str, Any] | None = None
    made_before: datetime | None = None
    made_after: datetime | None = None
    min_cost_usd: float | None = None

    @property
    def is_indexed(self) -> bool:
        return self == JobFilter(status=self.status, strategy=self.strategy)

    @property
    def asks(self) -> bool | None:
        """Whether jobs of this status ask a person; None if irrelevant."""
        if self.status is None or self.status.stored is not JobStatus.EXECUTING:
            return None
        return self.status is JobStatus.INPUT_REQUIRED

    def has_metadata(self, metadata: Any) -> bool:
        """Return whether a job's metadata has all wanted values, as JSON (5 is 5.0).

        A text also matches the number, boolean or null that it spells: terminals and forms only have texts.
        """
        if not self.metadata:
            return True
        return isinstance(metadata, Mapping) and all(
            name in metadata and _fits(metadata[name], value) for name, value in self.metadata.items()
        )


def _fits(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, str) and not isinstance(value, str | list | dict):
        wanted = _written(wanted)
    return _is_same(value, wanted)


def _written(text: str) -> Any:
    """Return the number, boolean or null that a text spells in JSON, else the text."""
    if text[:1] not in _BEGINNINGS:
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


_BEGINNINGS = frozenset("-0123456789tfn")


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal; in Python, True is 1."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_is_same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def statuses_for(act: JobAct, wanted: JobStatus | None) -> Sequence[JobStatus]:
    """Return the statuses that an act applies to; raises `InvalidRequest`."""
    if wanted is None:
        return _USUAL[act]
    if wanted not in _STATUSES[act]:
        expected = ", ".join(_STATUSES[act])
        raise InvalidRequest(f"filter.status: expected one that {act} can change ({expected}), found {wanted}")
    return [wanted]
