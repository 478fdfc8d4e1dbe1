"""Over the wire to a server that holds the model to the schema it was sent, as strict structured output does.

What the model would say is given; what comes back is as much of it as the schema lets pass. A schema that forbids
what planq needs then shows in the answer, which a server that pays no heed to schemas hides.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import jsonschema
import pytest

from planq.shared.agentic.models.exchange import Ask, ModelReply
from planq.shared.agentic.plan.interpret import decoded
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.worker.agents.planner import planner_ask
from planq.worker.models.gateway import ModelGateway
from tests.integration.llm.calls import settings_for
from tests.integration.llm.dialects import ANTHROPIC, GOOGLE, OPENAI_CHAT, OPENAI_RESPONSES, Dialect
from tests.integration.llm.test_structured import answer, ask_for, schema_sent
from tests.integration.llm.wire import Reply, WireServer

DIALECTS = [OPENAI_CHAT, OPENAI_RESPONSES, GOOGLE, ANTHROPIC]
every = pytest.mark.parametrize("dialect", DIALECTS, ids=repr)


class Enforcing(WireServer):
    """Answers with what the schema of the request lets pass of `wanted`."""

    def __init__(self, dialect: Dialect, wanted: dict[str, Any], *, in_call: bool = False) -> None:
        super().__init__()
        self._dialect = dialect
        self._wanted = wanted
        self._in_call = in_call

    def next_reply(self, asked: Any) -> Reply:
        """Return the answer; a strict schema that no strict mode takes is refused."""
        schema = _parameters(asked) if self._in_call else schema_sent(asked)
        if schema is None:
            return Reply(self._dialect.reply(json.dumps(self._wanted), None))
        if _is_strict(asked) and not _is_closed(schema):
            return Reply({"error": {"message": "Invalid schema: additionalProperties must be false"}}, status=400)
        said = enforced(schema, self._wanted, schema)
        return Reply(self._dialect.reply("", said) if self._in_call else self._dialect.reply(json.dumps(said), None))


def _parameters(asked: Any) -> Any:
    """Return the schema of the only tool of a request."""
    (tool,) = asked["tools"]
    if "functionDeclarations" in tool:
        (tool,) = tool["functionDeclarations"]
    tool = tool.get("function", tool)
    names = ("parameters", "input_schema", "parametersJsonSchema", "parameters_json_schema")
    return next(tool[name] for name in names if name in tool)


def _is_strict(asked: Any) -> bool:
    form = asked.get("response_format", {}).get("json_schema") or asked.get("text", {}).get("format") or {}
    return form.get("strict") is True


def _is_closed(schema: Any) -> bool:
    if isinstance(schema, list):
        return all(map(_is_closed, schema))
    if not isinstance(schema, dict):
        return True
    is_object = schema.get("type") in ("object", ["object", "null"])
    is_open = is_object and schema.get("additionalProperties") is not False
    return not is_open and all(map(_is_closed, schema.values()))


def enforced(schema: Any, wanted: Any, root: Mapping[str, Any]) -> Any:
    """Return what is left of `wanted` when it is said under `schema`: what is not listed is not said."""
    if schema is True or not isinstance(schema, dict):
        return wanted
    if "$ref" in schema:
        inner: Any = root
        for part in schema["$ref"].split("/")[1:]:
            inner = inner[part]
        return enforced(inner, wanted, root)
    for one in schema.get("anyOf", ()):
        said = enforced(one, wanted, root)
        if jsonschema.Draft202012Validator({**root, **one}).is_valid(said):
            return said
    if isinstance(wanted, dict) and "object" in schema.get("type", "object"):
        known, rest = schema.get("properties", {}), schema.get("additionalProperties", False)
        if not known and not rest and "type" not in schema:
            return wanted
        said = {name: enforced(known[name], wanted[name], root) for name in known if name in wanted}
        further = {name: enforced(rest, value, root) for name, value in wanted.items() if name not in known}
        return said if rest is False else {**said, **further}
    if isinstance(wanted, list):
        return [enforced(schema.get("items", True), item, root) for item in wanted]
    return wanted


OPEN = {
    "type": "object",
    "properties": {
        "rows": {"type": "array", "items": {"type": "object"}},
        "free": {"type": ["object", "null"]},
        "listed": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        "named": {"$ref": "#/$defs/any"},
    },
    "required": ["rows", "free", "listed", "named"],
    "$defs": {"any": {"type": "object", "description": "Whatever there is."}},
}
FULL = {"rows": [{"a": 1}, {"b": {"c": 2}}], "free": {"x": "y"}, "listed": {"a": 1}, "named": {"z": [1]}}


@every
def test_objects_that_list_nothing_come_back_full(dialect: Dialect) -> None:
    server = Enforcing(dialect, FULL)
    try:
        (reply,) = answer(settings_for(dialect, server), ask_for(dialect, OPEN))
    finally:
        server.close()

    assert json.loads(reply.text) == FULL


@every
def test_what_lists_all_it_has_stays_closed(dialect: Dialect) -> None:
    closed = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    server = Enforcing(dialect, {"a": 1, "b": 2})
    try:
        (reply,) = answer(settings_for(dialect, server), ask_for(dialect, closed))
    finally:
        server.close()

    assert json.loads(reply.text) == {"a": 1}
    assert [schema_sent(request.body) is not None for request in server.requests] == [True]


@every
def test_a_planner_can_give_agents_their_input_and_the_plan_its_bindings(dialect: Dialect) -> None:
    one = {"agent_id": "writer", "prompt": "Write", "with": {"topic": "tea", "deep": {"n": 1}}}
    plan = {
        "bindings": {"lang": "en"},
        "steps": [
            {"id": "a", "type": "agent", "status": "pending", "agent": one},
            {
                "id": "b",
                "type": "parallel",
                "status": "pending",
                "parallel": {"steps": [one], "bindings": {"k": [1]}},
            },
        ],
    }
    server = Enforcing(dialect, plan)
    asked = planner_ask("job-1", dialect.model, "Write about tea", {}, {"writer": {}}, 12)
    try:
        (reply,) = answer(settings_for(dialect, server), asked)
    finally:
        server.close()

    assert json.loads(reply.text) == plan


@every
def test_a_planned_call_keeps_arguments_that_no_schema_lists(dialect: Dialect) -> None:
    tool = ToolDefinition(
        name="keep",
        input_schema={"type": "object", "properties": {"fields": {"type": "object"}}},
        output_schema={"type": "object"},
    )
    bare = ToolDefinition(name="take", input_schema={"type": "object"}, output_schema={"type": "object"})
    wanted = {
        "type": "tool_calls",
        "reasoning": "so",
        "calls": [
            {"tool_name": "keep", "arguments": {"fields": {"a": 1}}},
            {"tool_name": "take", "arguments": {"x": {"y": 2}}},
        ],
    }
    server = Enforcing(dialect, wanted, in_call=True)
    try:
        reply = asyncio.run(_planned(dialect, server, [tool, bare]))
    finally:
        server.close()

    (call,) = reply.tool_calls
    assert decoded(call.arguments) == wanted


async def _planned(dialect: Dialect, server: WireServer, tools: list[ToolDefinition]) -> ModelReply:
    gateway = ModelGateway(settings_for(dialect, server))
    try:
        return await gateway.plan(Ask("job-1", "Keep it", dialect.model), tools)
    finally:
        await gateway.aclose()
