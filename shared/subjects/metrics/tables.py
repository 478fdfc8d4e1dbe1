"""The tables of what `/metrics` counts for the whole installation, of who reports it, and of what each day cost."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from sqlalchemy import ARRAY, Column, Date, Integer, Numeric, Text, text
from sqlmodel import Field, SQLModel

from planq.shared.platform.columns import bigint_column, text_column, time_column, xid_column


class Tally(SQLModel, table=True):
    """A number that only grows, by name and labels: what was read from the log, or counted by workers that are gone.

    A bucket of a histogram is a row with its upper bound as the last label, and `<name>_sum` is what it adds up to.
    """

    __tablename__ = "tallies"
    name: str = text_column(primary_key=True)
    labels: list[str] = Field(sa_column=Column(ARRAY(Text), primary_key=True))
    number: Decimal = Field(sa_column=Column(Numeric, nullable=False))


class DailyCost(SQLModel, table=True):
    """What a tenant's agent used of one model on one day, by UTC; it stays when retention removes the jobs.

    `agent` is empty for jobs without one, `model` is `other` beyond the first hundred. `unpriced_calls` used tokens
    whose price nobody knows.
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
    """How far the tallies have come, in the one row of this table.

    Events are counted up to and with (`xid`, `sequence`), model calls up to and with the id `calls`. Ids up to
    `drawn` were given to transactions below `drawn_below`: once all of these have ended, nobody can add one of them.
    """

    __tablename__ = "tally_marks"
    id: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    xid: Any = xid_column(default="'0'")
    sequence: int = bigint_column()
    calls: int = bigint_column()
    drawn: int = bigint_column()
    drawn_below: Any = xid_column(default="'0'")


class ReportLease(SQLModel, table=True):
    """The API process that reports what counts for all, until another one may: so sums over processes are right."""

    __tablename__ = "report_leases"
    id: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    held_by: UUID
    held_until: datetime = time_column(nullable=False)
