"""Replies of the four formats that call tools and sign what was thought, and the reading of what goes back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tests.integration.llm.dialects import Dialect, Json

SIGNATURE = "c2lnbmVk"
Native = tuple[str, Json | str]
"""A function's name, and its arguments; a text for what is no JSON."""


@dataclass(frozen=True)
class WireMessage:
    """A message of a conversation on the wire, whatever its format: texts, calls and results in their order.

    A call is (id, name, arguments), a result (id, content). `signed` says whether the signature stands in it.
    """

    role: str
    texts: tuple[str, ...] = ()
    calls: tuple[tuple[str, str, Any], ...] = ()
    results: tuple[tuple[str, str], ...] = ()
    signed: bool = False


def reasoning(dialect: Dialect) -> Dialect:
    """The format with a model that reasons, where the other one does not sign its thoughts."""
    return replace(dialect, model="openai:gpt-5") if dialect.name == "openai-responses" else dialect


def calling(dialect: Dialect, text: str, *calls: Native) -> Json:
    """Return a reply that says `text` and calls functions."""
    reply = dialect.reply(text, None)
    made = [(f"call_{number}", name, arguments) for number, (name, arguments) in enumerate(calls)]
    _CALLERS[dialect.name](reply, made)
    return reply


def _chat_calls(reply: Json, calls: list[tuple[str, str, Any]]) -> None:
    choice = reply["choices"][0]
    choice["finish_reason"] = "tool_calls"
    choice["message"]["reasoning_content"] = SIGNATURE
    choice["message"]["tool_calls"] = [
        {"id": name, "type": "function", "function": {"name": function, "arguments": _text(arguments)}}
        for name, function, arguments in calls
    ]


def _responses_calls(reply: Json, calls: list[tuple[str, str, Any]]) -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": SIGNATURE}
    made = [
        {
            "type": "function_call",
            "id": f"fc_{name}",
            "call_id": name,
            "name": function,
            "arguments": _text(arguments),
        }
        for name, function, arguments in calls
    ]
    reply["output"] = [thought, *reply["output"], *({**one, "status": "completed"} for one in made)]


def _anthropic_calls(reply: Json, calls: list[tuple[str, str, Any]]) -> None:
    thought = {"type": "thinking", "thinking": "Well.", "signature": SIGNATURE}
    made = [
        {"type": "tool_use", "id": name, "name": function, "input": arguments} for name, function, arguments in calls
    ]
    reply["content"] = [thought, *reply["content"], *made]
    reply["stop_reason"] = "tool_use"


def _google_calls(reply: Json, calls: list[tuple[str, str, Any]]) -> None:
    made: list[Json] = [{"functionCall": {"name": function, "args": arguments}} for _, function, arguments in calls]
    made[0]["thoughtSignature"] = SIGNATURE
    reply["candidates"][0]["content"]["parts"] += made


_CALLERS = {
    "openai-chat": _chat_calls,
    "openai-responses": _responses_calls,
    "anthropic": _anthropic_calls,
    "google": _google_calls,
}


def _text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def conversation(dialect: Dialect, body: Json) -> list[WireMessage]:
    """Return the messages of a request without the system's, consecutive ones of one role taken together."""
    told: list[WireMessage] = []
    for said in _READERS[dialect.name](body):
        if told and told[-1].role == said.role and said.role != "user":
            last = told.pop()
            said = WireMessage(
                said.role,
                last.texts + said.texts,
                last.calls + said.calls,
                last.results + said.results,
                last.signed or said.signed,
            )
        told.append(said)
    return told


def _chat_said(body: Json) -> list[WireMessage]:
    told = []
    for message in body["messages"]:
        if message["role"] == "system":
            continue
        if message["role"] == "tool":
            told.append(WireMessage("tool", results=((message["tool_call_id"], message["content"]),)))
            continue
        calls = tuple(
            (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
            for call in message.get("tool_calls", ())
        )
        content = message.get("content")
        texts = () if content is None else (content,)
        told.append(WireMessage(message["role"], texts, calls, signed=message.get("reasoning_content") == SIGNATURE))
    return told


def _responses_said(body: Json) -> list[WireMessage]:
    told = []
    for item in body["input"]:
        match item.get("type", "message"):
            case "function_call":
                call = (item["call_id"], item["name"], json.loads(item["arguments"]))
                told.append(WireMessage("assistant", calls=(call,)))
            case "function_call_output":
                told.append(WireMessage("tool", results=((item["call_id"], item["output"]),)))
            case "reasoning":
                told.append(WireMessage("assistant", signed=item["encrypted_content"] == SIGNATURE))
            case _ if item["role"] != "system":
                content = item["content"]
                texts = [content] if isinstance(content, str) else [part["text"] for part in content]
                told.append(WireMessage(item["role"], tuple(texts)))
    return told


def _anthropic_said(body: Json) -> list[WireMessage]:
    told = []
    for message in body["messages"]:
        for block in message["content"]:
            match block["type"]:
                case "tool_use":
                    told.append(WireMessage("assistant", calls=((block["id"], block["name"], block["input"]),)))
                case "tool_result":
                    content = "".join(part["text"] for part in block["content"])
                    told.append(WireMessage("tool", results=((block["tool_use_id"], content),)))
                case "thinking":
                    told.append(WireMessage(message["role"], signed=block["signature"] == SIGNATURE))
                case _:
                    told.append(WireMessage(message["role"], (block["text"],)))
    return told


def _google_said(body: Json) -> list[WireMessage]:
    told = []
    for content in body["contents"]:
        role = "assistant" if content["role"] == "model" else "user"
        for part in content["parts"]:
            signed = part.get("thoughtSignature") == SIGNATURE
            if "functionCall" in part:
                call = part["functionCall"]
                told.append(WireMessage(role, calls=((call["id"], call["name"], call["args"]),), signed=signed))
            elif "functionResponse" in part:
                result = part["functionResponse"]
                told.append(WireMessage("tool", results=((result["id"], result["response"]["return_value"]),)))
            else:
                told.append(WireMessage(role, (part["text"],), signed=signed))
    return told


_READERS = {
    "openai-chat": _chat_said,
    "openai-responses": _responses_said,
    "anthropic": _anthropic_said,
    "google": _google_said,
}


def offered(dialect: Dialect, body: Json) -> Mapping[str, Any]:
    """Return the functions of a request by name, each with its parameters."""
    if dialect.name == "google":
        declared = [one for tool in body.get("tools", ()) for one in tool["functionDeclarations"]]
        return {one["name"]: one["parameters_json_schema"] for one in declared}
    tools = [tool.get("function", tool) for tool in body.get("tools", ())]
    return {tool["name"]: tool.get("parameters", tool.get("input_schema")) for tool in tools}
