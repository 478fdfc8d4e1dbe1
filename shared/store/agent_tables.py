"""The tables of agents and of what agents keep: documents, messages, budgets, moments, schedules."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Computed,
    ForeignKey,
    Identity,
    Index,
    Integer,
    Numeric,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import TSVECTOR
from sqlmodel import Field, SQLModel

from shared.store.columns import (
    flag_column,
    int_column,
    json_column,
    text_column,
    texts_column,
    time_column,
)

_MOMENT_SEARCH = "setweight(to_tsvector('english', name), 'A') || setweight(to_tsvector('english', summary), 'B')"


class AgentRow(SQLModel, table=True):
    """One version of an agent's document, never changed; a retired one can be named by no new job.

    `skills` are the names of the skills that the document lists, in its order.
    """

    __tablename__ = "agents"
    tenant_id: str = text_column(primary_key=True)
    name: str = text_column(primary_key=True)
    version: int = Field(primary_key=True)
    document: Any = json_column(nullable=False)
    digest: str = text_column()
    skills: list[str] = texts_column(nullable=False, empty=True)
    created_at: datetime = time_column(nullable=False, now=True)
    retired_at: datetime | None = time_column()


class SkillRow(SQLModel, table=True):
    """One version of a named instruction text, never changed."""

    __tablename__ = "skills"
    tenant_id: str = text_column(primary_key=True)
    name: str = text_column(primary_key=True)
    version: int = Field(primary_key=True)
    text: str = text_column()
    digest: str = text_column()
    created_at: datetime = time_column(nullable=False, now=True)
    retired_at: datetime | None = time_column()


class MessageRow(SQLModel, table=True):
    """A message of a job: the call of a chained tool and its response, with one `call_id`."""

    __tablename__ = "messages"
    __table_args__ = (Index("ix_messages_job_id", "job_id", "id"),)
    id: int = Field(sa_column=Column(BigInteger, Identity(always=True), primary_key=True))
    tenant_id: str = text_column()
    job_id: UUID = Field(sa_column=Column(ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False))
    kind: str = text_column()
    call_id: str | None = text_column(nullable=True)
    name: str | None = text_column(nullable=True)
    content: Any = json_column()
    created_at: datetime = time_column(nullable=False, now=True)


class BudgetRow(SQLModel, table=True):
    """The budget of a tree of jobs, by its root: reservations take turns by this row; jobs hold the limits."""

    __tablename__ = "budgets"
    root_job_id: UUID = Field(sa_column=Column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True))
    tenant_id: str = text_column()
    warned_at: datetime | None = time_column()
    created_at: datetime = time_column(nullable=False, now=True)


class BudgetHoldRow(SQLModel, table=True):
    """What a stage (index -1) or a step has reserved of its tree's budget for the call `call_id`.

    It counts while that attempt is carried out, where its job was cut off until `owed_until`; never once the call is
    recorded.
    """

    __tablename__ = "budget_holds"
    __table_args__ = (Index("ix_budget_holds_root_job_id", "root_job_id"),)
    job_id: UUID = Field(sa_column=Column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True))
    index: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False, server_default=text("-1")))
    root_job_id: UUID
    round: int = int_column()
    attempt: int
    call_id: UUID | None = None
    tokens: int = Field(sa_column=Column(BigInteger, nullable=False))
    cost_usd: Decimal = Field(sa_column=Column(Numeric, nullable=False, server_default=text("0")))
    model_calls: int
    steps: int
    owed_until: datetime | None = time_column()


class MomentRow(SQLModel, table=True):
    """Something that happened to a user, as an agent saw it; found again by words and by time."""

    __tablename__ = "moments"
    __table_args__ = (
        Index("ix_moments_search", "search", postgresql_using="gin"),
        Index("ix_moments_user_id", "tenant_id", "user_id", "starts_at"),
    )
    tenant_id: str = text_column(primary_key=True)
    id: UUID = Field(primary_key=True)
    user_id: str = text_column("")
    name: str = text_column()
    summary: str = text_column("")
    body: Any = json_column()
    starts_at: datetime | None = time_column()
    ends_at: datetime | None = time_column()
    tags: list[str] = texts_column(nullable=False, empty=True)
    search: Any = Field(default=None, sa_column=Column(TSVECTOR, Computed(_MOMENT_SEARCH, persisted=True)))
    created_at: datetime = time_column(nullable=False, now=True)


class UserMetadataRow(SQLModel, table=True):
    """What agents keep about a user."""

    __tablename__ = "user_metadata"
    tenant_id: str = text_column(primary_key=True)
    user_id: str = text_column(primary_key=True)
    data: Any = json_column(nullable=False)
    updated_at: datetime = time_column(nullable=False, now=True)


class ScheduleRow(SQLModel, table=True):
    """A job that is made at a time, once or again and again (`cron` in `timezone`); `next_at` is when next.

    `strategy`, `model`, `limits` and `tools` are those of the job that asked for it, or of its tree; `budget` is what
    all its jobs together have left of the tree's, before what `last_job_id` uses; `error` says why it was switched
    off by itself.
    """

    __tablename__ = "schedules"
    __table_args__ = (
        CheckConstraint("next_at IS NOT NULL OR NOT is_active", name="next_at"),
        Index("ix_schedules_next_at", "next_at", postgresql_where=text("is_active")),
        Index("ix_schedules_user_id", "tenant_id", "user_id", postgresql_where=text("is_active")),
        Index("ix_schedules_listing", "tenant_id", "created_at", "id"),
        Index("ix_schedules_created_at", "created_at", postgresql_where=text("NOT is_active")),
    )
    id: UUID = Field(primary_key=True)
    tenant_id: str = text_column()
    user_id: str = text_column("")
    name: str = text_column("")
    agent: str | None = text_column(nullable=True)
    input: str = text_column()
    cron: str | None = Field(default=None, sa_column=Column(Text, nullable=True))
    timezone: str = text_column("UTC")
    strategy: str = text_column("plan")
    model: str | None = text_column(nullable=True)
    limits: Any = json_column()
    budget: Any = json_column()
    tools: list[str] | None = texts_column()
    next_at: datetime | None = time_column()
    last_job_id: UUID | None = None
    error: str | None = text_column(nullable=True)
    is_active: bool = flag_column(default=True)
    created_at: datetime = time_column(nullable=False, now=True)
