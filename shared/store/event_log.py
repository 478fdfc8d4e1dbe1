"""The event log as those read it who want each event once, whatever was committed late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from shared.domain.streams.position import Position
from shared.store.database import Database, Row


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """An event of a job; `data` is JSON as it was stored, None where there is none."""

    position: Position
    job_id: UUID
    kind: str
    data: str | None
    created_at: datetime


class EventLog:
    """Reads events in an order in which none comes in before one that was read."""

    def __init__(self, database: Database) -> None:
        """`database` is opened and closed by others."""
        self._database = database

    async def of_job(self, tenant_id: str, job_id: UUID, after: Position, limit: int) -> Sequence[LoggedEvent]:
        """Return the first events of a tenant's job after a position.

        Fewer than `limit` are all that there are for now; what an open transaction holds back comes later. Raises
        `DatabaseUnavailable`.
        """
        rows = await self._database.fetch_all(
            "events_of_job",
            tenant_id=tenant_id,
            job_id=job_id,
            xid=str(after.xid),
            sequence=after.sequence,
            limit=limit,
        )
        return [_event_of(row) for row in rows]

    async def ahead(self) -> int:
        """Return how many events the server will only come to: they are from a backup of another one.

        Nobody is sent these, and the order of all others is wrong beside them. Raises `DatabaseUnavailable`.
        """
        row = await self._database.fetch_one("events_ahead")
        return 0 if row is None else int(row["n"])


def _event_of(row: Row) -> LoggedEvent:
    position = Position(int(row["xid"]), row["sequence"])
    return LoggedEvent(position, row["job_id"], row["kind"], row["data"], row["created_at"])
