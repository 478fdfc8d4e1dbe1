"""The table of events: what happens to jobs, for whoever follows them, and for whoever looks back."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, Column, Identity, Index
from sqlmodel import Field, SQLModel

from planq.shared.platform.columns import json_column, text_column, time_column, xid_column


class Event(SQLModel, table=True):
    """One thing that happened to a job, appended in the commit of the change that it reports.

    Events are read in the order of (`xid`, `sequence`): numbers of a sequence are drawn before the commit, so one may
    become visible after a later one (`log.py`). Of two events the one with the lower `sequence` was written
    first.

    The indexes leave the `sequence` out: entries that are equal then, those of one commit, take six bytes each. So
    the order of a tenant costs less than the sequence in that of a job did.
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
