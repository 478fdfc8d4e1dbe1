"""The tables of live streams: what models are saying, and who wants to know.

Neither is in the write-ahead log: a crash of the server empties them. Then whoever watches gets the events and the
answer all the same, and the text of the next call.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Column, Index, Integer
from sqlmodel import Field, SQLModel

from planq.shared.platform.columns import text_column, time_column, xid_column

_UNLOGGED = {"prefixes": ["UNLOGGED"]}


class TextDelta(SQLModel, table=True):
    """A piece of what a model says in a job, from its character `start` on, written while it is being said.

    Attempt and `try_number` together are the epoch of a text, and in a job they only grow. Pieces of one epoch follow
    one another without a gap; a newer epoch takes the place of the older ones, and the job's answer of all.
    """

    __tablename__ = "text_deltas"
    __table_args__ = (Index("ix_text_deltas_xid", "xid"), _UNLOGGED)
    job_id: UUID = Field(primary_key=True)
    attempt: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    try_number: int = Field(sa_column=Column("try", Integer, primary_key=True, autoincrement=False))
    start: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    tenant_id: str = text_column()
    stage: str = text_column()
    text: str = text_column()
    xid: Any = xid_column()
    created_at: datetime = time_column(nullable=False, now=True)


class Watch(SQLModel, table=True):
    """Somebody follows a job through this API process, which says so again before `until`."""

    __tablename__ = "watches"
    __table_args__ = _UNLOGGED
    job_id: UUID = Field(primary_key=True)
    process: UUID = Field(primary_key=True)
    until: datetime = time_column(nullable=False)
