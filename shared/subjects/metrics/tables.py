"""The tables of `/metrics`' counts, of their reporter, and of daily costs."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from sqlalchemy import ARRAY, Column, Date, Integer, Numeric, Text, text
from sqlmodel import Field, SQLModel

from planq.shared.platform.columns import bigint_column, text_column, time_column, xid_column


class Tally(SQLModel, table=True):
    """A growing number by name and labels, from the log or from workers that are gone.

    A histogram's bucket has its upper bound as the last label; `<name>_sum` is the sum.
    """

    __tablename__ = "tallies"
    name: str = text_column(primary_key=True)
    labels: list[str] = Field(sa_column=Column(ARRAY(Text), primary_key=True))
    number: Decimal = Field(sa_column=Column(Numeric, nullable=False))


class DailyCost(SQLModel, table=True):
    """What a tenant's agent used of a model on a day (UTC); retention keeps it.

    `agent` may be empty; `model` is `other` after the first hundred. `unpriced_calls` had no known price.
    """

    __tablename__ = "daily_costs"
    tenant_id: str = text_column(primary_key=True)
    day: date = Field(sa_column=Column(Date, primary_key=True))
    agent: str = text_column(primary_key=True)
    model: str = text_column(primary_key=True)
    calls: int = bigint_column()
    unpriced_calls: int = bigint_column()
    input_tokens: int = bigint_column()
    output_tokens: int = bigint_column()
    cache_read_tokens: int = bigint_column()
    cache_write_tokens: int = bigint_column()
    cost_usd: Decimal = Field(sa_column=Column(Numeric, nullable=False, server_default=text("0")))


class TallyMark(SQLModel, table=True):
    """How far the tallies have counted; one row.

    Events up to (`xid`, `sequence`) and model calls up to `calls`. Ids up to `drawn` belong to transactions below
    `drawn_below`: once these have ended, no such call can be added.
    """

    __tablename__ = "tally_marks"
    id: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    xid: Any = xid_column(default="'0'")
    sequence: int = bigint_column()
    calls: int = bigint_column()
    drawn: int = bigint_column()
    drawn_below: Any = xid_column(default="'0'")


class ReportLease(SQLModel, table=True):
    """The API process that reports the counts, so that sums over processes are right."""

    __tablename__ = "report_leases"
    id: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    held_by: UUID
    held_until: datetime = time_column(nullable=False)
