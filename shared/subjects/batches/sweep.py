"""The sweep makes jobs of batches' lines, and ends them."""

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
"""Maximum lines per commit, some 30 ms: other parts of the sweep wait for it."""


async def cancel_lines(database: Database, limit: int, batch_id: UUID | None = None) -> Sequence[UUID] | None:
    """Do `LineSweep.cancel`, maybe for one batch."""
    value = await database.call("planq_cancel_lines", batch_id, limit)
    return [UUID(ended) for ended in value["ended"]] if value["applied"] else None


class LineSweep:
    """A `SweepDuty` that makes jobs of lines.

    Passes follow each other quickly while batches run, so that the window stays full; other sweepers find nothing to
    do.
    """

    part = "batches"

    def __init__(self, database: Database) -> None:
        self._database = database

    async def cancel(self, limit: int) -> Sequence[UUID] | None:
        """End a part of a cancelled batch; return the ended jobs, None at the end."""
        return await cancel_lines(self._database, limit)

    async def admit(self, limit: int) -> Sequence[Wake]:
        """Make as many jobs as the workers keep up with; return their wake-ups."""
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
