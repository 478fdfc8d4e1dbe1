"""Conversations in pydantic-ai's terms (2.68), and what of a reply its provider needs back.

A provider that reasons signs what it thought, and refuses the conversation when the signature does not come back with
the call that it led to. Such parts of a reply are kept whole as its state; texts and arguments that stand in the
message anyway are not kept twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from pydantic import ValidationError
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.messages import ModelRequest as WireRequest

from planq.shared.domain.models.exchange import ChatMessage, ToolCallRequest
from planq.worker.llm.request import ModelRequest

_MAX_NAME_CHARS = 64
_FOREIGN_CHARS = re.compile(r"[^A-Za-z0-9_-]")
"""OpenAI's rule for the names of functions, the strictest of all."""

_PLAIN = {"content", "tool_name", "args", "tool_call_id", "part_kind"}
_NO_TEXT = "(nothing)"
_BEFORE = "(earlier messages are left out)"


class WireNames:
    """Tools' names as every provider accepts them, and back."""

    def __init__(self, tools: Iterable[Mapping[str, Any]]) -> None:
        self._out: dict[str, str] = {}
        self._back: dict[str, str] = {}
        for tool in tools:
            name = str(tool["name"])
            wire, number = _clean(name), 1
            while wire in self._back:
                number += 1
                wire = f"{_clean(name)[: _MAX_NAME_CHARS - 5]}_{number}"
            self._out[name], self._back[wire] = wire, name

    def out(self, name: str) -> str:
        """Return the name to send; that of a tool which is not offered becomes one that could be."""
        return self._out.get(name) or _clean(name)

    def back(self, wire: str) -> str:
        """Return the name of the tool that a provider means."""
        return self._back.get(wire, wire)


def _clean(name: str) -> str:
    return _FOREIGN_CHARS.sub("_", name)[:_MAX_NAME_CHARS] or "_"


def state_of(response: ModelResponse) -> Any:
    """Return what the provider needs back with a reply as JSON, None where its text and its calls are all."""
    if all(isinstance(part, (TextPart, ToolCallPart)) and _is_plain(part) for part in response.parts):
        return None
    parts = ModelMessagesTypeAdapter.dump_python([response], mode="json")[0]["parts"]
    texts = [part for part in response.parts if isinstance(part, TextPart)]
    kept = []
    for part in parts:
        left_out = {"args", "tool_name", "tool_call_id"} if part["part_kind"] == "tool-call" else set()
        if part["part_kind"] == "text" and len(texts) == 1:
            left_out = {"content"}
        kept.append({key: value for key, value in part.items() if value is not None and key not in left_out})
    state = {"provider": response.provider_name, "system": response.canonical_system, "parts": kept}
    return {key: value for key, value in state.items() if value is not None}


def _is_plain(part: TextPart | ToolCallPart) -> bool:
    return all(getattr(part, one.name) is None for one in fields(part) if one.name not in _PLAIN)


def wire_messages(request: ModelRequest, names: WireNames) -> list[ModelMessage]:
    """Return the conversation; consecutive texts and results share one request, and blank messages are left out."""
    wire: list[ModelMessage] = []
    pending: list[Any] = [SystemPromptPart(content=sendable(text)) for text in request.system]
    for message in request.messages:
        if message.role == "assistant":
            reply = _wire_reply(message, names)
            if not reply.parts:
                continue
            if not wire and not any(isinstance(part, UserPromptPart) for part in pending):
                # Some providers refuse a conversation that a model begins.
                pending.append(UserPromptPart(content=_BEFORE))
            if pending:
                wire.append(WireRequest(parts=pending))
                pending = []
            wire.append(reply)
        elif message.role == "tool":
            # Some providers refuse a result without any text.
            content = sendable(message.content) if message.content.strip() else _NO_TEXT
            pending.append(ToolReturnPart(names.out(message.name), content, message.call_id))
        elif message.content.strip() or len(request.messages) == 1:
            pending.append(UserPromptPart(content=sendable(message.content)))
    return [*wire, WireRequest(parts=pending)]


def _wire_reply(message: ChatMessage, names: WireNames) -> ModelResponse:
    calls = [_call_part(call, names) for call in message.tool_calls]
    stored = _stored(message, calls)
    if stored is not None:
        return stored
    texts = [TextPart(content=sendable(message.content))] if message.content.strip() else []
    return ModelResponse(parts=[*texts, *calls])


def _call_part(call: ToolCallRequest, names: WireNames) -> ToolCallPart:
    raw = call.arguments
    text = sendable(raw if isinstance(raw, str) else json.dumps(raw, ensure_ascii=False, default=str))
    return ToolCallPart(names.out(call.name), text, call.id)


def _stored(message: ChatMessage, calls: Sequence[ToolCallPart]) -> ModelResponse | None:
    """Return the reply as its provider made it; None where it left no state, or one of another version."""
    if not isinstance(message.state, Mapping):
        return None
    waiting = list(calls)
    parts: list[Any] = []
    try:
        for part in message.state["parts"]:
            if part["part_kind"] == "tool-call":
                call = waiting.pop(0)
                part = {**part, "tool_name": call.tool_name, "args": call.args, "tool_call_id": call.tool_call_id}
            elif part["part_kind"] == "text":
                part = {**part, "content": sendable(part.get("content", message.content))}
            parts.append(part)
        stored = {
            "kind": "response",
            "parts": parts,
            "provider_name": message.state.get("provider"),
            "canonical_system": message.state.get("system"),
        }
        (response,) = ModelMessagesTypeAdapter.validate_python([stored])
    except (LookupError, TypeError, AttributeError, ValueError, ValidationError):
        return None
    return response if isinstance(response, ModelResponse) and not waiting else None


def sendable(text: str) -> str:
    """Return `text` without lone surrogates, which JSON can bring in and UTF-8 cannot carry out."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
