"""The four formats that the gateway speaks, as a server sees them: replies to give, and requests to read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from planq.shared.agentic.models.names import Provider

Json = dict[str, Any]
KEY = "sk-test-0123456789"
INPUT_TOKENS, OUTPUT_TOKENS = 100, 20


@dataclass(frozen=True)
class Seen:
    """A request, read from its format: `system` texts, (role, text) messages, tool names, and how they are forced."""

    system: list[str]
    messages: list[tuple[str, str]]
    tools: list[str]
    choice: str | None


@dataclass(frozen=True)
class Dialect:
    """One format. `reply(text, call)` builds an answer; `call` is the arguments of `__planning__`, raw if a text.

    `stream` says whether the gateway asks for streams in it.
    """

    name: str
    model: str
    provider: Provider
    api: Literal["chat", "responses"]
    base_path: str
    path: str
    forced: str
    auth: tuple[str, str]
    reply: Callable[[str, Json | str | None], Json]
    read: Callable[[Json], Seen]
    stream: bool = True

    def __repr__(self) -> str:
        return self.name if self.stream else f"{self.name}-whole"

    @property
    def whole(self) -> Dialect:
        """The same format with whole replies."""
        return replace(
            self, stream=False, path=self.path.replace(":streamGenerateContent?alt=sse", ":generateContent")
        )


def _dumped(call: Json | str | None) -> str:
    return call if isinstance(call, str) else json.dumps(call)


def _chat_reply(text: str, call: Json | str | None) -> Json:
    message: Json = {"role": "assistant", "content": text or None}
    if call is not None:
        function = {"name": "__planning__", "arguments": _dumped(call)}
        message["tool_calls"] = [{"id": "call_1", "type": "function", "function": function}]
    finish = "stop" if call is None else "tool_calls"
    usage = {"prompt_tokens": INPUT_TOKENS, "completion_tokens": OUTPUT_TOKENS, "total_tokens": 120}
    choices = [{"index": 0, "finish_reason": finish, "message": message}]
    head = {"id": "c1", "object": "chat.completion", "created": 1_700_000_000, "model": "gpt-4o"}
    return {**head, "choices": choices, "usage": usage}


def _openai_items(items: list[Json]) -> tuple[list[str], list[tuple[str, str]]]:
    system = [item["content"] for item in items if item["role"] == "system"]
    return system, [(item["role"], item["content"]) for item in items if item["role"] != "system"]


def _chat_read(body: Json) -> Seen:
    system, messages = _openai_items(body["messages"])
    tools = [tool["function"]["name"] for tool in body.get("tools", [])]
    return Seen(system, messages, tools, body.get("tool_choice"))


def _responses_reply(text: str, call: Json | str | None) -> Json:
    output: list[Json] = []
    if text:
        content = [{"type": "output_text", "text": text, "annotations": []}]
        output.append({"type": "message", "id": "m1", "role": "assistant", "status": "completed", "content": content})
    if call is not None:
        made = {"type": "function_call", "id": "f1", "call_id": "c1", "name": "__planning__", "status": "completed"}
        output.append({**made, "arguments": _dumped(call)})
    usage = {
        "input_tokens": INPUT_TOKENS,
        "output_tokens": OUTPUT_TOKENS,
        "total_tokens": 120,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    head = {"id": "r1", "object": "response", "created_at": 1_700_000_000, "model": "gpt-4o", "status": "completed"}
    return {**head, "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "output": output, "usage": usage}


def _responses_read(body: Json) -> Seen:
    system, messages = _openai_items(body["input"])
    return Seen(system, messages, [tool["name"] for tool in body.get("tools", [])], body.get("tool_choice"))


def _anthropic_reply(text: str, call: Json | str | None) -> Json:
    content: list[Json] = [{"type": "text", "text": text}] if text else []
    if call is not None:
        content.append({"type": "tool_use", "id": "t1", "name": "__planning__", "input": call})
    head = {"id": "m1", "type": "message", "role": "assistant", "model": "claude-haiku-4-5", "stop_sequence": None}
    usage = {"input_tokens": INPUT_TOKENS, "output_tokens": OUTPUT_TOKENS}
    stop = "end_turn" if call is None else "tool_use"
    return {**head, "content": content, "stop_reason": stop, "usage": usage}


def _anthropic_read(body: Json) -> Seen:
    messages = [(message["role"], block["text"]) for message in body["messages"] for block in message["content"]]
    tools = [tool["name"] for tool in body.get("tools", [])]
    system = body["system"]
    texts = [system] if isinstance(system, str) else [block["text"] for block in system]
    return Seen(texts, messages, tools, body.get("tool_choice", {}).get("type"))


def _google_reply(text: str, call: Json | str | None) -> Json:
    parts: list[Json] = [{"text": text}] if text else []
    if call is not None:
        parts.append({"functionCall": {"name": "__planning__", "args": call}})
    candidate = {"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}
    usage = {"promptTokenCount": INPUT_TOKENS, "candidatesTokenCount": OUTPUT_TOKENS, "totalTokenCount": 120}
    head = {"modelVersion": "gemini-2.5-flash", "responseId": "g1"}
    return {**head, "candidates": [candidate], "usageMetadata": usage}


def _google_read(body: Json) -> Seen:
    messages = [
        ("assistant" if content["role"] == "model" else "user", part["text"])
        for content in body["contents"]
        for part in content["parts"]
    ]
    system = [part["text"] for part in body["systemInstruction"]["parts"]]
    tools = [declared["name"] for tool in body.get("tools", []) for declared in tool["functionDeclarations"]]
    mode = body.get("toolConfig", {}).get("functionCallingConfig", {}).get("mode")
    return Seen(system, messages, tools, mode)


OPENAI_CHAT = Dialect(
    "openai-chat",
    "openai:gpt-4o",
    Provider.OPENAI,
    "chat",
    "/v1",
    "/v1/chat/completions",
    "required",
    ("authorization", f"Bearer {KEY}"),
    _chat_reply,
    _chat_read,
)
OPENAI_RESPONSES = Dialect(
    "openai-responses",
    "openai:gpt-4o",
    Provider.OPENAI,
    "responses",
    "/v1",
    "/v1/responses",
    "required",
    ("authorization", f"Bearer {KEY}"),
    _responses_reply,
    _responses_read,
)
ANTHROPIC = Dialect(
    "anthropic",
    "anthropic:claude-haiku-4-5",
    Provider.ANTHROPIC,
    "chat",
    "",
    "/v1/messages",
    "any",
    ("authorization", f"Bearer {KEY}"),
    _anthropic_reply,
    _anthropic_read,
)
GOOGLE = Dialect(
    "google",
    "google:gemini-2.5-flash",
    Provider.GOOGLE,
    "chat",
    "",
    "/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse",
    "ANY",
    ("x-goog-api-key", KEY),
    _google_reply,
    _google_read,
)
STREAMS = [OPENAI_CHAT, OPENAI_RESPONSES, ANTHROPIC, GOOGLE]
DIALECTS = [*STREAMS, *(dialect.whole for dialect in STREAMS)]
