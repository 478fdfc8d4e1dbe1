"""The tables of conversations; neither hangs on jobs, which retention removes before them."""

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
    """A thread of one channel of a tenant, and what was used in it.

    `active_job_id` is the one job of it that has begun and not ended; all others are held until it has been settled.
    Messages are numbered up to `last_sequence`, turns, in the order in which they began, up to `last_turn`. Without a
    `policy` the tenant's holds. One that a message without a thread began has its own id as `thread`. By
    `first_source_id`, that message's source id, the message finds it when it comes again. `missed_question_id` is
    what the last message did not fit that the active turn asks, until that was put again. Its turns are those of its
    `agent`, unless a message names another one: in the version that it keeps, or the newest where it `follows_agent`.
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
    """The version of an agent that a conversation keeps: the one with which the agent's first turn in it began."""

    __tablename__ = "conversation_agents"
    __table_args__ = (Index("ix_conversation_agents_version", "tenant_id", "agent", "version"),)
    conversation_id: UUID = Field(
        sa_column=Column(ForeignKey("conversations.id", ondelete="CASCADE"), primary_key=True)
    )
    agent: str = text_column(primary_key=True)
    tenant_id: str = text_column()
    version: int


class ConversationMessageRow(SQLModel, table=True):
    """One row of a conversation, in its order: words, or the call of a tool or its response.

    `source_id` is the channel's own id of an inbound message, unique in its conversation; `idempotency_key` came
    with its request, whose digest is `request_hash`. It may have answered the question `answered_question_id`. The
    outbound message of a turn without an answer has no text, and the reason in its metadata. The job need not be
    there any more. All rows of a `turn` share its number; an inbound message has none while its job is held, or
    while it merges: it came in that `round` of the job that runs, and its `submission` becomes a job of its own if
    that one ends without taking it in.
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
