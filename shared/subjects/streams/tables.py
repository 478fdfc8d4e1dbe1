"""The tables of live streams. Both are UNLOGGED: after a crash followers get events and the answer only."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Column, Index, Integer
from sqlmodel import Field, SQLModel

from planq.shared.platform.columns import text_column, time_column, xid_column

_UNLOGGED = {"prefixes": ["UNLOGGED"]}


class TextDelta(SQLModel, table=True):
    """A piece of a job's live text from its character `start` on.

    Attempt and `try_number` are the epoch, which only grows; pieces of one epoch have no gaps.
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
    """A job is followed through this API process until `until`."""

    __tablename__ = "watches"
    __table_args__ = _UNLOGGED
    job_id: UUID = Field(primary_key=True)
    process: UUID = Field(primary_key=True)
    until: datetime = time_column(nullable=False)
