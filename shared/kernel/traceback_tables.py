"""The table of where exceptions of tools came from."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from sqlmodel import Field, SQLModel

from planq.shared.platform.columns import text_column, time_column


class TracebackRow(SQLModel, table=True):
    """The traceback of an attempt that an exception of a tool's code ended, for operators; it goes with its job."""

    __tablename__ = "tracebacks"
    job_id: UUID = Field(primary_key=True, foreign_key="jobs.id", ondelete="CASCADE")
    round: int = Field(primary_key=True)
    index: int = Field(primary_key=True)
    attempt: int = Field(primary_key=True)
    text: str = text_column()
    created_at: datetime = time_column(nullable=False, now=True)
