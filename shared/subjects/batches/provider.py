"""A provider's batch as a worker holds it, and what came of its calls."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from planq.shared.kernel.deferral import CallStatus
from planq.shared.subjects.batches.states import ProviderBatchStatus


@dataclass(frozen=True, slots=True)
class ProviderBatch:
    """A provider's batch that this worker looks after.

    `tries` counts the worker's own try: above 1, an earlier one may have sent the batch. `has_jobs` says whether any
    unfinished job waits for it.
    """

    id: UUID
    tenant_id: str
    model: str
    scope: str
    status: ProviderBatchStatus
    provider_id: str | None
    handle: str | None
    lines: int
    tries: int
    created_at: datetime
    is_cancelled: bool
    has_jobs: bool


@dataclass(frozen=True, slots=True)
class CallResult:
    """What came of the call of a job, as in `Deferral`."""

    job: UUID
    status: CallStatus
    result: str | None
