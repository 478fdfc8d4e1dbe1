"""Selects of conversations and their messages."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from sqlalchemy import Select, func, select
from sqlalchemy.dialects.postgresql import aggregate_order_by

from planq.shared.platform.selects import named, newest_first, where_given
from planq.shared.subjects.conversations.tables import ConversationAgentRow, ConversationMessageRow, ConversationRow

c: Any = ConversationRow
k: Any = ConversationAgentRow
m: Any = ConversationMessageRow

_AGENT_VERSIONS = (
    select(func.json_object_agg(k.agent, aggregate_order_by(k.version, k.agent)))
    .where(k.conversation_id == c.id, k.tenant_id == c.tenant_id)
    .scalar_subquery()
    .label("agent_versions")
)


@named
def list_conversations(
    tenant_id: str, channel: str | None, thread: str | None, below: UUID | None, limit: int
) -> Select[Any]:
    rows = select(c, _AGENT_VERSIONS).where(c.tenant_id == tenant_id)
    return newest_first(where_given(rows, {c.channel: channel, c.thread: thread}), c.id, below, limit)


@named
def get_conversation(tenant_id: str, id: UUID) -> Select[Any]:
    return select(c, _AGENT_VERSIONS).where(c.tenant_id == tenant_id, c.id == id)


@named
def list_conversation_messages(tenant_id: str, conversation_id: UUID, below: int | None, limit: int) -> Select[Any]:
    rows = select(m).where(m.tenant_id == tenant_id, m.conversation_id == conversation_id)
    return newest_first(rows, m.sequence, below, limit)
