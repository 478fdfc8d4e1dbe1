"""The table of events of jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, Column, Identity, Index
from sqlmodel import Field, SQLModel

from planq.shared.platform.columns import json_column, text_column, time_column, xid_column


class Event(SQLModel, table=True):
    """One event of a job, written in the commit of its change.

    Events are read in the order of (`xid`, `sequence`): sequence numbers are drawn before the commit, so they alone
    may appear late. Of two events the one with the lower `sequence` was written first. The indexes omit it: equal
    entries, those of one commit, take six bytes each.
    """

    __tablename__ = "events"
    __table_args__ = (Index("ix_events_job_id", "job_id", "xid"), Index("ix_events_tenant_id", "tenant_id", "xid"))
    xid: Any = xid_column(primary_key=True)
    sequence: int = Field(sa_column=Column(BigInteger, Identity(always=True), primary_key=True))
    tenant_id: str = text_column()
    job_id: UUID
    kind: str = text_column()
    data: Any = json_column()
    created_at: datetime = time_column(nullable=False, now=True)
