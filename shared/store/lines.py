"""Lines of batches in the store: they become jobs, and end with them."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from planq.shared.domain.errors import ErrorRecord, JobDeleted
from planq.shared.domain.jobs.states import Priority
from planq.shared.ports.jobs.wakes import PlanWake, Wake
from planq.shared.store.database import Database, as_json
from planq.shared.store.ids import new_ids

_NIL = UUID(int=0)


async def settle_lines(database: Database, limit: int) -> int:
    """See `SweepStore.settle_lines`."""
    settled: int = await database.call("planq_settle_lines", limit)
    return settled


async def fail_lost_lines(database: Database, limit: int) -> int:
    """Fail admitted lines whose jobs somebody has deleted, at most `limit`; returns how many."""
    error = ErrorRecord.of(JobDeleted("the job of this line was deleted before it had ended; retry the batch"))
    lost: int = await database.call("planq_fail_lost_lines", limit, as_json(error.to_json()))
    return lost


async def cancel_lines(database: Database, limit: int, batch_id: UUID | None = None) -> Sequence[UUID] | None:
    """See `SweepStore.cancel_lines`; of one batch where `batch_id` is given."""
    value = await database.call("planq_cancel_lines", batch_id, limit)
    return [UUID(ended) for ended in value["ended"]] if value["applied"] else None


async def admit_lines(database: Database, limit: int, lease_seconds: float) -> Sequence[Wake]:
    """See `SweepStore.admit_lines`."""
    rows = await database.call_table("planq_admit_lines", new_ids(limit, after=_NIL), lease_seconds)
    return [
        PlanWake(
            row["job_id"],
            priority=Priority(row["priority"]),
            agent=row["agent_name"],
            tenant=row["tenant_id"],
        )
        for row in rows
    ]
