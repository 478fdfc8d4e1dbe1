"""The vocabulary of conversations.

A conversation is the thread of one person on one channel, a row per message or call in one order. A turn is an
inbound message, the calls of its job, and the outbound answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias
from uuid import UUID

from planq.shared.agentic.turns.speakers import Speaker


class HistoryForm(StrEnum):
    """How a job outside the conversation sees it."""

    FULL = "full"  # as a turn is
    SUMMARY = "summary"  # by what each message begins with


@dataclass(frozen=True, slots=True)
class ShownHistory:
    """The conversation's turns `before` one of them, as a job outside it sees them."""

    conversation_id: UUID
    before: int
    form: HistoryForm

    @classmethod
    def of(cls, stored: Mapping[str, Any] | None) -> ShownHistory | None:
        return None if stored is None else cls(UUID(stored["of"]), stored["before"], HistoryForm(stored["form"]))


class Policy(StrEnum):
    """What happens to a message that arrives while a job of its conversation runs."""

    QUEUE = "queue"  # its job begins when those before it have ended
    REJECT = "reject"  # it is refused, and nothing is stored
    INTERRUPT = "interrupt"  # what runs is cancelled, and its job begins at once
    MERGE = "merge"  # the next planning of the running job takes it in; without one it queues


class Direction(StrEnum):
    """Direction of a row: to planq, from planq, or neither."""

    INBOUND = "inbound"
    OUTBOUND = "outbound"
    INTERNAL = "internal"


class MessageKind(StrEnum):
    """Kind of a row: a message, or a tool's call and response, which share the call's id."""

    MESSAGE = "message"
    TOOL_CALL = "tool_call"
    TOOL_RESPONSE = "tool_response"


class MessageStatus(StrEnum):
    """State of a row."""

    RECEIVED = "received"  # its job has not ended
    MERGING = "merging"  # it waits for the next planning of the job that runs
    DONE = "done"  # its job has ended, or it needs none
    ERASED = "erased"  # its texts were removed


@dataclass(frozen=True, slots=True)
class HistoryMessage:
    """One row of a conversation, as later turns see it.

    `content` of a call is `{"id", "name", "arguments"}`, of a response `{"id", "name", "output"}` or `{…, "error"}`.
    `speaker` wrote it, `present` wrote the turn that sees it.
    """

    sequence: int
    kind: MessageKind
    direction: Direction
    text: str
    content: Any = None
    job_id: UUID | None = None
    speaker: Speaker | None = None
    present: Speaker | None = None


Turns: TypeAlias = Sequence[HistoryMessage]
"""Rows of a conversation, newest first."""
