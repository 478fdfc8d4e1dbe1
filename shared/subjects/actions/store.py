"""Job actions for those who request them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from pydantic import TypeAdapter

from planq.shared.kernel.new_ids import new_id
from planq.shared.platform.database import Database, Row, as_json
from planq.shared.platform.errors import Conflict
from planq.shared.subjects.jobs.find import is_meant, selected_jobs
from planq.shared.subjects.jobs.selection import JobAct, JobFilter, statuses_for

COUNTED_AMONG = 5_000
"""Maximum jobs read to count what an action would change."""

FILTERS = TypeAdapter(JobFilter)
"""Converts stored filters; ignores unknown fields."""

KEPT_DAYS = 30
_FORGOTTEN_AT_ONCE = 100
_BEFORE_ALL = UUID(int=0)
_LAST_ID = UUID(int=2**128 - 1)


@dataclass(frozen=True, slots=True)
class NewAction:
    """A checked request."""

    tenant_id: str
    act: JobAct
    filter: JobFilter
    repeat_unsafe: bool = False
    idempotency_key: str | None = None
    request_hash: str | None = None


@dataclass(frozen=True, slots=True)
class AffectedJobs:
    """How many jobs an action would change, and whether there may be more."""

    count: int
    or_more: bool


class JobActions:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(self, new: NewAction) -> tuple[UUID, bool]:
        """Store an action; return its id, and whether the same request came before.

        Raises `Conflict` for another request with the idempotency key, `InvalidRequest` for an impossible status.
        """
        statuses_for(new.act, new.filter.status)
        found = new_id()
        row = await self._database.fetch_one(
            "begin_action",
            id=found,
            tenant_id=new.tenant_id,
            act=str(new.act),
            filter=as_json(FILTERS.dump_python(new.filter, mode="json", exclude_none=True)),
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
        """Return at most `limit` actions, newest first, older than `below`."""
        return await self._database.fetch_all(
            "list_actions", tenant_id=tenant_id, below=below or _LAST_ID, limit=limit
        )

    async def stop(self, tenant_id: str, action_id: UUID) -> bool:
        """Stop an action; False if it is over."""
        return await self._database.fetch_one("stop_action", tenant_id=tenant_id, id=action_id) is not None

    async def concerned(self, tenant_id: str, act: JobAct, wanted: JobFilter, now: datetime) -> AffectedJobs:
        """Count the jobs that an action would change; raises `InvalidRequest`."""
        rows = await selected_jobs(self._database, tenant_id, act, wanted, now, _BEFORE_ALL, COUNTED_AMONG)
        count = sum(is_meant(row, wanted) for row in rows)
        return AffectedJobs(count, or_more=len(rows) == COUNTED_AMONG)

    async def left(self, tenant_id: str, action: Row) -> int:
        """Count the jobs that an action still has to change, among the next ones."""
        wanted = FILTERS.validate_python(action["filter"])
        given = (JobAct(action["act"]), wanted, action["created_at"], action["after_job"], COUNTED_AMONG)
        return sum(is_meant(row, wanted) for row in await selected_jobs(self._database, tenant_id, *given))
