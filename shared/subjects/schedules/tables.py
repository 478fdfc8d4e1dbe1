"""The table of schedules."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import CheckConstraint, Column, Index, Text, text
from sqlmodel import Field, SQLModel

from planq.shared.kernel.states import Priority
from planq.shared.platform.columns import (
    enum_column,
    flag_column,
    json_column,
    text_column,
    texts_column,
    time_column,
)


class ScheduleRow(SQLModel, table=True):
    """A job made once or by `cron` in `timezone`, next at `next_at`.

    Strategy, loop block, model, limits, tools and priority are the asking job's; `budget` is left before the usage of
    `last_job_id`; `error` says why it stopped. Its jobs are turns of the conversation, if any.
    """

    __tablename__ = "schedules"
    __table_args__ = (
        CheckConstraint("next_at IS NOT NULL OR NOT is_active", name="next_at"),
        Index("ix_schedules_next_at", "next_at", postgresql_where=text("is_active")),
        Index("ix_schedules_user_id", "tenant_id", "user_id", postgresql_where=text("is_active")),
        Index("ix_schedules_listing", "tenant_id", "created_at", "id"),
        Index("ix_schedules_created_at", "created_at", postgresql_where=text("NOT is_active")),
        Index(
            "ix_schedules_conversation_id",
            "conversation_id",
            postgresql_where=text("conversation_id IS NOT NULL"),
        ),
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
    priority: str = enum_column("job_priority", Priority, default="interactive")
    loop_block: Any = json_column()
    model: str | None = text_column(nullable=True)
    limits: Any = json_column()
    budget: Any = json_column()
    tools: list[str] | None = texts_column()
    conversation_id: UUID | None = None
    next_at: datetime | None = time_column()
    last_job_id: UUID | None = None
    error: str | None = text_column(nullable=True)
    is_active: bool = flag_column(default=True)
    created_at: datetime = time_column(nullable=False, now=True)
