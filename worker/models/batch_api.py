"""The batch APIs of providers, called with the clients and keys of a gateway; loads an SDK at the first call."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from planq.shared.platform.errors import PlanqError, ProviderBatchFailed, Transient, capped
from planq.shared.platform.redact import without_key
from planq.shared.subjects.batches.rules import CallResult, ProviderBatch
from planq.worker.models.gateway import ModelGateway

_LASTING = frozenset({400, 404, 405, 410, 413, 415, 422})
"""HTTP statuses by which a provider refuses a request for good."""


class BatchApi:
    """The batches of all providers; raises `ProviderBatchFailed` for a final refusal, else another error."""

    def __init__(self, gateway: ModelGateway) -> None:
        self._gateway = gateway

    async def submit(self, held: ProviderBatch, calls: Sequence[tuple[UUID, str]]) -> tuple[str, str]:
        """Send a batch; return the provider's id and handle of it."""
        async with self._provider(held) as (model, api):
            batch = await api.submit(model, held, calls)
            return batch.id, api.handle_of(batch)

    async def find(self, held: ProviderBatch, calls: Sequence[tuple[UUID, str]]) -> tuple[str, str] | None:
        """Return id and handle of a batch that an earlier try has sent, None if the provider has none."""
        async with self._provider(held) as (model, api):
            batch = await api.find(model, held, calls)
            return None if batch is None else (batch.id, api.handle_of(batch))

    async def results(self, held: ProviderBatch) -> Sequence[CallResult] | None:
        """Return the results of a batch's calls, None while it runs."""
        async with self._provider(held) as (model, api):
            batch = await model.batch_status(api.batch_of(held.handle))
            if batch.status != "ended":
                return None
            found: Sequence[CallResult] = await api.results_of(model, batch)
            return found

    async def cancel(self, held: ProviderBatch) -> None:
        async with self._provider(held) as (model, api):
            await model.batch_cancel(api.batch_of(held.handle))

    @asynccontextmanager
    async def _provider(self, held: ProviderBatch) -> AsyncIterator[tuple[Any, Any]]:
        """Yield the model and the functions of its batch API; an SDK's errors become ours, without the API key."""
        model, secret = await self._gateway.batch_model(held.tenant_id, held.model)
        try:
            yield model, importlib.import_module("planq.worker.models.provider_batches")
        except PlanqError:
            raise
        except Exception as error:
            words = capped(without_key(str(error) or type(error).__name__, secret), 500)
            if getattr(error, "status_code", None) in _LASTING or type(error).__name__ == "UserError":
                raise ProviderBatchFailed(f"the provider refused the batch: {words}") from error
            raise Transient(f"the provider's batch API did not answer: {words}") from error
