"""Jobs by filter, for lists and job actions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from planq.shared.kernel.states import JobStatus, Strategy
from planq.shared.platform.database import Database, Row
from planq.shared.subjects.jobs.selection import JobAct, JobFilter, statuses_for

LOOKED_THROUGH = 5_000
"""Maximum jobs read per page for filters without an index; the next page goes on behind them."""

_PART = 500
_LAST_ID = UUID(int=2**128 - 1)


async def selected_jobs(
    database: Database, tenant_id: str, act: JobAct, wanted: JobFilter, until: datetime, after: UUID, limit: int
) -> Sequence[Row]:
    """Return the next jobs of an act, each with whether all but its metadata fits."""
    return await _select(
        database,
        tenant_id,
        wanted,
        statuses=statuses_for(act, wanted.status),
        is_paused={JobAct.PAUSE: False, JobAct.RESUME: True}.get(act),
        has_failures=act is JobAct.RETRY,
        made_until=until,
        after=after,
        limit=limit,
    )


_APART = ("status", "strategy", "metadata")
"""Filter fields without an own condition."""

_CONDITIONS = {
    "agent": "j.agent_name = %(agent)s",
    "words": "strpos(lower(left(j.input, 20000)), lower(%(words)s)) > 0",
    "made_before": "j.created_at < %(made_before)s",
    "made_after": "j.created_at >= %(made_after)s",
    "min_cost_usd": "j.cost_usd >= %(min_cost_usd)s::float8",
}
"""Conditions other than equality with the column of the same name."""


async def _select(
    database: Database, tenant_id: str, wanted: JobFilter, *, statuses: Collection[JobStatus] | None, **given: Any
) -> Sequence[Row]:
    said = {one.name: getattr(wanted, one.name) for one in fields(wanted) if one.name not in _APART}
    compared = {name: str(one) if isinstance(one, StrEnum) else one for name, one in said.items() if one is not None}
    # Planned for each filter: a plan for all filters would be as slow as the slowest.
    return await database.fetch_page(
        "select_jobs",
        "".join(f" AND {_CONDITIONS.get(name, f'j.{name} = %({name})s')}" for name in compared),
        **{
            "tenant_id": tenant_id,
            "statuses": None if statuses is None else [str(one) for one in dict.fromkeys(s.stored for s in statuses)],
            "strategies": [str(wanted.strategy)] if wanted.strategy else [str(one) for one in Strategy],
            "asking": wanted.asks,
            "with_metadata": bool(wanted.metadata),
            "is_paused": None,
            "has_failures": False,
            **dict.fromkeys(("batch_id", "made_before", "made_after", "made_until")),
            "after": None,
            "below": None,
            "roots": True,
            "message_flow": False,
            **compared,
            **given,
        },
    )


@dataclass(frozen=True, slots=True)
class FoundJobs:
    """Jobs, newest first; `next_below` is None at the end."""

    ids: Sequence[UUID]
    next_below: UUID | None


async def found_jobs(
    database: Database,
    tenant_id: str,
    wanted: JobFilter,
    *,
    below: UUID | None,
    limit: int,
    roots: bool,
    message_flow: bool = False,
) -> FoundJobs:
    """Return at most `limit` jobs, newest first, older than `below`.

    With `roots` without child jobs; with `message_flow` only turns and tasks. Reads at most `LOOKED_THROUGH` jobs, so
    filters without an index cost the same for any history.
    """
    part = limit + 1 if wanted.is_indexed else _PART
    statuses: Collection[JobStatus] | None = None
    if wanted.status is not None:
        statuses = [wanted.status]
    elif wanted.strategy is not None:
        statuses = list(JobStatus)
    ids: list[UUID] = []
    at = below or _LAST_ID
    for _ in range(LOOKED_THROUGH // _PART):
        rows = await _select(
            *(database, tenant_id, wanted),
            statuses=statuses,
            below=at,
            roots=roots,
            message_flow=message_flow,
            limit=part,
        )
        for row in reversed(rows):
            if is_meant(row, wanted):
                if len(ids) == limit:
                    return FoundJobs(ids, ids[-1])
                ids.append(row["id"])
        if len(rows) < part:
            return FoundJobs(ids, None)
        at = rows[0]["id"]
    return FoundJobs(ids, at)


def is_meant(row: Row, wanted: JobFilter) -> bool:
    return bool(row["fits"]) and wanted.has_metadata(row["metadata"])
