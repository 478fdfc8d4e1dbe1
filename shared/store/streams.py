"""Live streams: who follows a job, and what its model is saying, as workers write it (`texts.py`)."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from planq.shared.ports.streams import Epoch, LiveText
from planq.shared.store.database import Database


class StreamStore:
    """Who follows which job, and the texts of the calls that run in these."""

    def __init__(self, database: Database) -> None:
        """`database` is opened and closed by others."""
        self._database = database

    async def watch(self, job_ids: Collection[UUID], process: UUID, seconds: float) -> None:
        """Have the texts of these jobs written for so many seconds from now, what came before too.

        `process` is the API process that follows them; each says so for itself, and again before the time is over.
        Precondition: whoever follows a job may see it. Raises `DatabaseUnavailable`.
        """
        if job_ids:
            await self._database.execute("watch_jobs", job_ids=list(job_ids), process=process, seconds=seconds)

    async def unwatch(self, job_ids: Collection[UUID], process: UUID) -> None:
        """Take back what `watch` said; raises `DatabaseUnavailable`."""
        if job_ids:
            await self._database.execute("unwatch_jobs", job_ids=list(job_ids), process=process)

    async def live_text(self, tenant_id: str, job_id: UUID, below: int) -> LiveText | None:
        """Return the newest text of a job as far as transactions below `below` have written it, from its beginning.

        None where there is none, or the job is not the tenant's. Raises `DatabaseUnavailable`.
        """
        row = await self._database.fetch_one("live_text", tenant_id=tenant_id, job_id=job_id, below=str(below))
        if row is None:
            return None
        return LiveText(Epoch(job_id, row["attempt"], row["try"]), row["stage"], row["text"])
