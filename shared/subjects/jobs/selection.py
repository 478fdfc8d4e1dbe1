"""Job actions: what is to become of all jobs that a filter selects, and which jobs that can be.

action  running → completed | cancelled
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from enum import StrEnum
from typing import Any, Self
from uuid import UUID

from planq.shared.kernel.states import TERMINAL_JOB, JobStatus, Priority, Strategy
from planq.shared.platform.errors import InvalidRequest


class JobAct(StrEnum):
    """What is done to each job."""

    CANCEL = "cancel"
    PAUSE = "pause"
    RESUME = "resume"  # lets paused jobs go on
    RETRY = "retry"  # lets jobs with failures try again what has not succeeded


class ActionStatus(StrEnum):
    """Where a job action stands."""

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
"""Jobs that have completed with failures are tried again only where they are asked for by name."""


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs are meant, all conditions at once: never child jobs, which end and go on with those above them.

    `metadata` has to stand in a job's own (`has_metadata`); `words` in its input, whatever their case.
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
        """Whether the jobs with this status ask a person; None where that makes no difference."""
        if self.status is None or self.status.stored is not JobStatus.EXECUTING:
            return None
        return self.status is JobStatus.INPUT_REQUIRED

    def to_json(self) -> dict[str, Any]:
        given = {name: value for name, value in asdict(self).items() if value is not None}
        texts: Mapping[str, Callable[[Any], Any]] = {
            "batch_id": str,
            "made_before": datetime.isoformat,
            "made_after": datetime.isoformat,
        }
        return {name: texts.get(name, _same)(value) for name, value in given.items()}

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> Self:
        """Return the filter that `to_json` has told; what it does not know is left out."""
        kinds: dict[str, Any] = {
            "status": JobStatus,
            "strategy": Strategy,
            "priority": Priority,
            "batch_id": UUID,
            "made_before": datetime.fromisoformat,
            "made_after": datetime.fromisoformat,
        }
        known = {field.name for field in fields(cls)}
        return cls(**{name: kinds.get(name, _same)(one) for name, one in value.items() if name in known})

    def has_metadata(self, metadata: Any) -> bool:
        """Return whether all that is wanted stands in a job's metadata.

        Values fit as those of JSON do: 5 is 5.0, and no truth is a number. A text also fits the number, truth or null
        that is written so, since terminals and forms know texts alone.
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
    """Return the number, truth or null that a text writes in JSON; the text itself where it writes none."""
    if text[:1] not in _BEGINNINGS:
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


_BEGINNINGS = frozenset("-0123456789tfn")


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two values of JSON are the same; for Python, True is 1."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_is_same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _same(value: Any) -> Any:
    return value


def statuses_for(act: JobAct, wanted: JobStatus | None) -> Sequence[JobStatus]:
    """Return the statuses of the jobs that an act concerns; raises `InvalidRequest` where it cannot."""
    if wanted is None:
        return _USUAL[act]
    if wanted not in _STATUSES[act]:
        expected = ", ".join(_STATUSES[act])
        raise InvalidRequest(f"filter.status: expected one that {act} can change ({expected}), found {wanted}")
    return [wanted]
