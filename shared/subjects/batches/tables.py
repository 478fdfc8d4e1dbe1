"""The tables of batches. A line is no job until it is admitted; both outlive the jobs, which retention removes."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, Column, Double, ForeignKey, Index, Integer, Numeric, Text, text
from sqlalchemy.dialects.postgresql import JSON
from sqlmodel import Field, SQLModel

from planq.shared.kernel.deferral import CallStatus
from planq.shared.kernel.states import Priority
from planq.shared.platform.columns import (
    bigint_column,
    enum_column,
    flag_column,
    int_column,
    json_column,
    parts_column,
    parts_index,
    text_column,
    time_column,
)
from planq.shared.subjects.batches.rules import BatchStatus, Discount, LineStatus, PauseReason, ProviderBatchStatus


def _dollars(*, nullable: bool = False) -> Any:
    server_default = None if nullable else text("0")
    return Field(default=None, sa_column=Column(Numeric, nullable=nullable, server_default=server_default))


class BatchRow(SQLModel, table=True):
    """Many requests of one file, under one budget.
    The process `held_by` stores or validates lines until `held_until`, then any other may go on, or removes a batch
    that is still `uploading`. `validated_lines` of `total` were read: `invalid` were refused, `valid` become jobs.
    `admitted` lines became jobs; `completed`, `failed` and `cancelled` count the ended ones, `partial` and
    `incomplete` are among the completed. Of the budget, admitted lines hold `reserved_*` and ended ones have
    `spent_*`. While `paused_at` is set nothing is admitted, for `pause_reason`; after `canary` lines the batch pauses
    itself. With `is_strict` one invalid line fails it. With a `discount` its jobs' calls may wait for the provider's
    batches.
    """

    __tablename__ = "batches"
    __table_args__ = (
        Index(
            "uq_batches_idempotency_key",
            "tenant_id",
            "idempotency_key",
            unique=True,
            postgresql_where=text("idempotency_key IS NOT NULL"),
        ),
        Index("ix_batches_listing", "tenant_id", "id"),
        Index("ix_batches_held_until", "held_until", postgresql_where=text("status IN ('uploading', 'validating')")),
        Index("ix_batches_unfinished", "id", postgresql_where=text("status IN ('in_progress', 'cancelling')")),
        Index("ix_batches_finished_at", "finished_at", postgresql_where=text("finished_at IS NOT NULL")),
    )
    id: UUID = Field(primary_key=True)
    tenant_id: str = Field(sa_column=Column(Text, ForeignKey("tenants.id"), nullable=False))
    status: str = enum_column("batch_status", BatchStatus, default="uploading")
    name: str = text_column("")
    meta: Any = Field(default=None, sa_column=Column("metadata", JSON, nullable=True))
    defaults: Any = json_column()
    priority: str = enum_column("job_priority", Priority, default="bulk")
    is_strict: bool = flag_column()
    canary: int | None = None
    discount: str | None = enum_column("batch_discount", Discount, nullable=True)
    idempotency_key: str | None = text_column(nullable=True)
    request_hash: str | None = text_column(nullable=True)
    callback_url: str | None = text_column(nullable=True)
    total: int = int_column()
    validated_lines: int = int_column()
    invalid: int = int_column()
    valid: int = int_column()
    admitted: int = int_column()
    completed: int = int_column()
    partial: int = int_column()
    incomplete: int = int_column()
    failed: int = int_column()
    cancelled: int = int_column()
    budget_usd: Decimal | None = _dollars(nullable=True)
    budget_tokens: int | None = Field(default=None, sa_column=Column(BigInteger, nullable=True))
    reserved_usd: Decimal = _dollars()
    reserved_tokens: int = bigint_column()
    spent_usd: Decimal = _dollars()
    spent_tokens: int = bigint_column()
    paused_at: datetime | None = time_column()
    pause_reason: str | None = enum_column("batch_pause_reason", PauseReason, nullable=True)
    error: Any = json_column()
    estimate: Any = json_column()
    held_by: UUID | None = None
    held_until: datetime | None = time_column()
    created_at: datetime = time_column(nullable=False, now=True)
    validated_at: datetime | None = time_column()
    started_at: datetime | None = time_column()
    cancelled_at: datetime | None = time_column()
    finished_at: datetime | None = time_column()


class BatchLineRow(SQLModel, table=True):
    """A line of a batch, numbered as in the file; blank lines count but are not stored.
    `raw` is the line until it is validated, `body` then the item for `planq_submit_jobs`, with another `id` each
    time. Of lines with the same `custom_id` only the first has it, the others are invalid. `parts` keeps the payloads
    of the body. `reserved_*` is what the job of a valid line may use, from its budget or an estimate; it counts for
    the batch while the line is `admitted`. `settled` numbers ended lines in the order of their ends.
    """

    __tablename__ = "batch_lines"
    __table_args__ = (
        Index(
            "uq_batch_lines_custom_id",
            "batch_id",
            "custom_id",
            unique=True,
            postgresql_where=text("custom_id IS NOT NULL"),
        ),
        Index("ix_batch_lines_waiting", "batch_id", "line", postgresql_where=text("status = 'valid'")),
        Index("ix_batch_lines_admitted", "batch_id", "line", postgresql_where=text("status = 'admitted'")),
        Index("ix_batch_lines_errors", "batch_id", "line", postgresql_where=text("error IS NOT NULL")),
        Index("ix_batch_lines_settled", "batch_id", "settled", postgresql_where=text("settled IS NOT NULL")),
        parts_index("batch_lines"),
    )
    batch_id: UUID = Field(sa_column=Column(ForeignKey("batches.id", ondelete="CASCADE"), primary_key=True))
    line: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    tenant_id: str = text_column()
    custom_id: str | None = text_column(nullable=True)
    status: str = enum_column("batch_line_status", LineStatus, default="received")
    raw: str | None = text_column(nullable=True)
    body: Any = json_column()
    parts: Any = parts_column()
    job_id: UUID | None = None
    tries: int = int_column()
    error: Any = json_column()
    reserved_usd: Decimal = _dollars()
    reserved_tokens: int = bigint_column()
    cost_usd: Decimal | None = _dollars(nullable=True)
    input_tokens: int = bigint_column()
    output_tokens: int = bigint_column()
    finished_at: datetime | None = time_column()
    settled: int | None = Field(default=None, sa_column=Column(BigInteger, nullable=True))


class ProviderBatchRow(SQLModel, table=True):
    """Deferred calls of one batch, model and `scope` that go to the provider together.
    It is `submitting` until `provider_id` is known; a second try first looks for it at the provider by its id.
    `handle` is pydantic-ai's reference to it. A worker looks at it from `next_look_at` on, and holds it until
    `held_until`. `error` is why it failed as a whole, or why the last look failed.
    """

    __tablename__ = "provider_batches"
    __table_args__ = (
        Index("ix_provider_batches_batch_id", "batch_id"),
        Index("ix_provider_batches_next_look_at", "next_look_at", postgresql_where=text("status <> 'ended'")),
    )
    id: UUID = Field(primary_key=True)
    tenant_id: str = text_column()
    batch_id: UUID = Field(sa_column=Column(ForeignKey("batches.id", ondelete="CASCADE"), nullable=False))
    model: str = text_column()
    scope: str = text_column()
    status: str = enum_column("provider_batch_status", ProviderBatchStatus, default="submitting")
    provider_id: str | None = text_column(nullable=True)
    handle: str | None = text_column(nullable=True)
    lines: int = int_column()
    tries: int = int_column()
    error: str | None = text_column(nullable=True)
    next_look_at: datetime = time_column(nullable=False, now=True)
    held_by: UUID | None = None
    held_until: datetime | None = time_column()
    created_at: datetime = time_column(nullable=False, now=True)
    submitted_at: datetime | None = time_column()
    cancelled_at: datetime | None = time_column()
    ended_at: datetime | None = time_column()


class DeferredCallRow(SQLModel, table=True):
    """A job's model call that waits for a provider's batch.
    It belongs to the job's resume number `resumes`. `body` is kept until the provider has the batch, `result` until
    the job ends. `seconds_left` is the job's remaining time when the wait began.
    """

    __tablename__ = "deferred_calls"
    __table_args__ = (
        Index("ix_deferred_calls_provider_batch_id", "provider_batch_id"),
        Index(
            "ix_deferred_calls_waiting",
            *("batch_id", "model", "scope", "created_at"),
            postgresql_where=text("status = 'waiting'"),
        ),
        Index("ix_deferred_calls_results", "job_id", postgresql_where=text("result IS NOT NULL")),
        Index("ix_deferred_calls_open", "batch_id", postgresql_where=text("status IN ('waiting', 'sent')")),
    )
    job_id: UUID = Field(sa_column=Column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True))
    tenant_id: str = text_column()
    batch_id: UUID
    provider_batch_id: UUID | None = None
    resumes: int = int_column()
    model: str = text_column()
    scope: str = text_column()
    body: str | None = text_column(nullable=True)
    status: str = enum_column("deferred_call_status", CallStatus, default="waiting")
    result: str | None = text_column(nullable=True)
    seconds_left: float = Field(sa_column=Column(Double, nullable=False))
    created_at: datetime = time_column(nullable=False, now=True)
