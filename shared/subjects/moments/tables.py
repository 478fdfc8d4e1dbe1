"""The tables of documents and of user data."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Column, Computed, ForeignKey, Index, Integer
from sqlalchemy.dialects.postgresql import TSVECTOR
from sqlmodel import Field, SQLModel

from planq.shared.platform.columns import json_column, text_column, texts_column, time_column

_SEARCH = "setweight(to_tsvector('english', heading), 'A') || setweight(to_tsvector('english', body), 'B')"
_MOMENT_SEARCH = "setweight(to_tsvector('english', name), 'A') || setweight(to_tsvector('english', summary), 'B')"


class Document(SQLModel, table=True):
    """A document loaded into the knowledge base."""

    __tablename__ = "documents"
    __table_args__ = (Index("uq_documents_source", "tenant_id", "source", unique=True),)
    id: UUID = Field(primary_key=True)
    tenant_id: str = text_column()
    source: str = text_column()
    title: str = text_column()
    digest: str = text_column()
    loaded_at: datetime = time_column(nullable=False, now=True)


class PassageRow(SQLModel, table=True):
    """A searchable piece of a document."""

    __tablename__ = "passages"
    __table_args__ = (
        Index("ix_passages_search", "search", postgresql_using="gin"),
        Index("ix_passages_tenant_id", "tenant_id"),
    )
    document_id: UUID = Field(sa_column=Column(ForeignKey("documents.id", ondelete="CASCADE"), primary_key=True))
    position: int = Field(sa_column=Column(Integer, primary_key=True))
    tenant_id: str = text_column()
    heading: str = text_column("")
    body: str = text_column()
    search: Any = Field(default=None, sa_column=Column(TSVECTOR, Computed(_SEARCH, persisted=True)))


class MomentRow(SQLModel, table=True):
    """Something that happened to a user, as an agent saw it; found again by words and by time."""

    __tablename__ = "moments"
    __table_args__ = (
        Index("ix_moments_search", "search", postgresql_using="gin"),
        Index("ix_moments_user_id", "tenant_id", "user_id", "starts_at"),
    )
    tenant_id: str = text_column(primary_key=True)
    id: UUID = Field(primary_key=True)
    user_id: str = text_column("")
    name: str = text_column()
    summary: str = text_column("")
    body: Any = json_column()
    starts_at: datetime | None = time_column()
    ends_at: datetime | None = time_column()
    tags: list[str] = texts_column(nullable=False, empty=True)
    search: Any = Field(default=None, sa_column=Column(TSVECTOR, Computed(_MOMENT_SEARCH, persisted=True)))
    created_at: datetime = time_column(nullable=False, now=True)


class UserMetadataRow(SQLModel, table=True):
    """What agents keep about a user."""

    __tablename__ = "user_metadata"
    tenant_id: str = text_column(primary_key=True)
    user_id: str = text_column(primary_key=True)
    data: Any = json_column(nullable=False)
    updated_at: datetime = time_column(nullable=False, now=True)
