"""The tables of insights and of their offers; none refers to jobs, which retention removes."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ARRAY, BigInteger, Column, Float, ForeignKey, Index, Integer, Uuid, text
from sqlalchemy.dialects.postgresql import TSVECTOR
from sqlmodel import Field, SQLModel

from planq.shared.platform.columns import (
    bigint_column,
    flag_column,
    int_column,
    json_column,
    text_column,
    time_column,
    xid_column,
)


def _float_column() -> Any:
    return Field(default=0.0, sa_column=Column(Float(53), nullable=False, server_default=text("0")))


class InsightRow(SQLModel, table=True):
    """A lesson, `seen` in jobs and contradicted `against`, found by words.

    `digest` identifies it, `failing_call` the calls it warns of. `search` has the tenant as a word, so the index
    alone finds a tenant's. A retired one is not offered, a pinned one never expires. The job `reflection_job_id`
    wrote `reflection` on the lessons of `reflected_job_id`.
    """

    __tablename__ = "insights"
    __table_args__ = (
        Index("uq_insights_digest", "tenant_id", "digest", unique=True),
        Index("ix_insights_listing", "tenant_id", "id"),
        Index("ix_insights_search", "search", postgresql_using="gin"),
        Index(
            "ix_insights_failing_call",
            "tenant_id",
            "failing_call",
            postgresql_where=text("failing_call IS NOT NULL"),
        ),
        Index(
            "ix_insights_reflection_job_id",
            "reflection_job_id",
            unique=True,
            postgresql_where=text("reflection_job_id IS NOT NULL"),
        ),
        Index("ix_insights_expires_at", "expires_at", postgresql_where=text("NOT is_pinned")),
    )
    id: UUID = Field(primary_key=True)
    tenant_id: str = text_column()
    kind: str = text_column()
    digest: str = text_column()
    tool_name: str = text_column("")
    lesson: str = text_column()
    body: Any = json_column(nullable=False)
    failing_call: str | None = text_column(nullable=True)
    reflection: str | None = text_column(nullable=True)
    reflection_job_id: UUID | None = None
    reflected_job_id: UUID | None = None
    search: Any = Field(default=None, sa_column=Column(TSVECTOR, nullable=False))
    seen: int = int_column()
    against: int = int_column()
    calls: int = bigint_column()
    failed_calls: int = bigint_column()
    seconds: float = _float_column()
    is_pinned: bool = flag_column()
    retired_at: datetime | None = time_column()
    first_seen_at: datetime = time_column(nullable=False, now=True)
    last_seen_at: datetime = time_column(nullable=False, now=True)
    expires_at: datetime = time_column(nullable=False)


class InsightSource(SQLModel, table=True):
    """One of the newest twenty jobs that taught an insight, with the words of its input."""

    __tablename__ = "insight_sources"
    __table_args__ = (
        Index(
            "ix_insight_sources_conversation_id",
            "tenant_id",
            "conversation_id",
            postgresql_where=text("conversation_id IS NOT NULL"),
        ),
    )
    insight_id: UUID = Field(sa_column=Column(ForeignKey("insights.id", ondelete="CASCADE"), primary_key=True))
    job_id: UUID = Field(primary_key=True)
    tenant_id: str = text_column()
    conversation_id: UUID | None = None
    round: int | None = None
    step_index: int | None = None
    words: Any = Field(default=None, sa_column=Column(TSVECTOR, nullable=False))
    seen_at: datetime = time_column(nullable=False, now=True)


class InsightOffer(SQLModel, table=True):
    """The insights chosen for a job, its `side`, and its outcome; `origin_id` is the root request."""

    __tablename__ = "insight_offers"
    __table_args__ = (
        Index(
            "ix_insight_offers_conversation_id",
            "tenant_id",
            "conversation_id",
            postgresql_where=text("conversation_id IS NOT NULL"),
        ),
    )
    tenant_id: str = text_column(primary_key=True)
    job_id: UUID = Field(primary_key=True)
    origin_id: UUID = Field(nullable=False)
    conversation_id: UUID | None = None
    side: str = text_column()
    insight_ids: list[UUID] = Field(sa_column=Column(ARRAY(Uuid), nullable=False, server_default=text("'{}'")))
    tokens: int = int_column()
    created_at: datetime = time_column(nullable=False, now=True)
    ended_at: datetime | None = time_column()
    is_success: bool = flag_column()
    failed_calls: int = int_column()
    rounds: int = int_column()
    seconds: float = _float_column()
    cost_usd: float = _float_column()
    used_tokens: int = bigint_column()


class InsightCursor(SQLModel, table=True):
    """The last event whose jobs were learned from; one row."""

    __tablename__ = "insight_cursor"
    id: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    xid: Any = xid_column()
    sequence: int = Field(sa_column=Column(BigInteger, nullable=False))
