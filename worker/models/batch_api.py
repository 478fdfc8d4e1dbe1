"""The batches of providers, asked for by the clients and keys of a gateway; loads an SDK at the first call."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from planq.shared.platform.errors import PlanqError, ProviderBatchFailed, Transient, capped
from planq.shared.platform.redact import without_key
from planq.shared.subjects.batches.rules import CallResult, ProviderBatch
from planq.worker.models.gateway import ModelGateway

_LASTING = frozenset({400, 404, 405, 410, 413, 415, 422})
"""Answers by which a provider says that it has not taken a request, and will not take it later."""


class BatchApi:
    """The batches of all providers that have them. A provider's words are in every error.

    All methods raise `ProviderBatchFailed` where a provider refuses for good, and another `PlanqError` where it may
    work later, or another worker may be able to.
    """

    def __init__(self, gateway: ModelGateway) -> None:
        self._gateway = gateway

    async def submit(self, held: ProviderBatch, calls: Sequence[tuple[UUID, str]]) -> tuple[str, str]:
        """Send a batch; return the provider's id of it and its handle."""
        model, api, secret = await self._of(held)
        with _translating(secret):
            batch = await api.submit(model, held, calls)
        return batch.id, api.handle_of(batch)

    async def find(self, held: ProviderBatch, calls: Sequence[tuple[UUID, str]]) -> tuple[str, str] | None:
        """Return id and handle of a batch that an earlier try has sent, None where the provider has none."""
        model, api, secret = await self._of(held)
        with _translating(secret):
            batch = await api.find(model, held, calls)
        return None if batch is None else (batch.id, api.handle_of(batch))

    async def results(self, held: ProviderBatch) -> Sequence[CallResult] | None:
        """Return what came of the calls of a batch, None while it runs."""
        model, api, secret = await self._of(held)
        with _translating(secret):
            batch = await model.batch_status(api.batch_of(held.handle))
            found: Sequence[CallResult] | None = (
                await api.results_of(model, batch) if batch.status == "ended" else None
            )
        return found

    async def cancel(self, held: ProviderBatch) -> None:
        model, api, secret = await self._of(held)
        with _translating(secret):
            await model.batch_cancel(api.batch_of(held.handle))

    async def _of(self, held: ProviderBatch) -> tuple[Any, Any, str]:
        model, secret = await self._gateway.batch_model(held.tenant_id, held.model)
        return model, importlib.import_module("planq.worker.models.provider_batches"), secret


@contextmanager
def _translating(secret: str) -> Iterator[None]:
    """Turn what an SDK raises into an error of ours, without the API key."""
    try:
        yield
    except PlanqError:
        raise
    except Exception as error:
        words = capped(without_key(str(error) or type(error).__name__, secret), 500)
        if getattr(error, "status_code", None) in _LASTING or type(error).__name__ == "UserError":
            raise ProviderBatchFailed(f"the provider refused the batch: {words}") from error
        raise Transient(f"the provider's batch API did not answer: {words}") from error
