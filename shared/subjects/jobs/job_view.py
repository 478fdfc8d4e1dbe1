"""Jobs for callers: one query for a job and its steps, shared by concurrent requests.

Further queries are only for child jobs and for warnings of agents. JSON that is only passed on stays text
(`JsonText`); steps are parsed, because arguments are resolved from outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from planq.shared.agentic.agents.warnings import JOB_WARNINGS
from planq.shared.agentic.references.resolution import as_called
from planq.shared.kernel.states import DELEGATING, TERMINAL_JOB, StepStatus
from planq.shared.kernel.store.codec import CalledArguments, array_text, known_output
from planq.shared.kernel.submission import json_columns
from planq.shared.platform.batching import Batcher
from planq.shared.platform.database import Database
from planq.shared.platform.values.decoding import decode_stored
from planq.shared.platform.values.encoding import JsonText

_TOGETHER = 32
"""Maximum jobs per query."""

_AT_ONCE = 2
"""Queries in flight: one is answered while the other's result is processed."""

_FEW_STEPS = 100
"""Jobs with more steps get an own query, so they do not delay others."""

_ANY_STEPS = 2**31 - 1

_ENDED = array_text(TERMINAL_JOB)
_RAW = (*json_columns(), "error", "plan_body", "plan_errors", "output", "chained", "budget", "open_questions")
_TIMES = ("started_at", "finished_at", "tool_away_since")
_WARNINGS = array_text(JOB_WARNINGS)


@dataclass(frozen=True, slots=True)
class JobView:
    """A job's row with JSON as `JsonText`, and its steps by index; may be shared.

    `plan_source`, `plan_body` and `plan_errors` are the first round's, `later_plans` (`{round, source, body,
    errors}`) the others'. The row also has `children`, `warnings` and `used_below`. Steps have `called_arguments`:
    resolved once begun, as planned before or if too large. Plans, steps and children only exist if `is_whole`.
    """

    row: dict[str, Any]
    steps: Sequence[Mapping[str, Any]]
    is_whole: bool

    @property
    def may_have_children(self) -> bool:
        """False if no step can have child jobs."""
        return self.is_whole and any(step["kind"] in DELEGATING for step in self.steps)

    @property
    def has_ended(self) -> bool:
        """True if only a resume can change the job."""
        return self.row["status"] in TERMINAL_JOB


class ViewLook(NamedTuple):
    """One look at a job; without `is_wanted` plan and steps are only read after its end."""

    tenant_id: str
    job_id: UUID
    is_wanted: bool


def view_batcher(database: Database) -> Batcher[ViewLook, JobView | None]:
    """Return a batcher that reads concurrent looks in one query, on one loop; None: no such job."""
    return Batcher(partial(_read, database), at_once=_AT_ONCE, max_weight=_TOGETHER)


async def _read(database: Database, looks: Sequence[ViewLook]) -> Sequence[JobView | None]:
    found: dict[ViewLook, JobView] = {}
    asked = list(dict.fromkeys(looks))
    is_alone = len(asked) == 1
    for row in await _rows(database, asked, _ANY_STEPS if is_alone else _FEW_STEPS + 1):
        look = ViewLook(row["tenant_id"], row["id"], row["is_wanted"])
        steps = _steps(row["steps"])
        if len(steps) > _FEW_STEPS and not is_alone:
            for whole in await _rows(database, [look], _ANY_STEPS):
                found[look] = _view(whole, _steps(whole["steps"]))
        else:
            found[look] = _view(row, steps)
    await _add_children(database, [view for view in found.values() if view.may_have_children])
    await _add_warnings(database, [view for view in found.values() if view.is_whole and view.row["agent_name"]])
    return [found.get(look) for look in looks]


async def _add_children(database: Database, views: Sequence[JobView]) -> None:
    """Add the child jobs, and the usage of all jobs below."""
    if not views:
        return
    rows = await database.fetch_all("view_children", **_keys(views))
    known = {row["parent_job_id"]: row for row in rows}
    for view in views:
        if below := known.get(view.row["id"]):
            view.row["children"] = JsonText(below["children"].encode())
            view.row["used_below"] = below


async def _add_warnings(database: Database, views: Sequence[JobView]) -> None:
    """Add the warnings of agents' jobs, as `{kind, data}`."""
    if not views:
        return
    rows = await database.fetch_all("view_warnings", **_keys(views), kinds=_WARNINGS)
    known = {row["job_id"]: row["warnings"] for row in rows}
    for view in views:
        view.row["warnings"] = known.get(view.row["id"], ())


def _keys(views: Sequence[JobView]) -> dict[str, str]:
    ids, tenants = (array_text(view.row[name] for view in views) for name in ("id", "tenant_id"))
    return {"ids": ids, "tenant_ids": tenants}


async def summaries(database: Database, tenant_id: str, job_ids: Sequence[UUID]) -> list[dict[str, Any]]:
    """Return the rows of existing jobs, in this order, without plans and steps."""
    looks = [ViewLook(tenant_id, job_id, False) for job_id in job_ids]
    rows = await _rows(database, looks, 0, whole="{}") if looks else []
    found = {row["id"]: _view(row, []).row for row in rows}
    return [found[job_id] for job_id in job_ids if job_id in found]


async def _rows(
    database: Database, looks: Sequence[ViewLook], steps: int, whole: str = _ENDED
) -> list[dict[str, Any]]:
    return await database.fetch_all(
        "view_jobs",
        ids=array_text(look.job_id for look in looks),
        tenant_ids=array_text(look.tenant_id for look in looks),
        wanted=array_text(look.is_wanted for look in looks),
        ended=whole,
        steps=steps,
    )


def _view(row: dict[str, Any], steps: list[dict[str, Any]]) -> JobView:
    for name in _RAW:
        if row[name] is not None:
            row[name] = JsonText(row[name].encode())
    row["children"] = row["used_below"] = None
    row["warnings"] = ()
    row["later_plans"] = () if row["later_plans"] is None else decode_stored(row["later_plans"])
    known = {step["index"]: known_output(step) for step in steps if step["status"] == StepStatus.SUCCEEDED}
    called = CalledArguments(known, as_called)
    for step in steps:
        step["called_arguments"] = called.of(step)
    return JobView(row, steps, row["is_whole"])


def _steps(text: str | None) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = [] if text is None else decode_stored(text)
    for step in steps:
        for name in _TIMES:
            if step[name] is not None:
                step[name] = datetime.fromisoformat(step[name])
    return steps
