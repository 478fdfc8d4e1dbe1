"""The tables of agents and skills: documents in versions, none of which ever changes."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlmodel import Field, SQLModel

from planq.shared.platform.columns import json_column, text_column, texts_column, time_column


class AgentRow(SQLModel, table=True):
    """A version of an agent's document, never changed; no new job can name a retired one.
    `skills`, `strategy` and `loop_block` repeat what the document says.
    """

    __tablename__ = "agents"
    tenant_id: str = text_column(primary_key=True)
    name: str = text_column(primary_key=True)
    version: int = Field(primary_key=True)
    document: Any = json_column(nullable=False)
    digest: str = text_column()
    skills: list[str] = texts_column(nullable=False, empty=True)
    strategy: str | None = text_column(nullable=True)
    loop_block: Any = json_column()
    created_at: datetime = time_column(nullable=False, now=True)
    retired_at: datetime | None = time_column()


class SkillRow(SQLModel, table=True):
    """One version of a named instruction text, never changed."""

    __tablename__ = "skills"
    tenant_id: str = text_column(primary_key=True)
    name: str = text_column(primary_key=True)
    version: int = Field(primary_key=True)
    text: str = text_column()
    digest: str = text_column()
    created_at: datetime = time_column(nullable=False, now=True)
    retired_at: datetime | None = time_column()
