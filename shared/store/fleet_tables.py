"""The tables of worker processes and of the tools that they offer; the rules of `tables.py` hold here too."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlmodel import Field, SQLModel

from shared.store.columns import bigint_column, int_column, json_column, text_column, texts_column, time_column


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


class ToolRow(SQLModel, table=True):
    """A tool's definition as a worker published it."""

    __tablename__ = "tools"
    tenant_id: str = text_column(primary_key=True)
    name: str = text_column(primary_key=True)
    kind: str = text_column("tool")
    definition: Any = json_column(nullable=False)
    published_at: datetime = time_column(nullable=False, now=True)
