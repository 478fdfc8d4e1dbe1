"""The tables of workers: their leases, their tools, the attempts that were lost with one, and the tool catalogue."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import (
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
)
from sqlmodel import Field, SQLModel

from planq.shared.platform.columns import (
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

    It is ended by putting it back to the epoch. Bulk work takes at most `bulk_capacity`; one with `only_priority`
    serves jobs of that one alone. `counts` are totals since
    its start, `[[name, …, number], …]`; `missing` says in sentences what it needs and lacks; `left_out` which
    tools of MCP servers it does not offer; `planners` are those
    that it has installed; `provides` what its own configuration gives it and others may lack
    (`planq.shared.platform.lacking`); `process` says which one it is (`planq.shared.kernel.processes`), if known.
    Its heart beats at least once in `lease_seconds` as long as it lives. One that `has_processes` runs each step in a
    process of its own, which it can kill. One that is `in_quarantine` carries out suspects and nothing else.
    """

    __tablename__ = "workers"
    id: UUID = Field(primary_key=True)
    name: str = text_column()
    lanes: list[str] = texts_column(nullable=False)
    planners: list[str] | None = texts_column()
    provides: list[str] | None = texts_column()
    capacity: int = int_column()
    bulk_capacity: int = int_column()
    has_processes: bool = flag_column()
    version: str = text_column("")
    started_at: datetime = time_column(nullable=False, now=True)
    heartbeat_at: datetime = time_column(nullable=False, now=True)
    lag_ms: int = int_column()
    in_flight: int = int_column()
    late_outcomes: int = bigint_column()
    counts: Any = json_column()
    missing: list[str] | None = texts_column()
    left_out: list[str] | None = texts_column()
    process: str | None = text_column(nullable=True)
    lease_seconds: float = Field(sa_column=Column(Double, nullable=False))
    only_priority: str | None = text_column(nullable=True)
    in_quarantine: bool = flag_column()


class WorkerTool(SQLModel, table=True):
    """A tool that a worker can run: the `digest` of its schemas, and the `version` that its author gave it."""

    __tablename__ = "worker_tools"
    __table_args__ = (Index("ix_worker_tools_name", "name"),)
    worker_id: UUID = Field(sa_column=Column(ForeignKey("workers.id", ondelete="CASCADE"), primary_key=True))
    name: str = text_column(primary_key=True)
    digest: str = text_column()
    version: str = text_column("")


class SuspectRow(SQLModel, table=True):
    """An attempt that was in flight in a lost worker, with `company` in all; `index` is -1 for that of a stage.

    It counts while `attempt` is the newest one there; `losses` of them in a row were lost. Its `group_id` is claimed
    together in quarantine, from `due_at` on; null where it is not. The claim of the one suspect of a job that
    `delays` moves the job's times by what the loss has cost.
    """

    __tablename__ = "suspects"
    job_id: UUID = Field(sa_column=Column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True))
    round: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    index: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    tenant_id: str = text_column()
    attempt: int = int_column()
    lane: str = text_column()
    group_id: UUID | None = Field(default=None)
    company: int = int_column()
    losses: int = int_column(1)
    delays: bool = flag_column()
    noted_at: datetime = time_column(nullable=False, now=True)
    due_at: datetime | None = time_column()


class ToolRow(SQLModel, table=True):
    """A tool's definition as a worker published it, for all tenants; a tenant's configuration may narrow them."""

    __tablename__ = "tools"
    name: str = text_column(primary_key=True)
    definition: Any = json_column(nullable=False)
    published_at: datetime = time_column(nullable=False, now=True)
