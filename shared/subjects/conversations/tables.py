"""The tables of conversations, which do not depend on jobs: retention removes these first."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, Column, ForeignKey, Index, Numeric, Text, text
from sqlalchemy.dialects.postgresql import JSON
from sqlmodel import Field, SQLModel

from planq.shared.agentic.turns.messages import Direction, MessageKind, MessageStatus, Policy
from planq.shared.platform.columns import (
    bigint_column,
    enum_column,
    flag_column,
    int_column,
    json_column,
    text_column,
    time_column,
)


class ConversationRow(SQLModel, table=True):
    """A thread of a tenant's channel, and its usage.

    `active_job_id` is the only begun and unfinished job; others wait until it is settled. `last_sequence` numbers
    messages, `last_turn` turns in the order of their begin. `policy` null: the tenant's. A conversation begun without
    a thread has its id as `thread`, and is found by `first_source_id`. `missed_question_id` is what the last message
    did not answer. Its `agent` has a kept version, or the newest with `follows_agent`.
    """

    __tablename__ = "conversations"
    __table_args__ = (
        Index("uq_conversations_thread", "tenant_id", "channel", "thread", unique=True),
        Index(
            "uq_conversations_first_source_id",
            "tenant_id",
            "channel",
            "first_source_id",
            unique=True,
            postgresql_where=text("first_source_id IS NOT NULL"),
        ),
        Index("ix_conversations_listing", "tenant_id", "id"),
    )
    id: UUID = Field(primary_key=True)
    tenant_id: str = Field(sa_column=Column(Text, ForeignKey("tenants.id"), nullable=False))
    channel: str = text_column()
    thread: str = text_column()
    first_source_id: str | None = text_column(nullable=True)
    policy: str | None = enum_column("conversation_policy", Policy, nullable=True)
    is_closed: bool = flag_column()
    agent: str | None = text_column(nullable=True)
    follows_agent: bool = flag_column()
    active_job_id: UUID | None = None
    missed_question_id: UUID | None = None
    last_sequence: int = bigint_column()
    last_turn: int = int_column()
    messages_in: int = bigint_column()
    messages_out: int = bigint_column()
    input_tokens: int = bigint_column()
    output_tokens: int = bigint_column()
    cost_usd: Decimal | None = Field(default=None, sa_column=Column(Numeric, nullable=True))
    last_inbound_at: datetime | None = time_column()
    last_outbound_at: datetime | None = time_column()
    created_at: datetime = time_column(nullable=False, now=True)


class ConversationAgentRow(SQLModel, table=True):
    """The version of an agent that a conversation keeps, from the agent's first turn in it."""

    __tablename__ = "conversation_agents"
    __table_args__ = (Index("ix_conversation_agents_version", "tenant_id", "agent", "version"),)
    conversation_id: UUID = Field(
        sa_column=Column(ForeignKey("conversations.id", ondelete="CASCADE"), primary_key=True)
    )
    agent: str = text_column(primary_key=True)
    tenant_id: str = text_column()
    version: int


class ConversationMessageRow(SQLModel, table=True):
    """One row of a conversation in order: a message, a tool's call, or its response.

    `source_id` is the channel's id, unique per conversation; `idempotency_key` and `request_hash` are the request's.
    A turn without an answer has an empty outbound message with the reason in its metadata. Rows of a `turn` share its
    number; an inbound one has none while its job is held or it merges in a `round` of the running job: if that ends
    without it, `submission` becomes a job. The job may be gone.
    """

    __tablename__ = "conversation_messages"
    __table_args__ = (
        Index("uq_conversation_messages_id", "tenant_id", "id", unique=True),
        Index(
            "uq_conversation_messages_source_id",
            "conversation_id",
            "source_id",
            unique=True,
            postgresql_where=text("source_id IS NOT NULL"),
        ),
        Index(
            "uq_conversation_messages_idempotency_key",
            "tenant_id",
            "idempotency_key",
            unique=True,
            postgresql_where=text("idempotency_key IS NOT NULL"),
        ),
        Index("ix_conversation_messages_job_id", "job_id", postgresql_where=text("job_id IS NOT NULL")),
        Index("ix_conversation_messages_merging", "tenant_id", postgresql_where=text("status = 'merging'")),
        Index("ix_conversation_messages_turn", "conversation_id", "turn", "sequence"),
    )
    conversation_id: UUID = Field(
        sa_column=Column(ForeignKey("conversations.id", ondelete="CASCADE"), primary_key=True)
    )
    sequence: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    id: UUID
    tenant_id: str = text_column()
    channel: str = text_column()
    kind: str = enum_column("message_kind", MessageKind, default="message")
    direction: str = enum_column("message_direction", Direction)
    source_id: str | None = text_column(nullable=True)
    idempotency_key: str | None = text_column(nullable=True)
    request_hash: str | None = text_column(nullable=True)
    answered_question_id: UUID | None = None
    user_id: str = text_column("")
    text: str = text_column("")
    content: Any = json_column()
    meta: Any = Field(default=None, sa_column=Column("metadata", JSON, nullable=True))
    job_id: UUID | None = None
    turn: int | None = None
    round: int | None = None
    submission: Any = json_column()
    status: str = enum_column("message_status", MessageStatus, default="done")
    created_at: datetime = time_column(nullable=False, now=True)
