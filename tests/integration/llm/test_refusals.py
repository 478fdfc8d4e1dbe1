"""A server that refuses a part of a request is asked again without that part, once, and it is remembered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest

from planq.shared.agentic.models.adaptations import Adaptation
from planq.shared.agentic.models.exchange import (
    Ask,
    ChatMessage,
    Findings,
    ModelFailed,
    ModelReply,
    ToolCallRequest,
    TurnForm,
)
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.platform.errors import DatabaseUnavailable
from planq.worker.models.gateway import ModelGateway, TryLimits
from planq.worker.models.settings import ModelSettings
from tests.integration.llm.calls import PLAN, RESULTS, TOOLS, Waits, ask_for, settings_for, warm
from tests.integration.llm.dialects import ANTHROPIC, GOOGLE, KEY, OPENAI_CHAT, OPENAI_RESPONSES, Dialect
from tests.integration.llm.wire import Reply, WireServer

Json = dict[str, Any]
Rule = Callable[[Json], str | None]
"""Returns the words in which a server refuses a request, None for one that it takes."""


class Refusing(WireServer):
    """Refuses what its rules forbid, and gives the scripted reply otherwise."""

    def __init__(self, *rules: Rule, status: int = 400, secret: str = "") -> None:
        super().__init__()
        self._rules = rules
        self._status = status
        self._secret = secret
        self.refused: list[str] = []

    def next_reply(self, asked: Any) -> Reply:
        for rule in self._rules:
            if words := rule(asked):
                self.refused.append(words)
                return Reply(
                    {"error": {"message": words + self._secret, "type": "invalid_request_error"}}, self._status
                )
        return super().next_reply(asked)


@dataclass
class Stored:
    """What all processes share; `is_away` is a database that does not answer."""

    rows: dict[tuple[str, str], dict[Adaptation, str]] = field(default_factory=dict)
    is_away: bool = False

    async def of(self, base_url: str, model: str) -> frozenset[Adaptation]:
        if self.is_away:
            raise DatabaseUnavailable("the database is away")
        return frozenset(self.rows.get((base_url, model), ()))

    async def learn(self, base_url: str, model: str, adaptation: Adaptation, refusal: str) -> None:
        if self.is_away:
            raise DatabaseUnavailable("the database is away")
        self.rows.setdefault((base_url, model), {})[adaptation] = refusal


def no_forced_tool(asked: Json) -> str | None:
    forced = asked.get("tool_choice") not in (None, "auto", "none", {"type": "auto"})
    return "Thinking mode does not support this tool_choice" if forced else None


def no_max_completion_tokens(asked: Json) -> str | None:
    return "Unrecognized request argument: max_completion_tokens" if "max_completion_tokens" in asked else None


def no_max_tokens(asked: Json) -> str | None:
    words = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
    return words if "max_tokens" in asked else None


def no_stream_options(asked: Json) -> str | None:
    return "stream_options: Extra inputs are not permitted" if "stream_options" in asked else None


def no_temperature(asked: Json) -> str | None:
    return "`temperature` is deprecated for this model." if "temperature" in asked else None


def no_system(asked: Json) -> str | None:
    has_system = any(message["role"] == "system" for message in asked["messages"])
    return "System role not supported" if has_system else None


def no_refs(asked: Json) -> str | None:
    return "$ref is not supported" if "$ref" in str(asked.get("tools")) else None


def no_tools(asked: Json) -> str | None:
    return "m does not support tools" if asked.get("tools") else None


def no_response_format(asked: Json) -> str | None:
    return "This response_format type is unavailable now" if "response_format" in asked else None


def no_user_after_tool(asked: Json) -> str | None:
    roles = [message["role"] for message in asked["messages"]]
    return "Unexpected role 'user' after role 'tool'" if ("tool", "user") in pairwise(roles) else None


async def planned(
    settings: ModelSettings, dialect: Dialect, times: int = 1, stored: Stored | None = None, ask: Ask | None = None
) -> Sequence[ModelReply]:
    gateway = ModelGateway(settings, patience=TryLimits(settings, Waits()), adaptations=stored)
    try:
        return [await gateway.plan(ask or ask_for(dialect), TOOLS) for _ in range(times)]
    finally:
        await gateway.aclose()


def run_plans(server: WireServer, dialect: Dialect, times: int = 1, **options: Any) -> Sequence[ModelReply]:
    server.script(Reply(dialect.reply("", PLAN)))
    settings = settings_for(dialect, server, of_models=warm(0.5))
    return asyncio.run(planned(settings, dialect, times, **options))


CASES: Mapping[Rule, Adaptation] = {
    no_forced_tool: Adaptation.UNFORCED_TOOL,
    no_max_completion_tokens: Adaptation.MAX_TOKENS,
    no_stream_options: Adaptation.NO_STREAM_OPTIONS,
    no_temperature: Adaptation.NO_TEMPERATURE,
    no_system: Adaptation.SYSTEM_AS_USER,
}


@pytest.mark.parametrize("rule", CASES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("status", [400, 422, 500])
def test_a_refused_part_is_left_out_once_and_for_all_processes(rule: Rule, status: int) -> None:
    server, stored = Refusing(rule, status=status), Stored()
    try:
        replies = run_plans(server, OPENAI_CHAT, times=2, stored=stored)
        others = run_plans(server, OPENAI_CHAT, stored=stored)
    finally:
        server.close()

    assert [call.arguments for reply in (*replies, *others) for call in reply.tool_calls] == [PLAN] * 3
    assert len(server.refused) == 1, "asked again once, and never so again, in the next process either"
    assert stored.rows == {(f"{server.url}/v1/", "gpt-4o"): {CASES[rule]: stored.rows and server_words(stored)}}
    assert server.refused[0] in server_words(stored)


def server_words(stored: Stored) -> str:
    ((words,),) = [list(row.values()) for row in stored.rows.values()]
    return words


@pytest.mark.parametrize("dialect", [OPENAI_CHAT, OPENAI_RESPONSES, ANTHROPIC], ids=repr)
def test_a_tool_that_may_not_be_forced_is_offered(dialect: Dialect) -> None:
    server = Refusing(no_forced_tool)
    try:
        (reply,) = run_plans(server, dialect)
    finally:
        server.close()

    assert [call.arguments for call in reply.tool_calls] == [PLAN]
    first, second = (dialect.read(request.body) for request in server.requests)
    assert first.choice == dialect.forced
    assert second.choice in ("auto", None)
    assert first.tools == second.tools == ["__planning__"]


def test_google_is_asked_without_a_forced_tool() -> None:
    def refuse(asked: Json) -> str | None:
        mode = asked.get("toolConfig", {}).get("functionCallingConfig", {}).get("mode")
        return "Unsupported field: functionCallingConfig" if mode == "ANY" else None

    server = Refusing(refuse)
    try:
        (reply,) = run_plans(server, GOOGLE)
    finally:
        server.close()

    assert [call.arguments for call in reply.tool_calls] == [PLAN]
    assert len(server.requests) == 2


def test_several_refusals_are_answered_one_after_the_other() -> None:
    server, stored = Refusing(no_system, no_forced_tool, no_max_completion_tokens, no_temperature), Stored()
    try:
        (reply,) = run_plans(server, OPENAI_CHAT, stored=stored)
    finally:
        server.close()

    assert [call.arguments for call in reply.tool_calls] == [PLAN]
    (learned,) = stored.rows.values()
    assert set(learned) == {
        Adaptation.SYSTEM_AS_USER,
        Adaptation.UNFORCED_TOOL,
        Adaptation.MAX_TOKENS,
        Adaptation.NO_TEMPERATURE,
    }
    last = server.requests[-1].body
    assert last["messages"][0]["role"] == "user"
    assert last["messages"][0]["content"].startswith("Be brief.")
    assert "max_tokens" in last


def test_a_server_that_takes_neither_name_of_the_limit_ends_the_call() -> None:
    server, stored = Refusing(no_max_completion_tokens, no_max_tokens), Stored()
    try:
        with pytest.raises(ModelFailed) as caught:
            run_plans(server, OPENAI_CHAT, stored=stored)
    finally:
        server.close()

    assert caught.value.error.code == "model_refused"
    assert "max_completion_tokens" in caught.value.error.message
    assert stored.rows == {}, "only what has helped is remembered"


def test_another_model_and_another_server_are_asked_as_ever() -> None:
    server, other, stored = Refusing(no_forced_tool), Refusing(no_forced_tool), Stored()
    try:
        run_plans(server, OPENAI_CHAT, stored=stored)
        run_plans(server, replace(OPENAI_CHAT, model="openai:gpt-4.1"), stored=stored)
        run_plans(other, OPENAI_CHAT, stored=stored)
    finally:
        server.close()
        other.close()

    assert (len(server.refused), len(other.refused)) == (2, 1)


def test_a_database_that_is_away_stops_no_call() -> None:
    server = Refusing(no_forced_tool)
    try:
        replies = run_plans(server, OPENAI_CHAT, times=2, stored=Stored(is_away=True))
    finally:
        server.close()

    assert len(replies) == 2
    assert len(server.refused) == 1, "the process remembers it meanwhile"


def test_no_key_is_stored_with_a_refusal() -> None:
    server, stored = Refusing(no_forced_tool, secret=f" (key {KEY})"), Stored()
    try:
        run_plans(server, OPENAI_CHAT, stored=stored)
    finally:
        server.close()

    assert KEY not in server_words(stored)
    assert "[API key]" in server_words(stored)


def test_a_refusal_that_nothing_changes_is_asked_once() -> None:
    server = Refusing(lambda _: "the word tool_choice is not supported in any way")
    try:
        with pytest.raises(ModelFailed) as caught:
            run_plans(server, OPENAI_CHAT)
    finally:
        server.close()

    assert caught.value.error.code == "model_refused"
    assert len(server.requests) == 2, "once as ever, once without forcing"


REFERRING = ToolDefinition(
    name="find",
    description="Find.",
    input_schema={
        "type": "object",
        "properties": {"filter": {"$ref": "#/$defs/filter"}},
        "$defs": {
            "filter": {
                "type": "object",
                "properties": {"word": {"type": "string"}, "also": {"$ref": "#/$defs/filter"}},
            }
        },
    },
    output_schema={"type": "object"},
)


def turned(server: WireServer, tools: Sequence[ToolDefinition], transcript: Sequence[ChatMessage] = ()) -> ModelReply:
    async def run() -> ModelReply:
        gateway = ModelGateway(settings_for(OPENAI_CHAT, server))
        try:
            return await gateway.turn(ask_for(OPENAI_CHAT), tools, transcript, TurnForm.REACT)
        finally:
            await gateway.aclose()

    return asyncio.run(run())


def test_references_of_schemas_are_replaced_by_what_they_refer_to() -> None:
    server = Refusing(no_refs)
    server.script(Reply(OPENAI_CHAT.reply("Done.", None)))
    try:
        assert turned(server, [REFERRING]).text == "Done."
    finally:
        server.close()

    (tool,) = server.requests[-1].body["tools"]
    schema = tool["function"]["parameters"]
    assert "$defs" not in schema
    assert schema["properties"]["filter"]["properties"]["word"] == {"type": "string"}
    assert schema["properties"]["filter"]["properties"]["also"]["properties"]["word"] == {"type": "string"}


def test_a_reply_comes_between_results_and_the_user() -> None:
    server = Refusing(no_user_after_tool)
    server.script(Reply(OPENAI_CHAT.reply("Done.", None)))
    done = [
        ChatMessage("assistant", "", [ToolCallRequest("calculate", {"expression": "1"}, "c1")]),
        ChatMessage("tool", "1", call_id="c1", name="calculate"),
        ChatMessage("user", "Go on."),
    ]
    try:
        assert turned(server, TOOLS, done).text == "Done."
    finally:
        server.close()

    assert [message["role"] for message in server.requests[-1].body["messages"]][-3:] == ["tool", "assistant", "user"]


def test_a_model_without_tools_is_told_of_them_in_words() -> None:
    server = Refusing(no_tools)
    try:
        (reply,) = run_plans(server, replace(OPENAI_CHAT, reply=lambda *_: OPENAI_CHAT.reply("It is 4.", None)))
    finally:
        server.close()

    assert reply.text == "It is 4."
    body = server.requests[-1].body
    assert "tools" not in body
    assert "tool_choice" not in body
    assert "__planning__" in body["messages"][0]["content"]


def test_a_model_without_tools_reads_earlier_calls_as_texts() -> None:
    server = Refusing(no_tools)
    server.script(Reply(OPENAI_CHAT.reply("Done.", None)))
    done = [
        ChatMessage("assistant", "", [ToolCallRequest("calculate", {"expression": "1"}, "c1")]),
        ChatMessage("tool", "1", call_id="c1", name="calculate"),
    ]
    try:
        assert turned(server, TOOLS, done).text == "Done."
    finally:
        server.close()

    *_, call, result = server.requests[-1].body["messages"]
    assert (call["role"], result["role"]) == ("assistant", "user")
    assert '<tool_call>\n{"name": "calculate", "arguments": {"expression": "1"}}\n</tool_call>' in call["content"]
    assert "Result of calculate" in result["content"]


def test_a_server_without_schemas_is_never_sent_one_again() -> None:
    server, stored = Refusing(no_response_format), Stored()
    server.script(Reply(OPENAI_CHAT.reply('{"a": 1}', None)))

    async def run() -> Sequence[ModelReply]:
        gateway = ModelGateway(settings_for(OPENAI_CHAT, server), adaptations=stored)
        schemas = [
            {"type": "object", "properties": {name: {"type": "integer"}}, "required": [name]} for name in ("a", "b")
        ]
        try:
            return [
                await gateway.respond(replace(ask_for(OPENAI_CHAT), answer_schema=schema), Findings())
                for schema in schemas
            ]
        finally:
            await gateway.aclose()

    try:
        replies = asyncio.run(run())
    finally:
        server.close()

    assert [reply.text for reply in replies] == ['{"a": 1}'] * 2
    assert len(server.refused) == 1
    (learned,) = stored.rows.values()
    assert set(learned) == {Adaptation.SCHEMA_IN_WORDS}


def test_a_conversation_has_no_neighbours_of_one_role(server: WireServer) -> None:
    server.script(Reply(OPENAI_CHAT.reply("It is 4.", None)))
    history = [
        ChatMessage("user", "Hello"),
        ChatMessage("user", "Are you there?"),
        ChatMessage("assistant", "Yes."),
        ChatMessage("assistant", "How can I help?"),
    ]

    async def run() -> None:
        gateway = ModelGateway(settings_for(OPENAI_CHAT, server))
        await gateway.respond(replace(ask_for(OPENAI_CHAT), history=history), RESULTS)
        await gateway.aclose()

    asyncio.run(run())

    messages = server.requests[0].body["messages"]
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
    assert messages[1]["content"] == "Hello\n\nAre you there?"
    assert messages[2]["content"] == "Yes.\n\nHow can I help?"
    assert messages[3]["content"].startswith("What is 2+2?\n\n## Results")
