"""The tables of large outputs, and of artifacts."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import DDL, Column, ForeignKey, Index, Integer, LargeBinary, event, text
from sqlalchemy.dialects.postgresql import JSON
from sqlmodel import Field, SQLModel

from planq.shared.platform.columns import (
    bigint_column,
    flag_column,
    json_column,
    partial_index,
    text_column,
    time_column,
)


class Payload(SQLModel, table=True):
    """A large value by its SHA-256; its bytes are `body`, or at `location` in the object store.

    `preview` is shown instead of the whole; `created_at` is the last put or reference.
    """

    __tablename__ = "payloads"
    __table_args__ = (
        partial_index("location", "location IS NOT NULL"),
        Index("ix_payloads_created_at", "created_at"),
    )
    hash: bytes = Field(sa_column=Column(LargeBinary, primary_key=True))
    tenant_id: str = text_column(primary_key=True)
    body: bytes | None = Field(default=None, sa_column=Column(LargeBinary, nullable=True))
    location: str | None = text_column(nullable=True)
    size: int = bigint_column()
    preview: Any = json_column()
    created_at: datetime = time_column(nullable=False, now=True)


# Not compressed: it is read in slices, and each would read everything before it.
_STORAGE = DDL("ALTER TABLE payloads ALTER COLUMN body SET STORAGE EXTERNAL")  # type: ignore[no-untyped-call]
event.listen(SQLModel.metadata.tables["payloads"], "after_create", _STORAGE)


class PayloadObject(SQLModel, table=True):
    """An object written, or being written, and not removed; no payload refers to one that `is_doomed`."""

    __tablename__ = "payload_objects"
    __table_args__ = (Index("ix_payload_objects_created_at", "created_at"),)
    location: str = text_column(primary_key=True)
    tenant_id: str = text_column()
    is_doomed: bool = flag_column()
    created_at: datetime = time_column(nullable=False, now=True)


class ArtifactVersion(SQLModel, table=True):
    """A version of an artifact: `body` is the wrapper (`artifact_id`, `artifact`, `_metadata`).

    Large ones, and bytes with a `media_type`, have a `payload_hash` instead. Each output under an id is a `version`
    from 1. `details` is the `_metadata`. A model's file has no step and no tool.
    """

    __tablename__ = "artifacts"
    __table_args__ = (
        Index("ix_artifacts_job_id", "job_id"),
        partial_index("payload_hash", "payload_hash IS NOT NULL"),
    )
    tenant_id: str = text_column(primary_key=True)
    id: str = text_column(primary_key=True)
    version: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False, server_default=text("1")))
    job_id: UUID = Field(sa_column=Column(ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False))
    step_index: int | None = None
    tool_name: str | None = text_column(nullable=True)
    skill_id: str | None = text_column(nullable=True)
    type: str | None = text_column(nullable=True)
    details: Any = Field(default=None, sa_column=Column("metadata", JSON, nullable=True))
    body: Any = json_column()
    payload_hash: bytes | None = Field(default=None, sa_column=Column(LargeBinary, nullable=True))
    media_type: str | None = text_column(nullable=True)
    created_at: datetime = time_column(nullable=False, now=True)
