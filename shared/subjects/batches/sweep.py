"""Lines of batches in the store: they become jobs, and end with them."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from planq.shared.kernel.new_ids import new_ids
from planq.shared.kernel.states import Priority
from planq.shared.kernel.sweep import SweepResult
from planq.shared.kernel.wakes import Wake
from planq.shared.platform.database import Database

_NIL = UUID(int=0)

_AT_ONCE = 200
"""Lines in one commit: it takes some 30 ms, and what else there is to sweep waits no longer."""


async def cancel_lines(database: Database, limit: int, batch_id: UUID | None = None) -> Sequence[UUID] | None:
    """See `LineSweep.cancel`; of one batch where `batch_id` is given."""
    value = await database.call("planq_cancel_lines", batch_id, limit)
    return [UUID(ended) for ended in value["ended"]] if value["applied"] else None


class LineSweep:
    """Makes jobs of the lines of batches, as a `SweepDuty`.

    While batches run, a pass follows soon after the other: what the workers do in that time has to fit into the
    window. Other sweepers find nothing left to do then, and keep their own pace.
    """

    part = "batches"

    def __init__(self, database: Database) -> None:
        self._database = database

    async def cancel(self, limit: int) -> Sequence[UUID] | None:
        """End a part of a cancelled batch; return the jobs that this ended, None where there is no part left."""
        return await cancel_lines(self._database, limit)

    async def admit(self, limit: int) -> Sequence[Wake]:
        """Make jobs of lines that wait, as many as the workers keep up with; return their wake-ups."""
        rows = await self._database.call_table("planq_admit_lines", new_ids(limit, after=_NIL))
        return [
            Wake.plan(
                row["job_id"],
                priority=Priority(row["priority"]),
                name=row["agent_name"],
                tenant=row["tenant_id"],
            )
            for row in rows
        ]

    async def carry_out(self, limit: int) -> SweepResult:
        cancelled = await self.cancel(min(limit, _AT_ONCE))
        wakes = await self.admit(min(limit, _AT_ONCE))
        return SweepResult(len(cancelled or ()), cancelled or (), wakes, goes_on=bool(wakes or cancelled is not None))
