"""Requests to running and ended batches."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from planq.shared.platform.database import Database, Row
from planq.shared.platform.errors import NotFound
from planq.shared.subjects.batches.rules import BatchStatus, LineStatus
from planq.shared.subjects.batches.sweep import cancel_lines

_PAGE = 100
"""Lines per read, each with its job: some hundred kilobytes."""

_JOBS_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class BatchControlResult:
    """Whether a request `applied`, and the batch's `status`."""

    applied: bool
    status: BatchStatus
    lines: int = 0

    @property
    def may_begin_lines(self) -> bool:
        return self.status in (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS)


class BatchControl:
    """Controls batches. All methods raise `NotFound`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def cancel(self, tenant_id: str, batch_id: UUID) -> BatchControlResult:
        """Begin nothing more of a batch; `end_jobs` and the sweeper end its jobs."""
        return await self._move("planq_change_batch", batch_id, tenant_id, "cancel")

    async def end_jobs(self, batch_id: UUID) -> AsyncIterator[Sequence[UUID]]:
        """End the jobs of a cancelled batch, and yield those of each commit."""
        while ended := await cancel_lines(self._database, _JOBS_AT_ONCE, batch_id):
            yield ended

    async def pause(self, tenant_id: str, batch_id: UUID) -> BatchControlResult:
        return await self._move("planq_change_batch", batch_id, tenant_id, "pause")

    async def resume(
        self, tenant_id: str, batch_id: UUID, *, budget_usd: float | None = None, budget_tokens: int | None = None
    ) -> BatchControlResult:
        """Continue a paused batch; given limits replace those of its budget."""
        return await self._move("planq_change_batch", batch_id, tenant_id, "resume", budget_usd, budget_tokens)

    async def retry(self, tenant_id: str, batch_id: UUID) -> BatchControlResult:
        """Make jobs again of failed and partial lines, whose number is `lines`."""
        return await self._move("planq_retry_batch", batch_id, tenant_id)

    async def _move(self, function: str, batch_id: UUID, *arguments: Any) -> BatchControlResult:
        value = await self._database.call(function, batch_id, *arguments)
        if not value["found"]:
            raise NotFound(f"there is no batch {batch_id}")
        return BatchControlResult(value["applied"], BatchStatus(value["status"]), value.get("lines", 0))

    async def ended_lines(
        self, tenant_id: str, batch_id: UUID, *, by_completion: bool, status: LineStatus | None
    ) -> AsyncIterator[Sequence[Row]]:
        """Yield pages of ended lines, in the order of the file or of their ends, also later ones."""
        query = "lines_by_completion" if by_completion else "lines_by_input"
        given = {"tenant_id": tenant_id, "id": batch_id, "status": None if status is None else str(status)}
        after = 0
        while rows := await self._database.fetch_all(query, **given, after=after, limit=_PAGE):
            yield rows
            after = rows[-1]["settled" if by_completion else "line"]
