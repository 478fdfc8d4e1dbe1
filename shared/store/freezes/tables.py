"""The table of loops that froze."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from sqlalchemy import Index
from sqlmodel import Field, SQLModel

from planq.shared.store.columns import text_column, time_column


class FreezeRow(SQLModel, table=True):
    """A loop of a process of planq that froze, and the process was killed; `id` is its worker's, if it is one.

    `kind` is `api`, `io` or `cpu`; `place` says where it stood. The attempt that held it is named where that is
    known, with the `index` -1 for one at a stage.
    """

    __tablename__ = "freezes"
    __table_args__ = (Index("ix_freezes_job_id", "job_id"),)
    id: UUID = Field(primary_key=True)
    process: str = text_column()
    kind: str = text_column()
    place: str = text_column()
    job_id: UUID | None = None
    round: int | None = None
    index: int | None = None
    attempt: int | None = None
    noted_at: datetime = time_column(nullable=False, now=True)
