"""Providers' batches, for the worker that handles them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from planq.shared.kernel.deferral import CallStatus
from planq.shared.kernel.new_ids import new_id
from planq.shared.platform.database import Database, as_json, record
from planq.shared.platform.errors import capped
from planq.shared.subjects.batches.rules import CallResult, ProviderBatch

_MOST_CALLS = 2_000
"""Maximum calls of a provider's batch: all results are in memory together."""

_MOST_BYTES = 64 * 1024 * 1024
"""Maximum size of their requests."""


class ProviderBatches:
    """Providers' batches of all tenants; `worker_id` owns them. Raises `DatabaseUnavailable`.

    Calls are collected for `collect` before they are sent. A batch that a worker has owned for `hold` is free again.
    """

    def __init__(self, database: Database, worker_id: UUID, collect: timedelta, hold: timedelta) -> None:
        self._database = database
        self._worker_id = worker_id
        self._collect_seconds = collect.total_seconds()
        self._hold_seconds = hold.total_seconds()

    async def take(self) -> ProviderBatch | None:
        """Own a provider's batch that is due, or a new one; None without work."""
        rows = await self._database.call_table(
            "planq_take_provider_batch",
            new_id(),
            self._worker_id,
            self._hold_seconds,
            self._collect_seconds,
            _MOST_CALLS,
            _MOST_BYTES,
        )
        return record(ProviderBatch, rows[0]) if rows else None

    async def calls(self, held: ProviderBatch) -> Sequence[tuple[UUID, str]]:
        rows = await self._database.fetch_all("calls_of_provider_batch", tenant_id=held.tenant_id, id=held.id)
        return [(row["job_id"], row["body"]) for row in rows]

    async def keep(
        self,
        held: ProviderBatch,
        again: timedelta,
        *,
        provider_id: str | None = None,
        handle: str | None = None,
        is_cancelled: bool = False,
        error: str | None = None,
    ) -> bool:
        """Release it until later, and store the provider's id; False if it was lost."""
        given = provider_id, handle, is_cancelled, None if error is None else capped(error), again.total_seconds()
        return bool(await self._database.call("planq_keep_provider_batch", held.id, self._worker_id, *given))

    async def settle(
        self,
        held: ProviderBatch,
        results: Sequence[CallResult],
        rest: CallStatus | None = None,
        message: str | None = None,
    ) -> bool:
        """Store results; with `rest` the batch and its other calls have ended. False if it was lost."""
        items = [{"job": str(one.job), "status": one.status, "result": one.result} for one in results]
        given = as_json(items), rest, None if message is None else capped(message)
        return bool(await self._database.call("planq_settle_calls", held.id, self._worker_id, *given))
