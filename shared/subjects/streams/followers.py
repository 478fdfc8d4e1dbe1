"""Live streams: who follows a job, and what its model is saying, as workers write it (`store.py`)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple
from uuid import UUID

from planq.shared.platform.batching import Batcher
from planq.shared.platform.database import Database
from planq.shared.subjects.streams.contract import Epoch, LiveText

_TOGETHER, _AT_ONCE = 32, 2
"""Jobs of one statement, by then its own cost no longer counts; and statements under way."""


class _TextLook(NamedTuple):
    """A look at what the model of a tenant's job has said in transactions below `below`."""

    tenant_id: str
    job_id: UUID
    below: int


class StreamStore:
    """Who follows which job, and the texts of the calls that run in these."""

    def __init__(self, database: Database) -> None:
        """`database` is opened and closed by others."""
        self._database = database
        self._texts: Batcher[_TextLook, LiveText | None] = Batcher(
            self._live_texts, at_once=_AT_ONCE, max_weight=_TOGETHER
        )

    async def watch(self, job_ids: Collection[UUID], process: UUID, seconds: float) -> None:
        """Have the texts of these jobs written for so many seconds from now, what came before too.

        `process` is the API process that follows them; each says so for itself, and again before the time is over.
        Precondition: whoever follows a job may see it. Raises `DatabaseUnavailable`.
        """
        if job_ids:
            await self._database.execute("watch_jobs", job_ids=list(job_ids), process=process, seconds=seconds)

    async def unwatch(self, job_ids: Collection[UUID], process: UUID) -> None:
        if job_ids:
            await self._database.execute("unwatch_jobs", job_ids=list(job_ids), process=process)

    async def live_text(self, tenant_id: str, job_id: UUID, below: int) -> LiveText | None:
        """Return the newest text of a job as far as transactions below `below` have written it, from its beginning.

        None where there is none, or the job is not the tenant's. Raises `DatabaseUnavailable`.
        """
        return await self._texts.do(_TextLook(tenant_id, job_id, below))

    async def _live_texts(self, looks: Sequence[_TextLook]) -> Sequence[LiveText | None]:
        rows = await self._database.fetch_all(
            "live_texts",
            job_ids=[look.job_id for look in looks],
            tenant_ids=[look.tenant_id for look in looks],
            belows=[str(look.below) for look in looks],
        )
        found: list[LiveText | None] = [None for _ in looks]
        for row in rows:
            place = row["n"] - 1
            epoch = Epoch(looks[place].job_id, row["attempt"], row["try"])
            found[place] = LiveText(epoch, row["stage"], row["text"])
        return found
