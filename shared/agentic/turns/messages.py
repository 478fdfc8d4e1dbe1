"""The words for what stands in a conversation.

A conversation is the thread of one person on one channel of a tenant. What is said and done there is a row each, in
one order; a turn is an inbound message, the calls that its job made, and the outbound message that answers it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias
from uuid import UUID

from planq.shared.agentic.turns.speakers import Speaker


class HistoryForm(StrEnum):
    """How a job that is no turn is shown a conversation."""

    FULL = "full"  # as a turn is
    SUMMARY = "summary"  # by what each message begins with


@dataclass(frozen=True, slots=True)
class ShownHistory:
    """What a job that is no turn is shown of a conversation: the turns `before` one of them."""

    conversation_id: UUID
    before: int
    form: HistoryForm

    @classmethod
    def of(cls, stored: Mapping[str, Any] | None) -> ShownHistory | None:
        return None if stored is None else cls(UUID(stored["of"]), stored["before"], HistoryForm(stored["form"]))


class Policy(StrEnum):
    """What becomes of a message that arrives while a job of its conversation has not ended."""

    QUEUE = "queue"  # its job begins when those before it have ended
    REJECT = "reject"  # it is refused, and nothing is stored
    INTERRUPT = "interrupt"  # what runs is cancelled, and its job begins at once
    MERGE = "merge"  # the next planning of the running job takes it in; without one it queues


class Direction(StrEnum):
    """Which way a row went: to us, from us, or neither."""

    INBOUND = "inbound"
    OUTBOUND = "outbound"
    INTERNAL = "internal"


class MessageKind(StrEnum):
    """What a row is: words, or the call of a tool and its response, which share the call's id."""

    MESSAGE = "message"
    TOOL_CALL = "tool_call"
    TOOL_RESPONSE = "tool_response"


class MessageStatus(StrEnum):
    """What has become of a row."""

    RECEIVED = "received"  # its job has not ended
    MERGING = "merging"  # it waits for the next planning of the job that runs
    DONE = "done"  # its job has ended, or it needs none
    ERASED = "erased"  # its texts were removed


@dataclass(frozen=True, slots=True)
class HistoryMessage:
    """One row of a conversation, as the turns after it see it.

    `content` of a tool's call is `{"id", "name", "arguments"}`, that of its response `{"id", "name", "output"}` or
    `{"id", "name", "error"}`. `speaker` is whose message it is, `present` whose the turn is that sees it.
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
"""Rows of a conversation as they are shown, newest first."""
