"""The tables of webhook endpoints, of channels, and of the deliveries to both."""

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
    """Where a tenant is told of `events`: names as `job.completed`, or `job.*`.

    One that `is_disabled` is told nothing, for its `disabled_reason` where planq did that by itself.
    """

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
    """A channel of a tenant whose replies are sent, where its `config` says; others wait to be fetched.

    One that `knows_repeats` can tell by its id a message that comes twice. Who posts its messages proves it by what
    has the digest `secret_hash`. Nothing is sent before `paused_until`. The `problem` is why it cannot be sent to.
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
    """One message to one receiver: an endpoint, at its present address, a callback, at its `target`, or a channel.

    The `body` is the same in every attempt, and so is the `id`, by which the receiver knows a repeat. Of one
    `recipient` only so many are sent at once. A pending one is due at `run_at`; while one is sent that is the time at
    which its worker is not waited for any more. Of its attempts the `earlier` ones do not count: they were made
    before somebody asked for it again, or their receiver asked for a wait. `external_id` is the receiver's own name
    for what was sent.

    To a `channel` goes the message `message_id` of a conversation, or the question `question_id`, whose texts
    stand there alone; of one conversation one after the other. Of its parts so many have arrived; it was sent with
    unknown result `doubts` times.
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
