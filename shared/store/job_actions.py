"""Job actions in the store, as those see them who ask for one, and the jobs that a filter selects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from planq.shared.domain.errors import Conflict, NotFound
from planq.shared.domain.jobs.states import JobStatus, Strategy
from planq.shared.domain.overview.selection import JobAct, JobFilter, statuses_for
from planq.shared.store.database import Database, Row, as_json
from planq.shared.store.ids import new_id

COUNTED_AMONG = 5_000
"""So many jobs a count looks at: it says what an action would concern before somebody asks for it."""

KEPT_DAYS = 30
_FORGOTTEN_AT_ONCE = 100
_BEFORE_ALL = UUID(int=0)
_LAST_ID = UUID(int=2**128 - 1)
_WAITING_OR_NOT = (JobStatus.INPUT_REQUIRED, JobStatus.EXECUTING)


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
class Concerned:
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
        row = await self._database.fetch_one("get_action", tenant_id=tenant_id, id=action_id)
        if row is None:
            raise NotFound(f"there is no job action {action_id}")
        return row

    async def page(self, tenant_id: str, *, below: UUID | None, limit: int) -> Sequence[Row]:
        """Return at most `limit` actions, newest first, older than the action `below` if given."""
        return await self._database.fetch_all(
            "list_actions", tenant_id=tenant_id, below=below or _LAST_ID, limit=limit
        )

    async def stop(self, tenant_id: str, action_id: UUID) -> bool:
        """Let an action look at no further job; False where it is over."""
        return await self._database.fetch_one("stop_action", tenant_id=tenant_id, id=action_id) is not None

    async def concerned(self, tenant_id: str, act: JobAct, wanted: JobFilter, now: datetime) -> Concerned:
        """Count the jobs that an action would concern; raises `InvalidRequest` where it can concern none."""
        rows = await selected_jobs(self._database, tenant_id, act, wanted, now, _BEFORE_ALL, COUNTED_AMONG)
        count = sum(is_meant(row, wanted) for row in rows)
        return Concerned(count, or_more=len(rows) == COUNTED_AMONG)

    async def left(self, tenant_id: str, action: Row) -> int:
        """Count the jobs that an action has still to look at and that fit by now, among the next ones."""
        wanted = JobFilter.of_json(action["filter"])
        given = (JobAct(action["act"]), wanted, action["created_at"], action["after_job"], COUNTED_AMONG)
        return sum(is_meant(row, wanted) for row in await selected_jobs(self._database, tenant_id, *given))


async def selected_jobs(
    database: Database, tenant_id: str, act: JobAct, wanted: JobFilter, until: datetime, after: UUID, limit: int
) -> Sequence[Row]:
    """Return the next jobs in the statuses that an act concerns, each with whether all but its metadata fits."""
    shown = wanted.status in _WAITING_OR_NOT
    statuses = _WAITING_OR_NOT if wanted.status is JobStatus.INPUT_REQUIRED else statuses_for(act, wanted.status)
    return await database.fetch_all(
        "select_jobs",
        tenant_id=tenant_id,
        statuses=[str(one) for one in statuses],
        strategies=[str(wanted.strategy)] if wanted.strategy else [str(one) for one in Strategy],
        asking=(wanted.status is JobStatus.INPUT_REQUIRED) if shown else None,
        is_paused={JobAct.PAUSE: False, JobAct.RESUME: True}.get(act),
        has_failures=act is JobAct.RETRY,
        agent=wanted.agent,
        priority=None if wanted.priority is None else str(wanted.priority),
        batch_id=wanted.batch_id,
        words=wanted.words,
        made_before=wanted.made_before,
        made_after=wanted.made_after,
        min_cost_usd=wanted.min_cost_usd,
        with_metadata=bool(wanted.metadata),
        made_until=until,
        after=after,
        limit=limit,
    )


def is_meant(row: Row, wanted: JobFilter) -> bool:
    """Return whether a job that `selected_jobs` has found is meant."""
    return bool(row["fits"]) and wanted.has_metadata(row["metadata"])
