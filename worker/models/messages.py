"""Conversations in pydantic-ai's form (2.68), and the parts of a reply that its provider needs back.

A provider that reasons signs its thoughts, and refuses a conversation if the signature does not come back with the
call. Such parts are stored as the reply's state, without texts and arguments that the message has anyway.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from pydantic import ValidationError
from pydantic_ai.messages import (
    BinaryContent,
    FilePart,
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
from pydantic_ai.models import Model

from planq.shared.agentic.models.adaptations import Adaptation
from planq.shared.agentic.models.exchange import ChatMessage, ToolCallRequest
from planq.shared.platform.errors import ModelRefused
from planq.shared.platform.values.media import UNKNOWN_MEDIA_TYPE
from planq.shared.platform.values.parts import Part
from planq.worker.models.prompts import fenced_data
from planq.worker.models.request import ModelRequest
from planq.worker.models.wire_names import WireNames

_PLAIN = {"content", "tool_name", "args", "tool_call_id", "part_kind"}
_NO_TEXT = "(nothing)"
_RESULTS_SEEN = "I have these results."
_PARAGRAPH = "\n\n"
_BEFORE = "(earlier messages are left out)"


def state_of(response: ModelResponse) -> Any:
    """Return what the provider needs back with a reply, as JSON without files; None for plain texts and calls."""
    response = replace(response, parts=[part for part in response.parts if not isinstance(part, FilePart)])
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


_CALL_IDS = {
    "mistral": re.compile(r"[A-Za-z0-9]{9}"),
    "anthropic": re.compile(r"[A-Za-z0-9_-]{1,64}"),
    "bedrock": re.compile(r"[A-Za-z0-9_.:-]{1,64}"),
}
"""The ids of tool calls that a provider takes, by its name in pydantic-ai; the others take any 64 characters."""

_ANY_ID = re.compile(r"[\x21-\x7e]{1,64}")


RESPONSES = "openai-responses"
"""The reader of what OpenAI's Responses API needs back: its other API has the same name in pydantic-ai."""

_ID_OF_THOUGHTS = "rs_"


def call_id_for(provider: str, given: str) -> str:
    """Return the id of a tool call as a provider takes it; another one for an id of another provider's form."""
    if (_CALL_IDS.get(provider) or _ANY_ID).fullmatch(given):
        return given
    return hashlib.sha256(given.encode("utf-8", "surrogatepass")).hexdigest()[:9]


def wire_messages(
    request: ModelRequest, names: WireNames, adaptations: Collection[Adaptation] = (), provider: str = ""
) -> list[ModelMessage]:
    """Return the conversation; results of one reply share one request, and blank messages are dropped.

    State such as signed thoughts goes only to its own `provider`, and ids of calls that it does not accept are
    replaced. Neighbours of one role are joined, and so are the system texts: chat templates of several models
    (Mistral, Gemma, Qwen) fail for two.
    """
    wire: list[ModelMessage] = []
    system = _PARAGRAPH.join(sendable(text) for text in request.system)
    pending: list[Any] = []
    if system and Adaptation.SYSTEM_AS_USER not in adaptations:
        pending, system = [SystemPromptPart(content=system)], ""

    def add_text(text: str, parts: Sequence[Part] = ()) -> None:
        nonlocal system
        if system:
            text, system = f"{system}{_PARAGRAPH}{text}", ""
        if pending and isinstance(pending[-1], ToolReturnPart) and Adaptation.REPLY_AFTER_RESULTS in adaptations:
            wire.append(WireRequest(parts=list(pending)))
            wire.append(ModelResponse(parts=[TextPart(content=_RESULTS_SEEN)]))
            pending.clear()
        pending.append(UserPromptPart(content=[*([text] if text else []), *map(wire_part, parts)] if parts else text))

    for message in _joined([*_with_artifacts_after_results(request.messages)]):
        if message.role == "assistant":
            reply = _wire_reply(message, names, provider)
            if not reply.parts:
                continue
            if not wire and not any(isinstance(part, UserPromptPart) for part in pending):
                # Some providers refuse a conversation that a model begins.
                add_text(_BEFORE)
            if pending:
                wire.append(WireRequest(parts=list(pending)))
                pending.clear()
            wire.append(reply)
        elif message.role == "tool":
            # Some providers refuse a result without any text.
            content = sendable(message.content) if message.content.strip() else _NO_TEXT
            call_id = call_id_for(provider, message.call_id)
            pending.append(ToolReturnPart(names.out(message.name), content, call_id))
        else:
            add_text(sendable(message.content), message.parts)
    if system:
        pending.append(UserPromptPart(content=system))
    return [*wire, WireRequest(parts=pending)]


_READS = {
    "image": "supports_image_input",
    "audio": "supports_audio_file_input",
    "file": "supports_document_input",
}
"""The field of a profile that says whether a model takes a type of part; it does unless the profile denies it."""


def readable(model: Model, request: ModelRequest, active: Collection[Adaptation]) -> ModelRequest:
    """Return a request without tool artifacts that the model cannot read: their results name them.

    Raises `ModelRefused` for an image, a file or audio of the input that the model cannot read.
    """
    messages = []
    for message in request.messages:
        parts = []
        for part in message.parts:
            is_taken = _takes(model, part)
            if part.artifact_id is None and not is_taken:
                raise ModelRefused(
                    f"the model {model.model_name!r} does not read {part.type} input of {part.media_type}: name "
                    "another model, or send the input in another form"
                )
            if part.artifact_id is None or (is_taken and Adaptation.NO_ARTIFACTS not in active):
                parts.append(part)
        messages.append(replace(message, parts=parts) if len(parts) < len(message.parts) else message)
    return replace(request, messages=messages)


def _takes(model: Model, part: Part) -> bool:
    allowed = model.profile.get("supported_document_media_types")
    is_unknown = part.type == "file" and allowed is not None and part.media_type not in allowed
    return not is_unknown and bool(model.profile.get(_READS[part.type], True))


def wire_part(part: Part) -> BinaryContent:
    return BinaryContent(part.data, media_type=part.media_type or UNKNOWN_MEDIA_TYPE, identifier=part.filename)


def _with_artifacts_after_results(messages: Sequence[ChatMessage]) -> Iterator[ChatMessage]:
    """Yield the messages, with the artifacts of results in a user message after these, as all providers take them."""
    made: list[Part] = []
    for message in messages:
        if message.role != "tool" and made:
            yield _artifacts(made)
            made = []
        made += message.parts if message.role == "tool" else []
        yield replace(message, parts=()) if message.role == "tool" and message.parts else message
    if made:
        yield _artifacts(made)


def _artifacts(made: Sequence[Part]) -> ChatMessage:
    names = fenced_data(json.dumps([part.artifact_id for part in made], ensure_ascii=False))
    return ChatMessage("user", f"The artifacts that these tools have made, in this order:\n{names}", parts=made)


def _joined(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return the messages without blank ones, and neighbours of one role joined: users' and plain replies."""
    joined: list[ChatMessage] = []
    for message in messages:
        says_nothing = not message.content.strip() and not message.parts
        is_blank = says_nothing and not message.tool_calls and message.state is None
        if message.role != "tool" and is_blank and len(messages) > 1:
            continue
        last = joined[-1] if joined else None
        if last is not None and last.role == message.role and _is_text(last) and _is_text(message):
            text = _PARAGRAPH.join(one.content for one in (last, message) if one.content)
            joined[-1] = replace(last, content=text, parts=[*last.parts, *message.parts])
        else:
            joined.append(message)
    return joined


def _is_text(message: ChatMessage) -> bool:
    return message.role != "tool" and not message.tool_calls and message.state is None


def _wire_reply(message: ChatMessage, names: WireNames, provider: str) -> ModelResponse:
    calls = [_call_part(call, names, provider) for call in message.tool_calls]
    stored = _stored(message, calls, provider)
    if stored is not None:
        return stored
    texts = [TextPart(content=sendable(message.content))] if message.content.strip() else []
    return ModelResponse(parts=[*texts, *calls])


def _call_part(call: ToolCallRequest, names: WireNames, provider: str) -> ToolCallPart:
    raw = names.arguments_out(call.name, call.arguments)
    text = sendable(raw if isinstance(raw, str) else json.dumps(raw, ensure_ascii=False, default=str))
    return ToolCallPart(names.out(call.name), text, call_id_for(provider, call.id))


def _stored(message: ChatMessage, calls: Sequence[ToolCallPart], provider: str) -> ModelResponse | None:
    if not isinstance(message.state, Mapping):
        return None
    waiting = list(calls)
    parts: list[Any] = []
    try:
        if not _is_of(message.state, provider):
            return None
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


def _is_of(state: Mapping[str, Any], provider: str) -> bool:
    if provider != RESPONSES:
        return bool(state.get("provider", provider) == provider)
    thoughts = [part for part in state["parts"] if part["part_kind"] == "thinking"]
    return all(str(part.get("id", "")).startswith(_ID_OF_THOUGHTS) for part in thoughts)


def sendable(text: str) -> str:
    """Return `text` without lone surrogates, which JSON can bring in and UTF-8 cannot carry out."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
