"""The table of questions; the kernel's SQL writes it."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Column, ForeignKey, Index, text
from sqlalchemy.dialects.postgresql import JSON
from sqlmodel import Field, SQLModel

from planq.shared.kernel.states import AskedOf, QuestionKind, QuestionStatus
from planq.shared.platform.columns import (
    enum_column,
    flag_column,
    int_column,
    json_column,
    text_column,
    texts_column,
    time_column,
)


class QuestionRow(SQLModel, table=True):
    """A question of a step to a person, and its answer.

    `ordinal` counts the questions of one call; `details` depend on the `kind`; `state` is returned with the answer.
    `default_content` answers at the step's `wake_at`. A step ignores an answer that `is_spent`. `asked_of` and the
    persons `asked_ids` may answer. `answered_by` is their own word, `answered_key` the HTTP key. `waiting_since` is
    null if asked ahead. `call_sha256` is the digest of an approval's arguments. Secret fields of `is_secret` are
    `***` in the answer and sealed among the tenant's secrets until the step ends.
    """

    __tablename__ = "questions"
    __table_args__ = (
        Index("ix_questions_listing", "tenant_id", "id"),
        Index("ix_questions_message_flow", "tenant_id", "id", postgresql_where=text("in_message_flow")),
        Index("ix_questions_open", "tenant_id", "id", postgresql_where=text("status = 'open'")),
        Index("ix_questions_closed", "tenant_id", "status", "id", postgresql_where=text("status <> 'open'")),
        Index("ix_questions_root_job_id", "root_job_id", "id"),
        Index("ix_questions_asking", "root_job_id", "id", postgresql_where=text("status = 'open'")),
        Index("ix_questions_job_id", "job_id", "step_index"),
    )
    id: UUID = Field(primary_key=True)
    tenant_id: str = text_column()
    job_id: UUID = Field(sa_column=Column(ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False))
    root_job_id: UUID = Field(nullable=False)
    in_message_flow: bool = flag_column()
    round: int = Field(nullable=False)
    step_index: int = Field(nullable=False)
    attempt: int = Field(nullable=False)
    ordinal: int = int_column()
    kind: str = enum_column("question_kind", QuestionKind)
    status: str = enum_column("question_status", QuestionStatus, default="open")
    message: str = text_column()
    schema_: Any = Field(default=None, sa_column=Column("schema", JSON, nullable=True))
    url: str | None = text_column(nullable=True)
    details: Any = json_column()
    default_content: Any = json_column()
    state: Any = json_column()
    asked_of: str = enum_column("asked_of", AskedOf, default="anyone")
    asked_ids: list[str] | None = texts_column()
    content: Any = json_column()
    reason: str | None = text_column(nullable=True)
    answered_by: str | None = text_column(nullable=True)
    answered_key: str | None = text_column(nullable=True)
    answered_key_id: UUID | None = None
    channel: str | None = text_column(nullable=True)
    is_spent: bool = flag_column()
    is_secret: bool = flag_column()
    call_sha256: str | None = text_column(nullable=True)
    waiting_since: datetime | None = time_column()
    created_at: datetime = time_column(nullable=False, now=True)
    answered_at: datetime | None = time_column()
