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
    """A large value, addressed by its SHA-256; its bytes are `body`, or lie at `location` in the object store.

    `preview` is what is shown where the whole would be too much. `created_at` is when it was last put or referred to.
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


# Read in slices: of what is compressed, each slice would cost reading all that comes before it.
_STORAGE = DDL("ALTER TABLE payloads ALTER COLUMN body SET STORAGE EXTERNAL")  # type: ignore[no-untyped-call]
event.listen(SQLModel.metadata.tables["payloads"], "after_create", _STORAGE)


class PayloadObject(SQLModel, table=True):
    """An object that was, or was to be, written to the object store and has not been removed from it.

    Once it `is_doomed` no payload refers to it any more.
    """

    __tablename__ = "payload_objects"
    __table_args__ = (Index("ix_payload_objects_created_at", "created_at"),)
    location: str = text_column(primary_key=True)
    tenant_id: str = text_column()
    is_doomed: bool = flag_column()
    created_at: datetime = time_column(nullable=False, now=True)


class ArtifactVersion(SQLModel, table=True):
    """A version of a tool's structured product: `body` is the whole wrapper (`artifact_id`, `artifact`, `_metadata`).

    A large one has a `payload_hash` instead, and so has one of bytes, which has a `media_type`. Each output under an
    id is a `version` of it, counted from 1; `details` is the wrapper's `_metadata`. A file that a model has made has
    no step and no tool; its metadata name the model.
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
