"""The tables of jobs' records: model calls, messages, tracebacks."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, Column, ForeignKey, Identity, Index, Numeric
from sqlmodel import Field, SQLModel

from planq.shared.platform.columns import flag_column, int_column, json_column, text_column, time_column


class ModelCallRow(SQLModel, table=True):
    """One logical model call; `exchange` is null unless exchanges are kept.

    `call_id` detects a repeat. A call that `is_retried` failed and counts as one with the stage's last call.
    """

    __tablename__ = "model_calls"
    __table_args__ = (Index("ix_model_calls_job_id", "job_id"),)
    id: int = Field(sa_column=Column(BigInteger, Identity(always=True), primary_key=True))
    tenant_id: str = text_column()
    job_id: UUID
    round: int = int_column()
    step_index: int | None = None
    purpose: str = text_column()
    model: str = text_column()
    attempts: int = int_column(1)
    latency_ms: int = int_column()
    input_tokens: int = int_column()
    output_tokens: int = int_column()
    cache_read_tokens: int = int_column()
    cache_write_tokens: int = int_column()
    cost_usd: Decimal | None = Field(default=None, sa_column=Column(Numeric, nullable=True))
    error: Any = json_column()
    exchange: Any = json_column()
    call_id: UUID | None = None
    is_retried: bool = flag_column()
    created_at: datetime = time_column(nullable=False, now=True)


class MessageRow(SQLModel, table=True):
    """The call or response of a chained tool, with one `call_id`; an `is_preview` content is shortened."""

    __tablename__ = "messages"
    __table_args__ = (Index("ix_messages_job_id", "job_id", "id"),)
    id: int = Field(sa_column=Column(BigInteger, Identity(always=True), primary_key=True))
    tenant_id: str = text_column()
    job_id: UUID = Field(sa_column=Column(ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False))
    kind: str = text_column()
    call_id: str | None = text_column(nullable=True)
    name: str | None = text_column(nullable=True)
    content: Any = json_column()
    is_preview: bool = flag_column()
    created_at: datetime = time_column(nullable=False, now=True)


class TracebackRow(SQLModel, table=True):
    """The traceback of a tool's exception that ended an attempt, for operators."""

    __tablename__ = "tracebacks"
    job_id: UUID = Field(primary_key=True, foreign_key="jobs.id", ondelete="CASCADE")
    round: int = Field(primary_key=True)
    index: int = Field(primary_key=True)
    attempt: int = Field(primary_key=True)
    text: str = text_column()
    created_at: datetime = time_column(nullable=False, now=True)
