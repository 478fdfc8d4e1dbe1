"""Which earlier messages a model sees, and which sentence a person reads for an error.

A model sees the newest messages within a token budget (docs/decisions.md, D19). The result is valid for every
provider: each tool call is followed by its one response, ids are unique, and words come before calls.

People get a fixed sentence for an error: the words of a tool or a provider may name tenants, hosts or keys. Operators
find them with the job.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from planq.shared.agentic.models.exchange import ChatMessage, ToolCallRequest
from planq.shared.agentic.turns.messages import Direction, HistoryMessage, MessageKind
from planq.shared.agentic.turns.speakers import Speaker, are_told, as_said
from planq.shared.platform import errors
from planq.shared.platform.errors import OutcomeUnknown, capped

CountTokens = Callable[[str], int]

_MOST_BYTES_PER_TOKEN = 128
"""Length of cl100k_base's longest token: a text longer than budget × this need not be counted."""

_SHOWN_CHARS = 1_000
"""Characters shown of a call's arguments and of its response, to leave room for words."""

_LINES, _BEGINNING = 20, 160
_SUMMARY = "How the messages of the conversation begin in which this is asked, as background:"

_UNKNOWN = {"error": {"code": OutcomeUnknown.code, "message": "the turn ended before this call did"}}


def history_messages(rows: Sequence[HistoryMessage], max_tokens: int, count: CountTokens) -> Sequence[ChatMessage]:
    """Return the messages of `rows` (newest first) within `max_tokens`, oldest first.

    Ends before the first entry that does not fit; an entry is a message, or a call with its response. Leaves out
    blank texts, responses without a call, and calls before the first words. Names speakers if `tells_people`.
    """
    entries: list[Sequence[ChatMessage]] = []
    left = max_tokens
    for entry in _entries(rows, is_told=tells_people(rows)):
        left -= sum(_tokens(message, left, count) for message in entry)
        if left < 0:
            break
        entries.append(entry)
    entries = entries[: len(entries) - len(list(takewhile(lambda entry: len(entry) > 1, reversed(entries))))]
    return [message for entry in reversed(entries) for message in entry]


def tells_people(rows: Sequence[HistoryMessage]) -> bool:
    """Whether messages need their speakers' names: of the people in `rows` and the one whose turn it is."""
    present = [row.present for row in rows[:1]]
    return are_told(speaker for speaker in [*present, *(row.speaker for row in rows)] if speaker is not None)


def present_speaker(rows: Sequence[HistoryMessage]) -> Speaker | None:
    """Return whose turn it is, None if speakers need no names or there is no turn."""
    return rows[0].present if rows and tells_people(rows) else None


def summary_of(messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
    """Return one message with the beginnings of the newest texts, without a model call."""
    words = [message for message in messages if message.role in ("user", "assistant") and message.content.strip()]
    lines = [
        f"- {message.role}: {capped(' '.join(message.content.split()), _BEGINNING)}" for message in words[-_LINES:]
    ]
    return (ChatMessage("user", "\n".join([_SUMMARY, *lines])),) if lines else ()


def words_of(text: str, content: Mapping[str, Any]) -> str:
    """Return a message's text and the names of its images, files and audio, which only its own turn sees."""
    parts = content.get("parts")
    if not isinstance(parts, Sequence):
        return text
    names = [part["filename"] or part["url"] or part["media_type"] for part in parts]
    shown = [f"[{part['type']}: {capped(str(name), 200)}]" for part, name in zip(parts, names, strict=True)]
    return "\n".join([*([text] if text.strip() else []), *shown])


def _entries(rows: Sequence[HistoryMessage], *, is_told: bool) -> Iterator[Sequence[ChatMessage]]:
    """Yield messages, and calls with their responses, newest first; `is_told` adds speakers."""
    responses: dict[str, HistoryMessage] = {}
    for row in rows:
        content = row.content if isinstance(row.content, Mapping) else {}
        own_id = str(content.get("id", ""))
        if row.kind is MessageKind.TOOL_RESPONSE:
            responses[own_id] = row
        elif row.kind is MessageKind.TOOL_CALL:
            yield _call(row.sequence, content, responses.pop(own_id, None))
        elif (text := words_of(row.text, content)).strip() and row.direction is not Direction.INTERNAL:
            if is_told and row.speaker is not None:
                text = as_said(text, row.speaker)
            yield (ChatMessage("user" if row.direction is Direction.INBOUND else "assistant", text),)


def _call(sequence: int, content: Mapping[str, Any], response: HistoryMessage | None) -> Sequence[ChatMessage]:
    # Nine letters and digits are an id for every provider (Mistral takes no others).
    own_id, name = f"h{sequence:08d}", str(content.get("name") or "tool")
    arguments = content.get("arguments")
    shown = content["preview"] if "preview" in content else json.dumps(arguments, ensure_ascii=False)
    if not isinstance(arguments, Mapping) or len(shown) > _SHOWN_CHARS:
        arguments = {"shortened": capped(shown, _SHOWN_CHARS)}
    answer = response.content if response is not None and isinstance(response.content, Mapping) else _UNKNOWN
    outcome = {key: answer[key] for key in ("error", "preview") if key in answer} or answer.get("output")
    request = ToolCallRequest(name, arguments, own_id)
    shown_outcome = capped(json.dumps(outcome, ensure_ascii=False), _SHOWN_CHARS)
    return ChatMessage("assistant", "", (request,)), ChatMessage("tool", shown_outcome, call_id=own_id, name=name)


def _tokens(message: ChatMessage, left: int, count: CountTokens) -> int:
    texts = [message.content, *(f"{call.name} {json.dumps(call.arguments)}" for call in message.tool_calls)]
    if sum(map(len, texts)) > max(left, 0) * _MOST_BYTES_PER_TOKEN:
        return max(left, 0) + 1
    return sum(map(count, texts))


NO_DATA = "Unable to retrieve data"
UNAVAILABLE = "The assistant is not available at the moment. Please try again later."
BEYOND_CONTEXT = "This is more than I can read at once. Please send less, or begin a new conversation."
TOO_LONG = "This took too long. Please try again."
BEYOND_BUDGET = "This needs more than is allowed here. Please ask for less at once."
STOPPED = "This request was stopped."
NOT_POSSIBLE = "Something went wrong. Please try again later."

_SENTENCES: tuple[tuple[str, tuple[type[errors.PlanqError], ...]], ...] = (
    (
        NO_DATA,
        (
            errors.ToolFailed,
            errors.UnknownTool,
            errors.InvalidArguments,
            errors.InvalidOutput,
            errors.PolicyDenied,
            errors.OutcomeUnknown,
        ),
    ),
    (
        UNAVAILABLE,
        (
            errors.Transient,
            errors.Unreached,
            errors.UnreadableReply,
            errors.RateLimited,
            errors.HostBusy,
            errors.AuthFailed,
            errors.ModelRefused,
            errors.WorkerLost,
        ),
    ),
    (BEYOND_BUDGET, (errors.BudgetExceeded,)),
    (BEYOND_CONTEXT, (errors.ContextExceeded,)),
    (STOPPED, (errors.Aborted, errors.Cancelled, errors.AnswerDeclined)),
)
_BY_CODE = {kind.code: sentence for sentence, kinds in _SENTENCES for kind in kinds}


def user_message(code: str) -> str:
    return TOO_LONG if code in errors.AGENT_TIMEOUTS else _BY_CODE.get(code, NOT_POSSIBLE)


def outbound_text(text: str, metadata: Any) -> str:
    """Return an outbound message's text, or the sentence for the `error_code` in its metadata."""
    code = metadata.get("error_code") if isinstance(metadata, Mapping) else None
    return text if text or code is None else user_message(code)


def user_message_for_step(code: str) -> str:
    """Return the sentence for a step's error: for a failed tool its data is missing."""
    return STOPPED if code == errors.Cancelled.code else NO_DATA
