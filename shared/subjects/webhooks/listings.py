"""Selects of endpoints and deliveries."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from sqlalchemy import Select, case, func, select

from planq.shared.platform.selects import named, newest_first, where_given
from planq.shared.subjects.webhooks.tables import DeliveryRow, EndpointRow

d: Any = DeliveryRow
e: Any = EndpointRow

_ENDPOINT = (e.id, e.url, e.events, e.description, e.is_disabled, e.disabled_reason, e.created_at, e.updated_at)
_DELIVERY = (
    *(d.id, d.kind, d.event, d.status, d.endpoint_id, func.coalesce(e.url, d.target).label("url"), d.channel),
    *(d.conversation_id, d.job_id, d.batch_id, d.attempt, d.doubts, d.external_id),
    *(case((d.status == "pending", d.run_at)).label("next_attempt_at"), d.response_status, d.error),
    *(d.created_at, d.finished_at),
)


@named
def list_endpoints(tenant_id: str, below: UUID | None, limit: int) -> Select[Any]:
    return newest_first(select(*_ENDPOINT).where(e.tenant_id == tenant_id), e.id, below, limit)


@named
def get_endpoint(tenant_id: str, id: UUID) -> Select[Any]:
    return select(*_ENDPOINT).where(e.tenant_id == tenant_id, e.id == id)


@named
def list_deliveries(
    tenant_id: str, status: str | None, endpoint_id: UUID | None, job_id: UUID | None, below: UUID | None, limit: int
) -> Select[Any]:
    rows = select(*_DELIVERY).outerjoin(e, e.id == d.endpoint_id).where(d.tenant_id == tenant_id)
    filters = {d.status: status, d.endpoint_id: endpoint_id, d.job_id: job_id}
    return newest_first(where_given(rows, filters), d.id, below, limit)


@named
def get_delivery(tenant_id: str, id: UUID) -> Select[Any]:
    rows = select(*_DELIVERY, d.body).outerjoin(e, e.id == d.endpoint_id)
    return rows.where(d.tenant_id == tenant_id, d.id == id)
