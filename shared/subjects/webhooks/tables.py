"""The tables of webhook endpoints, channels, and deliveries."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Column, ForeignKey, Index, Text, text
from sqlmodel import Field, SQLModel

from planq.shared.platform.columns import (
    enum_column,
    flag_column,
    int_column,
    json_column,
    partial_index,
    text_column,
    texts_column,
    time_column,
)
from planq.shared.subjects.webhooks.rules import DeliveryKind, DeliveryStatus

_UNFINISHED = "status IN ('pending', 'sending')"
_NOT_SENT = "status IN ('uncertain', 'failed')"


class EndpointRow(SQLModel, table=True):
    """A receiver of a tenant's `events` (`job.completed`, `job.*`); `disabled_reason` is planq's."""

    __tablename__ = "endpoints"
    __table_args__ = (Index("ix_endpoints_listing", "tenant_id", "id"),)
    id: UUID = Field(primary_key=True)
    tenant_id: str = Field(sa_column=Column(Text, ForeignKey("tenants.id"), nullable=False))
    url: str = text_column()
    events: list[str] = texts_column(nullable=False)
    description: str = text_column("")
    is_disabled: bool = flag_column()
    disabled_reason: str | None = text_column(nullable=True)
    created_at: datetime = time_column(nullable=False, now=True)
    updated_at: datetime = time_column(nullable=False, now=True)


class ChannelRow(SQLModel, table=True):
    """A tenant's channel with sent replies, by `config`; other channels' replies are fetched.

    A receiver that `knows_repeats` detects them by id. Inbound posts have a secret with the digest `secret_hash`.
    Nothing is sent before `paused_until`, or with a `problem`.
    """

    __tablename__ = "channels"
    tenant_id: str = Field(sa_column=Column(Text, ForeignKey("tenants.id"), primary_key=True))
    name: str = text_column(primary_key=True)
    kind: str = text_column()
    config: Any = json_column(nullable=False)
    knows_repeats: bool = flag_column()
    secret_hash: str | None = text_column(nullable=True)
    paused_until: datetime | None = time_column()
    problem: str | None = text_column(nullable=True)
    polled_by: UUID | None = None
    polled_until: datetime | None = time_column()
    created_at: datetime = time_column(nullable=False, now=True)
    updated_at: datetime = time_column(nullable=False, now=True)


class DeliveryRow(SQLModel, table=True):
    """One message to an endpoint, a callback (`target`), or a channel.

    `body` and `id`, which detects repeats, never change. Each `recipient` has limited concurrency. `run_at` is when
    it is due, or, while it is sent, when its worker is given up. The `earlier` attempts do not count: before a
    redelivery, or the receiver asked for a wait. `external_id` is the receiver's id.

    A `channel` gets the message `message_id` or question `question_id`, in order per conversation; `parts` have
    arrived, and it was sent with unknown result `doubts` times.
    """

    __tablename__ = "deliveries"
    __table_args__ = (
        Index("ix_deliveries_listing", "tenant_id", "id"),
        Index("ix_deliveries_not_sent", "tenant_id", "status", "id", postgresql_where=text(_NOT_SENT)),
        partial_index("run_at", _UNFINISHED),
        Index("ix_deliveries_order", "conversation_id", "created_at", "id", postgresql_where=text(_UNFINISHED)),
        partial_index("worker_id", "status = 'sending'"),
        partial_index("job_id", "job_id IS NOT NULL"),
        Index("ix_deliveries_endpoint_id", "endpoint_id"),
        partial_index("finished_at", "finished_at IS NOT NULL"),
    )
    id: UUID = Field(primary_key=True)
    tenant_id: str = Field(sa_column=Column(Text, ForeignKey("tenants.id"), nullable=False))
    kind: str = enum_column("delivery_kind", DeliveryKind, default="webhook")
    endpoint_id: UUID | None = Field(
        default=None, sa_column=Column(ForeignKey("endpoints.id", ondelete="CASCADE"), nullable=True)
    )
    target: str | None = text_column(nullable=True)
    channel: str | None = text_column(nullable=True)
    conversation_id: UUID | None = None
    message_id: UUID | None = None
    question_id: UUID | None = None
    recipient: str = text_column()
    job_id: UUID | None = None
    batch_id: UUID | None = None
    event: str = text_column()
    body: str = text_column()
    status: str = enum_column("delivery_status", DeliveryStatus, default="pending")
    attempt: int = int_column()
    earlier: int = int_column()
    knows_repeats: bool = flag_column(default=True)
    parts: int = int_column()
    doubts: int = int_column()
    run_at: datetime = time_column(nullable=False, now=True)
    worker_id: UUID | None = None
    external_id: str | None = text_column(nullable=True)
    response_status: int | None = None
    error: Any = json_column()
    created_at: datetime = time_column(nullable=False, now=True)
    finished_at: datetime | None = time_column()
