"""The tables of tenants: configurations, API keys, secrets, and rates."""

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
    """A tenant; `config` is a `TenantConfig` without defaults."""

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
    """An API key: `digest` is the SHA-256 of its text, `prefix` is shown.

    `last_used_at` is written at most once a minute. Revoked keys stay.
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
    """A page session that was ended early."""

    __tablename__ = "ended_sessions"
    __table_args__ = (Index("ix_ended_sessions_until", "until"),)
    nonce: bytes = Field(sa_column=Column(LargeBinary, primary_key=True))
    until: datetime = time_column(nullable=False)


class SecretRow(SQLModel, table=True):
    """A tenant's secret, sealed under an own key that the master key `key_id` wraps; maybe until `expires_at`."""

    __tablename__ = "tenant_secrets"
    tenant_id: str = Field(sa_column=Column(Text, ForeignKey("tenants.id"), primary_key=True))
    name: str = text_column(primary_key=True)
    key_id: str = text_column()
    sealed: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
    expires_at: datetime | None = time_column()
    created_at: datetime = time_column(nullable=False, now=True)
    updated_at: datetime = time_column(nullable=False, now=True)


class TenantPlace(SQLModel, table=True):
    """Places of a kind that an API process owns for a tenant until `until`; UNLOGGED, rewritten after a crash."""

    __tablename__ = "tenant_places"
    __table_args__ = {"prefixes": ["UNLOGGED"]}
    tenant_id: str = text_column(primary_key=True)
    kind: str = text_column(primary_key=True)
    process: UUID = Field(primary_key=True)
    held: int = Field(sa_column=Column(Integer, nullable=False))
    until: datetime = time_column(nullable=False)


class StoredBytes(SQLModel, table=True):
    """A tenant's stored bytes when changes were last summed (`planq_stored_bytes`)."""

    __tablename__ = "stored_bytes"
    tenant_id: str = text_column(primary_key=True)
    bytes: int = bigint_column()


class StoredByteChange(SQLModel, table=True):
    """One statement's change of a tenant's stored bytes."""

    __tablename__ = "stored_byte_changes"
    __table_args__ = (Index("ix_stored_byte_changes_tenant_id", "tenant_id"),)
    id: int = Field(sa_column=Column(BigInteger, Identity(always=True), primary_key=True))
    tenant_id: str = text_column()
    bytes: int = bigint_column()


class RateMark(SQLModel, table=True):
    """A message counted in the windows of its tenant and channel; UNLOGGED: a crash loses at most a minute."""

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
