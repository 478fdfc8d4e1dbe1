"""The tables of worker processes and of the tools that they offer; the rules of `tables.py` hold here too."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Column, ForeignKey, Integer
from sqlmodel import Field, SQLModel

from shared.store.columns import (
    bigint_column,
    flag_column,
    int_column,
    json_column,
    text_column,
    texts_column,
    time_column,
)


class Worker(SQLModel, table=True):
    """One worker process; its lease lives as long as `heartbeat_at` is fresh.

    It is ended by putting it back to the epoch. `counts` are totals since its start, `[[name, label, …, number], …]`;
    `process` says which process it is (`shared.domain.processes`), null where it does not tell.
    """

    __tablename__ = "workers"
    id: UUID = Field(primary_key=True)
    name: str = text_column()
    lanes: list[str] = texts_column(nullable=False)
    tools: list[str] = texts_column(nullable=False)
    capacity: int = int_column()
    version: str = text_column("")
    started_at: datetime = time_column(nullable=False, now=True)
    heartbeat_at: datetime = time_column(nullable=False, now=True)
    lag_ms: int = int_column()
    in_flight: int = int_column()
    late_outcomes: int = bigint_column()
    counts: Any = json_column()
    process: str | None = text_column(nullable=True)


class SuspectRow(SQLModel, table=True):
    """An attempt that was in flight in a lost worker, with `company` in all; `index` is -1 for that of a stage.

    It counts while `attempt` is the newest one there. Its `group_id` runs again together from `due_at` on, null until
    the attempt is taken back, and not before `taken_until`, when a process was started for it. The claim of the one
    suspect of a job that `delays` moves the job's times by what the loss has cost.
    """

    __tablename__ = "suspects"
    job_id: UUID = Field(sa_column=Column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True))
    round: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    index: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    tenant_id: str = text_column()
    attempt: int = int_column()
    lane: str = text_column()
    group_id: UUID
    company: int = int_column()
    delays: bool = flag_column()
    noted_at: datetime = time_column(nullable=False, now=True)
    due_at: datetime | None = time_column()
    taken_until: datetime | None = time_column()


class ToolRow(SQLModel, table=True):
    """A tool's definition as a worker published it."""

    __tablename__ = "tools"
    tenant_id: str = text_column(primary_key=True)
    name: str = text_column(primary_key=True)
    definition: Any = json_column(nullable=False)
    published_at: datetime = time_column(nullable=False, now=True)
