"""The table of job actions."""

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
    text_column,
    time_column,
)
from planq.shared.subjects.jobs.selection import ActionStatus, JobAct

_KEYED = "idempotency_key IS NOT NULL"


class JobActionRow(SQLModel, table=True):
    """A request for all jobs of a filter. The sweep carries it out in the order of their ids.
    `after_job` is the last job visited, and each job moves it in its own commit. Of the matching jobs, `done` were
    changed, `unchanged` needed no change, and `refused` could not be changed; `problems` has the first reasons. The
    process `held_by` works until `held_until`, then any other may go on.
    """

    __tablename__ = "job_actions"
    __table_args__ = (
        Index(
            "uq_job_actions_idempotency_key",
            "tenant_id",
            "idempotency_key",
            unique=True,
            postgresql_where=text(_KEYED),
        ),
        Index("ix_job_actions_listing", "tenant_id", "id"),
        Index("ix_job_actions_running", "id", postgresql_where=text("status = 'running'")),
    )
    id: UUID = Field(primary_key=True)
    tenant_id: str = Field(sa_column=Column(Text, ForeignKey("tenants.id"), nullable=False))
    act: str = enum_column("job_act", JobAct)
    status: str = enum_column("job_action_status", ActionStatus, default="running")
    filter: Any = json_column(nullable=False)
    repeat_unsafe: bool = flag_column()
    after_job: UUID = Field(nullable=False)
    done: int = int_column()
    unchanged: int = int_column()
    refused: int = int_column()
    problems: Any = json_column()
    held_by: UUID | None = None
    held_until: datetime | None = time_column()
    idempotency_key: str | None = text_column(nullable=True)
    request_hash: str | None = text_column(nullable=True)
    created_at: datetime = time_column(nullable=False, now=True)
    finished_at: datetime | None = time_column()
