"""Structured answers over the wire: how each provider is held to a schema, and what happens where it cannot be."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from planq.shared.agentic.models.exchange import Ask, Findings, ModelReply, Repair
from planq.worker.models.gateway import ModelGateway, TryLimits
from planq.worker.models.settings import ModelSettings
from tests.integration.llm.calls import Waits, every_dialect, every_stream, settings_for, warm
from tests.integration.llm.dialects import ANTHROPIC, GOOGLE, OPENAI_CHAT, OPENAI_RESPONSES, Dialect
from tests.integration.llm.wire import Reply, WireServer

SCHEMA = {
    "type": "object",
    "properties": {"title": {"type": "string", "minLength": 3}, "count": {"type": "integer"}},
    "required": ["title", "count"],
}
ANSWER = '{"title": "Sums", "count": 2}'
FORM = "## Form of the answer"


def answer(settings: ModelSettings, *asks: Ask, findings: Findings | None = None) -> list[ModelReply]:
    async def run() -> list[ModelReply]:
        gateway = ModelGateway(settings, patience=TryLimits(settings, Waits(), lambda: 0.5))
        try:
            return [await gateway.respond(ask, findings or Findings(is_direct=True)) for ask in asks]
        finally:
            await gateway.aclose()

    return asyncio.run(run())


def ask_for(dialect: Dialect, schema: dict[str, Any] = SCHEMA, **changes: Any) -> Ask:
    asked = Ask("job-1", "Sum up", dialect.model, instructions=["Be brief."], answer_schema=schema)
    return replace(asked, **changes)


def schema_sent(body: Any) -> Any:
    """Return the schema by which a request holds the model, from whichever format it is in; None without one."""
    if "response_format" in body:
        return body["response_format"]["json_schema"]["schema"]
    if "format" in body.get("text", {}):
        return body["text"]["format"]["schema"]
    if "output_config" in body:
        return body["output_config"]["format"]["schema"]
    return body.get("generationConfig", {}).get("responseJsonSchema")


@every_dialect
def test_the_provider_itself_is_told_the_schema(dialect: Dialect, server: WireServer) -> None:
    server.script(Reply(dialect.reply(ANSWER, None)))

    (reply,) = answer(settings_for(dialect, server), ask_for(dialect))

    assert reply.text == ANSWER
    (request,) = server.requests
    assert set(schema_sent(request.body)["properties"]) == {"title", "count"}
    seen = dialect.read(request.body)
    assert seen.tools == []
    assert not any(FORM in text for text in seen.system)
    assert seen.messages == [("user", "Sum up")], "without findings, the conversation is asked as it is"
    assert reply.call.exchange is not None
    assert reply.call.exchange["request"]["answer_schema"] == SCHEMA


@pytest.mark.parametrize(
    ("dialect", "model", "schema"),
    [
        (ANTHROPIC, "anthropic:claude-behind-a-gateway", SCHEMA),
        (ANTHROPIC, ANTHROPIC.model, {"type": "object", "properties": {"open": {"type": "object"}}}),
        (ANTHROPIC, ANTHROPIC.model, {"type": "object", "properties": {"untyped": {}}}),
        (
            ANTHROPIC,
            ANTHROPIC.model,
            {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(40)}},
        ),
    ],
    ids=["a model without it", "an object that is open", "a value of any type", "more than it can compile"],
)
def test_what_the_provider_cannot_hold_is_said_in_words(
    dialect: Dialect, model: str, schema: dict[str, Any], server: WireServer
) -> None:
    server.script(Reply(dialect.reply(ANSWER, None)))

    answer(settings_for(dialect, server, default_model=model), ask_for(dialect, schema, model=model))

    (request,) = server.requests
    assert schema_sent(request.body) is None
    *_, form = dialect.read(request.body).system
    assert FORM in form
    assert f'"{next(iter(schema["properties"]))}"' in form


@every_stream
def test_a_server_that_refuses_the_schema_is_asked_in_words_from_then_on(
    dialect: Dialect, server: WireServer
) -> None:
    refusal = {
        "error": {"message": "Unknown parameter: json_schema is not supported", "type": "invalid_request_error"}
    }
    server.script(Reply(refusal, status=400), Reply(dialect.reply(ANSWER, None)))

    replies = answer(settings_for(dialect, server), ask_for(dialect), ask_for(dialect))

    assert [reply.text for reply in replies] == [ANSWER, ANSWER]
    assert [schema_sent(request.body) is None for request in server.requests] == [False, True, True]
    assert FORM in dialect.read(server.requests[1].body).system[-1]


@every_stream
def test_another_refusal_is_not_asked_twice(dialect: Dialect, server: WireServer) -> None:
    server.script(Reply({"error": {"message": "no credit", "type": "invalid_request_error"}}, status=400))

    with pytest.raises(Exception, match="no credit"):
        answer(settings_for(dialect, server), ask_for(dialect))

    assert len(server.requests) == 1


@every_stream
def test_a_repair_shows_the_answer_and_what_is_wrong_with_it(dialect: Dialect, server: WireServer) -> None:
    server.script(Reply(dialect.reply(ANSWER, None)))
    repair = Repair('{"title": "x"}', ["/title: expected minLength 3", "the object: required but missing: 'count'"])

    answer(settings_for(dialect, server), ask_for(dialect), findings=Findings(is_direct=True, repair=repair))

    (request,) = server.requests
    seen = dialect.read(request.body)
    assert [role for role, _ in seen.messages] == ["user", "assistant", "user"]
    assert seen.messages[1][1] == '{"title": "x"}'
    assert "- the object: required but missing: 'count'" in seen.messages[2][1]
    assert FORM in seen.system[-1], "the server may have paid no heed to the schema"
    assert schema_sent(request.body) is not None


OPTIONS = {
    OPENAI_CHAT: lambda body: (body["temperature"], body["max_completion_tokens"]),
    OPENAI_RESPONSES: lambda body: (body["temperature"], body["max_output_tokens"]),
    ANTHROPIC: lambda body: (body["temperature"], body["max_tokens"]),
    GOOGLE: lambda body: (body["generationConfig"]["temperature"], body["generationConfig"]["maxOutputTokens"]),
}


@pytest.mark.parametrize("dialect", OPTIONS, ids=repr)
def test_an_agents_options_win_over_the_workers_within_its_limit(dialect: Dialect, server: WireServer) -> None:
    server.script(Reply(dialect.reply(ANSWER, None)))
    settings = settings_for(dialect, server, of_models=warm(0.7), max_output_tokens=500)
    asks = [ask_for(dialect, temperature=0.0, max_tokens=most) for most in (100, 9_000)] + [ask_for(dialect)]

    answer(settings, *asks)

    assert [OPTIONS[dialect](request.body) for request in server.requests] == [(0, 100), (0, 500), (0.7, 500)]
