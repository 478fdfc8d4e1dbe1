"""Live streams: who follows a job, and its model's text."""

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
    """A look at a job's text in transactions below `below`."""

    tenant_id: str
    job_id: UUID
    below: int


class StreamStore:
    """Followers of jobs, and their live texts."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._texts: Batcher[_TextLook, LiveText | None] = Batcher(
            self._live_texts, at_once=_AT_ONCE, max_weight=_TOGETHER
        )

    async def watch(self, job_ids: Collection[UUID], process: UUID, seconds: float) -> None:
        """Have these jobs' texts written for `seconds`, with earlier parts; `process` repeats this in time.

        Precondition: the followers may see the jobs. Raises `DatabaseUnavailable`.
        """
        if job_ids:
            await self._database.execute("watch_jobs", job_ids=list(job_ids), process=process, seconds=seconds)

    async def unwatch(self, job_ids: Collection[UUID], process: UUID) -> None:
        if job_ids:
            await self._database.execute("unwatch_jobs", job_ids=list(job_ids), process=process)

    async def live_text(self, tenant_id: str, job_id: UUID, below: int) -> LiveText | None:
        """Return a job's newest text by transactions below `below`, or None; raises `DatabaseUnavailable`."""
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
