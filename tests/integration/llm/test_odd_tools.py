"""Tools whose properties or schemas a provider refuses are called all the same, with their own names."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from planq.shared.agentic.models.exchange import ChatMessage, ModelReply, ToolCallRequest, TurnForm
from planq.shared.agentic.plan.interpret import Calls, interpret
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.worker.models.gateway import ModelGateway
from tests.integration.llm.calls import ask_for, settings_for
from tests.integration.llm.dialects import ANTHROPIC, OPENAI_CHAT, Dialect
from tests.integration.llm.turns import calling, conversation, offered
from tests.integration.llm.wire import Reply, WireServer

ODD = ToolDefinition(
    name="list.users",
    description="List users.",
    input_schema={
        "type": "object",
        "properties": {"$top": {"type": "integer"}, "filter[name]": {"type": "string"}, "имя": {"type": "string"}},
        "required": ["$top"],
        "oneOf": [{"required": ["filter[name]"]}, {"required": ["имя"]}],
    },
    output_schema={"type": "object"},
)
OWN = {"$top": 3, "filter[name]": "Ann"}
SENT = {"top": 3, "filter_name": "Ann"}


class Strict(WireServer):
    """Refuses properties' names, and alternatives at the top of a schema, as Anthropic does."""

    def next_reply(self, asked: Any) -> Reply:
        for tool in asked.get("tools", ()):
            schema = tool["input_schema"] if "input_schema" in tool else tool["function"]["parameters"]
            for name in schema.get("properties", {}):
                if not re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", name):
                    words = "Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'"
                    return Reply({"type": "error", "error": {"type": "invalid_request_error", "message": words}}, 400)
            if {"oneOf", "allOf", "anyOf"} & set(schema):
                words = "input_schema does not support oneOf, allOf, or anyOf at the top level"
                return Reply({"type": "error", "error": {"type": "invalid_request_error", "message": words}}, 400)
        return super().next_reply(asked)


def turns(server: WireServer, dialect: Dialect, transcripts: Sequence[Sequence[ChatMessage]]) -> Sequence[ModelReply]:
    async def run() -> Sequence[ModelReply]:
        gateway = ModelGateway(settings_for(dialect, server))
        try:
            return [await gateway.turn(ask_for(dialect), [ODD], said, TurnForm.REACT) for said in transcripts]
        finally:
            await gateway.aclose()

    return asyncio.run(run())


@pytest.mark.parametrize(("dialect", "refused"), [(ANTHROPIC, 0), (OPENAI_CHAT, 1)], ids=repr)
def test_a_tool_with_odd_properties_is_called_by_their_own_names(dialect: Dialect, refused: int) -> None:
    server = Strict()
    server.script(Reply(calling(dialect, "", ("list_users", SENT))))
    called = [
        ChatMessage("assistant", "", [ToolCallRequest("list.users", OWN, "call_9")]),
        ChatMessage("tool", "none", call_id="call_9", name="list.users"),
    ]
    try:
        replies = turns(server, dialect, [(), called])
    finally:
        server.close()

    for reply in replies:
        ((name, arguments),) = [(call.name, call.arguments) for call in reply.tool_calls]
        assert (name, arguments) == ("list.users", OWN)
    assert len(server.requests) == 2 + refused
    body = server.requests[-1].body
    schema: Mapping[str, Any] = offered(dialect, body)["list_users"]
    assert set(schema["properties"]) == {"top", "filter_name", "argument"}
    assert schema["required"] == ["top"]
    assert [call[2] for said in conversation(dialect, body) for call in said.calls] == [SENT]


@pytest.mark.parametrize("words", [None, "{}", "I plan:\n```json\n{}\n```"], ids=["call", "text", "fence"])
def test_a_plan_names_odd_properties_as_the_tool_does(words: str | None) -> None:
    server = Strict()
    plan = {"type": "tool_calls", "reasoning": "r", "calls": [{"tool_name": "list.users", "arguments": SENT}]}
    said = (
        ANTHROPIC.reply("", plan) if words is None else ANTHROPIC.reply(words.replace("{}", json.dumps(plan)), None)
    )
    server.script(Reply(said))

    async def run() -> ModelReply:
        gateway = ModelGateway(settings_for(ANTHROPIC, server))
        try:
            return await gateway.plan(ask_for(ANTHROPIC), [ODD])
        finally:
            await gateway.aclose()

    try:
        reply = asyncio.run(run())
    finally:
        server.close()

    found = interpret(reply.text, reply.tool_calls)
    assert isinstance(found, Calls)
    assert [(call.tool_name, call.arguments) for call in found.plan.calls] == [("list.users", OWN)]


def test_a_plan_as_text_in_a_turn_has_the_names_of_the_tool() -> None:
    server = Strict()
    plan = {"type": "tool_calls", "reasoning": "r", "calls": [{"tool_name": "list_users", "arguments": SENT}]}
    server.script(Reply(ANTHROPIC.reply(json.dumps(plan), None)))
    try:
        (reply,) = turns(server, ANTHROPIC, [()])
    finally:
        server.close()

    assert json.loads(reply.text)["calls"] == [{"tool_name": "list.users", "arguments": OWN}]
