"""Which rows a turn leaves in a conversation, and which of them a model is shown again. Facts.md, 003.

Rows of calls and of thoughts are there to be looked at; they are never replayed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum

from planq.shared.agentic.models.exchange import ChatMessage


class RowKind(StrEnum):
    """What a row of a conversation holds."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL_CALL = "tool_call"
    TOOL_RESPONSE = "tool_response"
    THINK = "think"
    OBSERVATION = "observation"
    MEMORY = "memory"


def replayed(rows: Sequence[tuple[RowKind, str | None]]) -> list[ChatMessage]:
    """Return the messages that a model is shown for the rows of a conversation, in order."""
    return list(_replayed(rows))


def _replayed(rows: Sequence[tuple[RowKind, str | None]]) -> Iterator[ChatMessage]:
    for kind, content in rows:
        match kind:
            case RowKind.SYSTEM | RowKind.USER | RowKind.ASSISTANT:
                yield ChatMessage(str(kind), content or "")
            case RowKind.OBSERVATION:
                yield ChatMessage("user", f"[Observation] {content or ''}")
            case RowKind.MEMORY:
                yield ChatMessage("system", content or "")
