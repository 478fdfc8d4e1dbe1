"""The tables of tenants: their configuration, the keys that speak for them, their secrets, and their rates."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, Column, ForeignKey, Identity, Index, Integer, LargeBinary, Text, text
from sqlmodel import Field, SQLModel

from planq.shared.platform.columns import (
    bigint_column,
    flag_column,
    json_column,
    text_column,
    texts_column,
    time_column,
)


class TenantRow(SQLModel, table=True):
    """An owner of rows; `config` is a `TenantConfig`, where absent fields mean the defaults."""

    __tablename__ = "tenants"
    __table_args__ = (
        Index("ix_tenants_learning", "id", postgresql_where=text("config->>'insights' IN ('shadow', 'on')")),
    )
    id: str = text_column(primary_key=True)
    name: str = text_column("")
    is_disabled: bool = flag_column()
    config: Any = json_column()
    created_at: datetime = time_column(nullable=False, now=True)
    updated_at: datetime = time_column(nullable=False, now=True)


class ApiKeyRow(SQLModel, table=True):
    """A key that speaks for a tenant: `digest` is the SHA-256 of its text, `prefix` what people know it by.

    `last_used_at` is written at most once a minute. A revoked one stays, so that it is known what it was.
    """

    __tablename__ = "api_keys"
    __table_args__ = (
        Index("uq_api_keys_digest", "digest", unique=True),
        Index("ix_api_keys_listing", "tenant_id", "id"),
    )
    id: UUID = Field(primary_key=True)
    tenant_id: str = Field(sa_column=Column(Text, ForeignKey("tenants.id"), nullable=False))
    name: str = text_column("")
    prefix: str = text_column()
    digest: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
    scopes: list[str] = texts_column(nullable=False)
    expires_at: datetime | None = time_column()
    revoked_at: datetime | None = time_column()
    last_used_at: datetime | None = time_column()
    created_at: datetime = time_column(nullable=False, now=True)


class EndedSessionRow(SQLModel, table=True):
    """A session of the pages that was ended before the time at which it would have ended by itself."""

    __tablename__ = "ended_sessions"
    __table_args__ = (Index("ix_ended_sessions_until", "until"),)
    nonce: bytes = Field(sa_column=Column(LargeBinary, primary_key=True))
    until: datetime = time_column(nullable=False)


class SecretRow(SQLModel, table=True):
    """A tenant's secret, `sealed` under a key of its own that the master key `key_id` has wrapped.

    One that `expires_at` is set for is used only until then, beside the one that has taken its place.
    """

    __tablename__ = "tenant_secrets"
    tenant_id: str = Field(sa_column=Column(Text, ForeignKey("tenants.id"), primary_key=True))
    name: str = text_column(primary_key=True)
    key_id: str = text_column()
    sealed: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
    expires_at: datetime | None = time_column()
    created_at: datetime = time_column(nullable=False, now=True)
    updated_at: datetime = time_column(nullable=False, now=True)


class TenantPlace(SQLModel, table=True):
    """How many places of a kind an API process holds for a tenant; it says so again before `until`.

    Not in the write-ahead log: after a crash of the server each process says within a second what it holds.
    """

    __tablename__ = "tenant_places"
    __table_args__ = {"prefixes": ["UNLOGGED"]}
    tenant_id: str = text_column(primary_key=True)
    kind: str = text_column(primary_key=True)
    process: UUID = Field(primary_key=True)
    held: int = Field(sa_column=Column(Integer, nullable=False))
    until: datetime = time_column(nullable=False)


class StoredBytes(SQLModel, table=True):
    """How many bytes of payloads and artifacts a tenant kept when changes were added up (`planq_stored_bytes`)."""

    __tablename__ = "stored_bytes"
    tenant_id: str = text_column(primary_key=True)
    bytes: int = bigint_column()


class StoredByteChange(SQLModel, table=True):
    """What one statement has added to the bytes that a tenant keeps, or removed from them."""

    __tablename__ = "stored_byte_changes"
    __table_args__ = (Index("ix_stored_byte_changes_tenant_id", "tenant_id"),)
    id: int = Field(sa_column=Column(BigInteger, Identity(always=True), primary_key=True))
    tenant_id: str = text_column()
    bytes: int = bigint_column()


class RateMark(SQLModel, table=True):
    """A message that counts in the windows of its tenant and of a channel (`planq_admit_message`).

    Not in the write-ahead log: what a crash of the server loses is at most a minute's count.
    """

    __tablename__ = "rate_marks"
    __table_args__ = (
        Index("ix_rate_marks_channel", "tenant_id", "channel", "channel_number"),
        {"prefixes": ["UNLOGGED"]},
    )
    tenant_id: str = text_column(primary_key=True)
    number: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    channel: str = text_column()
    channel_number: int = Field(sa_column=Column(BigInteger, nullable=False))
    let_in_at: datetime = time_column(nullable=False)
