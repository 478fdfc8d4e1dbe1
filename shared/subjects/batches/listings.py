"""Selects of batches and their lines."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from sqlalchemy import Select, func, select
from sqlalchemy.dialects.postgresql import aggregate_order_by

from planq.shared.platform.selects import named, newest_first, where_given
from planq.shared.subjects.batches.tables import BatchLineRow, BatchRow, DeferredCallRow, ProviderBatchRow

b: Any = BatchRow
line: Any = BatchLineRow
call: Any = DeferredCallRow
sent: Any = ProviderBatchRow

_RUNNING = (
    select(func.count()).where(line.batch_id == b.id, line.status == "admitted").scalar_subquery().label("running")
)
"""Lines of a batch that are unfinished jobs."""

_DEFERRED = (
    select(func.count())
    .where(call.batch_id == b.id, call.tenant_id == b.tenant_id, call.status.in_(["waiting", "sent"]))
    .scalar_subquery()
    .label("deferred")
)
"""Those of them that wait for a provider's batch."""

_SENT = (
    *("id", sent.id, "provider_id", sent.provider_id, "model", sent.model, "status", sent.status),
    *("lines", sent.lines, "error", sent.error, "created_at", func.planq_shown_time(sent.created_at)),
    *("submitted_at", func.planq_shown_time(sent.submitted_at), "ended_at", func.planq_shown_time(sent.ended_at)),
)
_PROVIDER_BATCHES = (
    select(func.json_agg(aggregate_order_by(func.json_build_object(*_SENT), sent.id)))
    .where(sent.batch_id == b.id, sent.tenant_id == b.tenant_id)
    .scalar_subquery()
    .label("provider_batches")
)

_LINE = (line.line, line.custom_id, line.status, line.job_id, line.error)


@named
def get_batch(tenant_id: str, id: UUID) -> Select[Any]:
    return select(b, _RUNNING, _DEFERRED, _PROVIDER_BATCHES).where(b.tenant_id == tenant_id, b.id == id)


@named
def list_batches(tenant_id: str, status: str | None, below: UUID | None, limit: int) -> Select[Any]:
    rows = select(b, _RUNNING, _DEFERRED, _PROVIDER_BATCHES).where(b.tenant_id == tenant_id)
    return newest_first(where_given(rows, {b.status: status}), b.id, below, limit)


@named
def batch_errors(tenant_id: str, id: UUID, after: int, limit: int) -> Select[Any]:
    rows = select(*_LINE).where(line.batch_id == id, line.tenant_id == tenant_id, line.error.is_not(None))
    return rows.where(line.line > after).order_by(line.line).limit(limit)


def _ended(tenant_id: str, id: UUID, status: str | None) -> Select[Any]:
    rows = select(*_LINE, line.settled).where(line.batch_id == id, line.tenant_id == tenant_id)
    return where_given(rows.where(line.status.in_(["completed", "failed", "cancelled"])), {line.status: status})


@named
def lines_by_input(tenant_id: str, id: UUID, status: str | None, after: int, limit: int) -> Select[Any]:
    return _ended(tenant_id, id, status).where(line.line > after).order_by(line.line).limit(limit)


@named
def lines_by_completion(tenant_id: str, id: UUID, status: str | None, after: int, limit: int) -> Select[Any]:
    rows = _ended(tenant_id, id, status).where(line.settled.is_not(None), line.settled > after)
    return rows.order_by(line.settled).limit(limit)
