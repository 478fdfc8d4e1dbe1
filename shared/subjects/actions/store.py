"""Job actions in the store, as those see them who ask for one, and the jobs that a filter selects."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import JobStatus, Strategy
from planq.shared.platform.database import Database, Row, as_json
from planq.shared.platform.errors import Conflict
from planq.shared.subjects.jobs.selection import JobAct, JobFilter, statuses_for

COUNTED_AMONG = 5_000
"""So many jobs a count looks at: it says what an action would concern before somebody asks for it."""

LOOKED_THROUGH = 5_000
"""So many jobs a page of a list looks at, for filters that no index knows; the next page goes on behind them."""

KEPT_DAYS = 30
_PART = 500
_FORGOTTEN_AT_ONCE = 100
_BEFORE_ALL = UUID(int=0)
_LAST_ID = UUID(int=2**128 - 1)


@dataclass(frozen=True, slots=True)
class NewAction:
    """What somebody asks for, checked."""

    tenant_id: str
    act: JobAct
    filter: JobFilter
    repeat_unsafe: bool = False
    idempotency_key: str | None = None
    request_hash: str | None = None


@dataclass(frozen=True, slots=True)
class AffectedJobs:
    """How many jobs an action would concern, and whether there may be more than were looked at."""

    count: int
    or_more: bool


class JobActions:
    """The side of those who ask."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(self, new: NewAction) -> tuple[UUID, bool]:
        """Store an action for the sweep; return its id, and whether the same request had been sent before.

        Raises `Conflict` where its idempotency key was used for another request, `InvalidRequest` where it concerns
        no job.
        """
        statuses_for(new.act, new.filter.status)
        found = new_id()
        row = await self._database.fetch_one(
            "begin_action",
            id=found,
            tenant_id=new.tenant_id,
            act=str(new.act),
            filter=as_json(new.filter.to_json()),
            repeat_unsafe=new.repeat_unsafe,
            after=_BEFORE_ALL,
            idempotency_key=new.idempotency_key,
            request_hash=new.request_hash,
        )
        if row is not None:
            await self._database.execute(
                "forget_actions", tenant_id=new.tenant_id, days=KEPT_DAYS, limit=_FORGOTTEN_AT_ONCE
            )
            return found, False
        earlier = await self._database.fetch_one(
            "action_by_key", tenant_id=new.tenant_id, idempotency_key=new.idempotency_key
        )
        if earlier is None or earlier["request_hash"] != new.request_hash:
            raise Conflict(
                "the Idempotency-Key was used before with another request; expected the same body, "
                "or a new key for a new action"
            )
        return earlier["id"], True

    async def get(self, tenant_id: str, action_id: UUID) -> Row:
        """Return an action; raises `NotFound`."""
        return await self._database.fetch_existing(
            "get_action", f"job action {action_id}", tenant_id=tenant_id, id=action_id
        )

    async def page(self, tenant_id: str, *, below: UUID | None, limit: int) -> Sequence[Row]:
        """Return at most `limit` actions, newest first, older than the action `below` if given."""
        return await self._database.fetch_all(
            "list_actions", tenant_id=tenant_id, below=below or _LAST_ID, limit=limit
        )

    async def stop(self, tenant_id: str, action_id: UUID) -> bool:
        """Let an action look at no further job; False where it is over."""
        return await self._database.fetch_one("stop_action", tenant_id=tenant_id, id=action_id) is not None

    async def concerned(self, tenant_id: str, act: JobAct, wanted: JobFilter, now: datetime) -> AffectedJobs:
        """Count the jobs that an action would concern; raises `InvalidRequest` where it can concern none."""
        rows = await selected_jobs(self._database, tenant_id, act, wanted, now, _BEFORE_ALL, COUNTED_AMONG)
        count = sum(is_meant(row, wanted) for row in rows)
        return AffectedJobs(count, or_more=len(rows) == COUNTED_AMONG)

    async def left(self, tenant_id: str, action: Row) -> int:
        """Count the jobs that an action has still to look at and that fit by now, among the next ones."""
        wanted = JobFilter.of_json(action["filter"])
        given = (JobAct(action["act"]), wanted, action["created_at"], action["after_job"], COUNTED_AMONG)
        return sum(is_meant(row, wanted) for row in await selected_jobs(self._database, tenant_id, *given))


async def selected_jobs(
    database: Database, tenant_id: str, act: JobAct, wanted: JobFilter, until: datetime, after: UUID, limit: int
) -> Sequence[Row]:
    """Return the next jobs in the statuses that an act concerns, each with whether all but its metadata fits."""
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
"""Fields of a filter that are no condition of their own: two decide which jobs are read, one is compared here."""

_CONDITIONS = {
    "agent": "j.agent_name = %(agent)s",
    "words": "strpos(lower(left(j.input, 20000)), lower(%(words)s)) > 0",
    "made_before": "j.created_at < %(made_before)s",
    "made_after": "j.created_at >= %(made_after)s",
    "min_cost_usd": "j.cost_usd >= %(min_cost_usd)s::float8",
}
"""When a job fits a field of a filter, where that is not the same value in the column of its name."""


async def _select(
    database: Database, tenant_id: str, wanted: JobFilter, *, statuses: Collection[JobStatus] | None, **given: Any
) -> Sequence[Row]:
    said = {one.name: getattr(wanted, one.name) for one in fields(wanted) if one.name not in _APART}
    compared = {name: str(one) if isinstance(one, StrEnum) else one for name, one in said.items() if one is not None}
    # Planned for what is given each time: a plan that is kept for all filters would read for the worst of them.
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
    """The jobs that fit, newest first, and below which id others may; None where all were looked at."""

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
    """Return at most `limit` jobs that fit, newest first, older than `below` if given.

    With `roots` those that no other job has made; with `message_flow` turns and tasks alone. It looks at no more than
    `LOOKED_THROUGH` jobs, in parts, and says where it stopped: what no index knows costs the same however long the
    history is.
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
