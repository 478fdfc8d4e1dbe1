"""A request that becomes a job, and the lists of columns that SQL writes and reads because of it.

A field of `Submission` is a column of `jobs`: it is stored, read by `planq_view_jobs`, and taken over by a job that
is run again or forked. Nothing else has to list it. The SQL in `sql/` names the lists as `:new_job_types` and so on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from functools import cache
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints
from uuid import UUID

from planq.shared.kernel.limits import Limits
from planq.shared.kernel.states import Priority, Respond, Strategy
from planq.shared.platform.values.encoding import JsonText


@dataclass(frozen=True, slots=True)
class Submission:
    """A request that has been checked and may become a job.

    In a fork, `reuse` says which steps of its plan take over the outcome of which step of `forked_from`. An `agent`
    is pinned to the version that is named here, and so are the skills that its document lists, in their order. The
    `budget` is that of the whole tree of jobs (`shared/kernel/budget.py`), `loop` the job's own loop
    block. One that `is_task` comes by `POST /tasks`. One with `history_of` is shown that conversation, and
    is no turn of it. `model_settings` is an `AgentCallSettings` as JSON. `parts` are the images, files and audio
    beside `input`, each as `Part.to_json` returns it.
    """

    id: UUID
    tenant_id: str
    input: str
    strategy: Strategy
    model: str
    limits: Limits
    plan: Mapping[str, Any] | JsonText | None = None
    tools: Sequence[str] | None = None
    metadata: Mapping[str, Any] | None = None
    user_id: str = ""
    trace_id: str = ""
    idempotency_key: str | None = None
    request_hash: str | None = None
    forked_from: UUID | None = None
    reuse: Mapping[int, int] | None = None
    agent: str | None = None
    agent_version: int | None = None
    skill_versions: Sequence[int] | None = None
    action: str | None = None
    with_: Mapping[str, Any] | None = None
    budget: Mapping[str, Any] | None = None
    loop: Mapping[str, Any] | None = None
    priority: Priority = Priority.INTERACTIVE
    respond: Respond = Respond.MODEL
    on_incomplete: str | None = None
    model_settings: Mapping[str, Any] | None = None
    callback_url: str | None = None
    is_task: bool = False
    history_of: UUID | None = None
    parts: Any = None

    @property
    def expires_in(self) -> timedelta:
        """How long after its creation the job is given up unless a worker begins it."""
        return timedelta(seconds=min(self.limits.queue_timeout_seconds, self.limits.job_timeout_seconds))


_NAMES = {"agent": "agent_name", "with_": "with_input", "loop": "loop_block"}
"""Columns with another name than their field."""

_NO_COLUMNS = ("plan", "reuse", "is_task", "history_of")
"""Fields that are no column: they decide what else is written with the job."""

_OWN = ("id", "trace_id", "idempotency_key", "request_hash", "forked_from")
"""Columns that each job has for itself: a job that is run again does not take them over."""

_NOT_SHOWN = (
    *("model", "limits", "tools", "trace_id", "idempotency_key", "request_hash", "skill_versions", "with_input"),
    *("budget", "loop_block", "on_incomplete", "callback_url"),
)
"""Columns that views do not read: no caller sees them, and some are long."""

_INHERITED = ("user_id", "trace_id", "priority", "budget")
"""Columns that a child job has as its parent has them."""

COLUMNS: Mapping[str, str] = {
    one.name: _NAMES.get(one.name, one.name) for one in fields(Submission) if one.name not in _NO_COLUMNS
}
"""The column of each field."""

CARRIED: Mapping[str, str] = {name: column for name, column in COLUMNS.items() if column not in _OWN}
"""The column of each field that a job takes over which is run again, or forked."""

_JSON = "json"
_TYPES: Mapping[Any, str] = {
    **dict.fromkeys((str, Strategy, Priority, Respond), "text"),
    int: "int",
    bool: "boolean",
    UUID: "uuid",
    Sequence[str]: "text[]",
    Sequence[int]: "int[]",
    **dict.fromkeys((Limits, Mapping, Any), _JSON),
}
"""The type of a column by that of its field. JSON comes and goes as a text that holds it."""


@cache
def _types() -> Mapping[str, str]:
    """Return the type of each column, and of each field that is none."""
    found = {}
    for name, hint in get_type_hints(Submission).items():
        kind = get_args(hint)[0] if get_origin(hint) is UnionType else hint
        found[_NAMES.get(name, name)] = _TYPES.get(kind) or _TYPES[get_origin(kind)]
    return found


def json_columns() -> list[str]:
    """Return the columns that views read and that hold JSON."""
    return [name for name in COLUMNS.values() if _types()[name] == _JSON and name not in _NOT_SHOWN]


@cache
def lists() -> Mapping[str, str]:
    """Return what the names of lists in SQL stand for: `g` is a `planq_new_job`, `j` a job."""
    types = _types()
    texts = {name: "text" if kind == _JSON else kind for name, kind in types.items()}
    defaults = {COLUMNS[one.name]: one.default for one in fields(Submission) if one.name in COLUMNS}
    shown = [name for name in COLUMNS.values() if name not in _NOT_SHOWN]
    return {
        ":new_job_types": ", ".join(f"{name} {kind}" for name, kind in texts.items()),
        ":new_job_columns": ", ".join(COLUMNS.values()),
        ":new_job_values": ", ".join(
            f"coalesce(g.{name}, '{default}')" if isinstance(default, str) else f"g.{name}::{types[name]}"
            for name, default in defaults.items()
        ),
        ":shown_types": ", ".join(f"{name} {texts[name]}" for name in shown),
        ":shown_values": ", ".join(f"j.{name}::{texts[name]}" for name in shown),
        ":inherited_values": ", ".join(f"j.{name}::{texts[name]} AS {name}" for name in _INHERITED),
    }
