"""Whole replies as the providers stream them: the same text, calls and usage in many small events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True)
class Event:
    """One server-sent event; `name` goes into its `event:` line where the format has one."""

    data: Any
    name: str = ""

    @property
    def wire(self) -> bytes:
        head = f"event: {self.name}\n" if self.name else ""
        data = self.data if isinstance(self.data, str) else json.dumps(self.data)
        return f"{head}data: {data}\n\n".encode()


def pieces(text: str) -> list[str]:
    """Return `text` in at most eight pieces, some of which split a word."""
    size = max(1, -(-len(text) // 8))
    return [text[start : start + size] for start in range(0, len(text), size)]


def events_of(path: str, asked: Json, whole: Any) -> list[Event] | None:
    """Return a whole reply as the events that a server would send under `path`; None when no stream was asked for."""
    if path.partition("?")[0].endswith(":streamGenerateContent"):
        return list(_google(whole))
    if not asked.get("stream"):
        return None
    if path.endswith("/chat/completions"):
        return list(_chat(whole, has_usage=bool(asked.get("stream_options", {}).get("include_usage"))))
    return list(_responses(whole) if path.endswith("/responses") else _anthropic(whole))


def _chat(whole: Json, *, has_usage: bool) -> Iterator[Event]:
    head = {**{name: whole[name] for name in ("id", "created", "model")}, "object": "chat.completion.chunk"}
    choice = whole["choices"][0]

    def chunk(delta: Json, finish: str | None = None) -> Event:
        return Event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    yield chunk({"role": "assistant", "content": ""})
    for piece in pieces(choice["message"].get("reasoning_content") or ""):
        yield chunk({"reasoning_content": piece})
    for piece in pieces(choice["message"]["content"] or ""):
        yield chunk({"content": piece})
    for index, call in enumerate(choice["message"].get("tool_calls", [])):
        begun = {**call, "function": {**call["function"], "arguments": ""}}
        yield chunk({"tool_calls": [{**begun, "index": index}]})
        for piece in pieces(call["function"]["arguments"]):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield chunk({}, choice["finish_reason"])
    if has_usage and "usage" in whole:
        yield Event({**head, "choices": [], "usage": whole["usage"]})
    yield Event("[DONE]")


def _responses(whole: Json) -> Iterator[Event]:
    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    told: list[Json] = [{"type": "response.created", "response": begun}]
    for index, item in enumerate(whole["output"]):
        place = {"output_index": index, "item_id": item["id"]}
        if item["type"] == "message":
            told += _responses_message(place, item)
        elif item["type"] == "reasoning":
            told.append({"type": "response.output_item.added", "item": {**item, "encrypted_content": ""}, **place})
        elif item["type"] == "image_generation_call":
            begun_item = {**item, "result": None, "status": "in_progress"}
            told.append({"type": "response.output_item.added", "item": begun_item, **place})
        else:
            told += _responses_call(place, item)
        told.append({"type": "response.output_item.done", "output_index": index, "item": item})
    told.append({"type": "response.completed", "response": whole})
    for number, event in enumerate(told):
        yield Event({**event, "sequence_number": number}, event["type"])


def _responses_message(place: Json, item: Json) -> list[Json]:
    text = item["content"][0]["text"]
    place = {**place, "content_index": 0}
    added = {"type": "response.output_item.added", "item": {**item, "content": [], "status": "in_progress"}, **place}
    deltas = [
        {"type": "response.output_text.delta", "delta": piece, "logprobs": [], **place} for piece in pieces(text)
    ]
    return [added, *deltas, {"type": "response.output_text.done", "text": text, "logprobs": [], **place}]


def _responses_call(place: Json, item: Json) -> list[Json]:
    name = "response.function_call_arguments"
    begun = {**item, "arguments": "", "status": "in_progress"}
    added = {"type": "response.output_item.added", "item": begun, **place}
    deltas = [{"type": f"{name}.delta", "delta": piece, **place} for piece in pieces(item["arguments"])]
    return [added, *deltas, {"type": f"{name}.done", "arguments": item["arguments"], **place}]


def _anthropic(whole: Json) -> Iterator[Event]:
    usage = {**whole["usage"], "output_tokens": 1}
    told: list[Json] = [
        {"type": "message_start", "message": {**whole, "content": [], "stop_reason": None, "usage": usage}},
        {"type": "ping"},
    ]
    for index, block in enumerate(whole["content"]):
        if block["type"] == "text":
            begun: Json = {"type": "text", "text": ""}
            deltas = [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]
        elif block["type"] == "thinking":
            begun = {"type": "thinking", "thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"])]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        else:
            begun = {**block, "input": {}}
            deltas = [{"type": "input_json_delta", "partial_json": p} for p in pieces(json.dumps(block["input"]))]
        told.append({"type": "content_block_start", "index": index, "content_block": begun})
        told += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        told.append({"type": "content_block_stop", "index": index})
    end = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    spent = {"output_tokens": whole["usage"]["output_tokens"]}
    told += [{"type": "message_delta", "delta": end, "usage": spent}, {"type": "message_stop"}]
    for event in told:
        yield Event(event, event["type"])


def _google(whole: Json) -> Iterator[Event]:
    candidate = whole["candidates"][0]
    parts: list[Json] = []
    for part in candidate["content"]["parts"]:
        parts += [{**part, "text": piece} for piece in pieces(part["text"])] if "text" in part else [part]
    asked = {**whole["usageMetadata"], "candidatesTokenCount": 1}
    for part in parts:
        said = {"content": {"role": "model", "parts": [part]}, "index": 0}
        yield Event({**whole, "candidates": [said], "usageMetadata": asked})
    last = {"content": {"role": "model", "parts": []}, "finishReason": candidate["finishReason"], "index": 0}
    yield Event({**whole, "candidates": [last]})
