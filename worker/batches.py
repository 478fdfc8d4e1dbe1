"""Looks after providers' batches while its worker lives: submits them, polls them, stores their results.

One `io` worker at a time owns a batch; another one continues if it dies. No call is paid twice: calls are assigned to
a batch in one commit, the batch is sent after it, and one that may have been sent is looked for first.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from datetime import timedelta

from planq.shared.kernel.deferral import CallStatus
from planq.shared.platform.errors import DatabaseUnavailable, PlanqError, ProviderBatchFailed
from planq.shared.platform.timers import every, woken_by
from planq.shared.subjects.batches.provider_store import ProviderBatches
from planq.shared.subjects.batches.rules import CallResult, ProviderBatch, ProviderBatchStatus
from planq.worker.engine.persist import persist
from planq.worker.models.batch_api import BatchApi

_log = logging.getLogger("planq.batches")

TICK_SECONDS = 60.0
"""Pause between two looks without a wake-up: a sweep finds what is due and calls `ProviderBatchDuty.wake`."""

HOLD = timedelta(minutes=15)
"""Time that other workers leave a batch alone after its worker has died."""

_LONGEST = timedelta(minutes=10)
"""Maximum time of one turn at a batch: shorter than its hold, so no other worker sends it meanwhile."""

_SETTLED_AT_ONCE = 200


class ProviderBatchDuty:
    """The providers' batches of one worker; lives on one event loop. A running batch is polled every `pause`."""

    def __init__(self, store: ProviderBatches, api: BatchApi, pause: timedelta) -> None:
        self._store = store
        self._api = api
        self._pause = pause
        self._is_due = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        pause = woken_by(self._is_due)
        self._running = asyncio.create_task(every(TICK_SECONDS, self.carry_out, name="provider_batches", pause=pause))

    def wake(self) -> None:
        self._is_due.set()

    async def close(self) -> None:
        """Stop; another worker repeats interrupted work when this one's hold is over."""
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running

    async def carry_out(self) -> None:
        """Look after all due batches. Raises `DatabaseUnavailable`."""
        while (held := await self._store.take()) is not None:
            shown = {"provider_batch": str(held.id), "tenant": held.tenant_id, "model": held.model}
            try:
                async with asyncio.timeout(_LONGEST.total_seconds()):
                    await self._look_after(held)
            except DatabaseUnavailable:
                raise
            except ProviderBatchFailed as failure:
                _log.error("provider_batch_failed", extra={**shown, "cause": failure.message})
                await persist(self._store.settle, held, [], CallStatus.FAILED, failure.message)
            except (PlanqError, TimeoutError) as error:
                _log.warning("provider_batch_later", extra={**shown, "cause": str(error)})
                await self._later(held, error=str(error) or "the provider's batch API did not answer in time")

    async def _look_after(self, held: ProviderBatch) -> None:
        if held.status is ProviderBatchStatus.SUBMITTING:
            return await self._submit(held)
        results = await self._api.results(held)
        if results is not None:
            return await self._end(held, results)
        if not held.has_jobs and not held.is_cancelled:
            await self._api.cancel(held)
            return await self._later(held, is_cancelled=True)
        return await self._later(held)

    async def _submit(self, held: ProviderBatch) -> None:
        calls = await persist(self._store.calls, held)
        known = await self._api.find(held, calls) if held.tries > 1 else None
        if known is None and not held.has_jobs:
            await persist(self._store.settle, held, [], CallStatus.CANCELED)
            return
        if known is None:
            known = await self._api.submit(held, calls)
        provider_id, handle = known
        _log.info("provider_batch_sent", extra={"provider_batch": str(held.id), "lines": held.lines})
        await persist(lambda: self._store.keep(held, self._pause, provider_id=provider_id, handle=handle))

    async def _end(self, held: ProviderBatch, results: Sequence[CallResult]) -> None:
        for first in range(0, len(results), _SETTLED_AT_ONCE):
            if not await persist(self._store.settle, held, results[first : first + _SETTLED_AT_ONCE]):
                return
        # The provider has not run a call without a result.
        await persist(self._store.settle, held, [], CallStatus.EXPIRED)
        _log.info("provider_batch_ended", extra={"provider_batch": str(held.id), "lines": held.lines})

    async def _later(self, held: ProviderBatch, *, is_cancelled: bool = False, error: str | None = None) -> None:
        await persist(lambda: self._store.keep(held, self._pause, is_cancelled=is_cancelled, error=error))
