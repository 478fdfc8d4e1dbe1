"""Which rows a turn leaves in a conversation, and which of them a model is shown again. Facts.md, 003.

Rows of calls and of thoughts are there to be looked at; they are never replayed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

from shared.domain.model import ChatMessage


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


def turn_rows(calls: Sequence[Mapping[str, Any]], *, is_chained: bool = False) -> list[RowKind]:
    """Return the kinds of the rows that a turn leaves: each call with its response, where there is one.

    Calls stand before the assistant's text; the call of a chained tool stands after it, for it follows from it.
    """
    pairs = [
        kind
        for call in calls
        for kind in (RowKind.TOOL_CALL, RowKind.TOOL_RESPONSE)
        if kind is RowKind.TOOL_CALL or call.get("result") is not None
    ]
    before, after = ([], pairs) if is_chained else (pairs, [])
    return [RowKind.USER, *before, RowKind.ASSISTANT, *after]
