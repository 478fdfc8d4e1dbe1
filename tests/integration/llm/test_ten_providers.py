"""Ten providers against scripted servers: each through pydantic-ai's own provider and profile, at an address of ours.

The table of docs/models.md says what each can do; a test holds it equal to the profiles.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.models import Model

from planq.shared.agentic.models.exchange import ModelFailed, ModelReply
from planq.shared.agentic.models.names import ModelName, Provider, parse_model_name
from planq.worker.models.clients import Models
from planq.worker.models.gateway import ModelGateway
from planq.worker.models.settings import ModelSettings
from tests.integration.llm.calls import PLAN, RESULTS, TOOLS, ask_for
from tests.integration.llm.dialects import ANTHROPIC, GOOGLE, KEY, OPENAI_CHAT, OPENAI_RESPONSES, Dialect
from tests.integration.llm.wire import Reply, WireServer

MODELS: Mapping[str, Dialect] = {
    "openai-responses": replace(OPENAI_RESPONSES, model="gpt-5.2"),
    "anthropic": replace(ANTHROPIC, model="claude-haiku-4-5"),
    "google": replace(GOOGLE, model="gemini-2.5-flash"),
    "mistral": replace(OPENAI_CHAT, model="mistral-large-latest"),
    "deepseek": replace(OPENAI_CHAT, model="deepseek-chat"),
    "groq": replace(OPENAI_CHAT, model="llama-3.3-70b-versatile"),
    "xai": replace(OPENAI_CHAT, model="grok-4.3"),
    "openrouter": replace(
        OPENAI_CHAT,
        model="anthropic/claude-haiku-4.5",
        reply=lambda text, call: {**OPENAI_CHAT.reply(text, call), "provider": "Anthropic"},
    ),
    "ollama": replace(OPENAI_CHAT, model="qwen3:8b"),
    "vllm": replace(OPENAI_CHAT, model="Qwen/Qwen3-8B"),
}
each = pytest.mark.parametrize("provider", MODELS)
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
FORMS = ("json_schema", "output_", "responseJsonSchema", "responseSchema", "## Form of the answer")


def model_of(provider: str) -> ModelName:
    return parse_model_name(f"{provider}@here:{MODELS[provider].model}")


def settings_of(provider: str, server: WireServer, *, stream: bool = True) -> ModelSettings:
    place = f"{provider}@here"
    url = server.url + MODELS[provider].base_path
    return ModelSettings(
        model_of(provider).full,
        {place: url},
        {place: KEY},
        request_timeout=20,
        stream=stream,
    )


def asked(provider: str, settings: ModelSettings, schema: Mapping[str, Any] | None = None) -> ModelReply:
    ask = replace(ask_for(MODELS[provider]), model=model_of(provider).full, answer_schema=schema)

    async def run() -> ModelReply:
        gateway = ModelGateway(settings)
        try:
            if schema is not None:
                return await gateway.respond(ask, RESULTS)
            return await gateway.plan(ask, TOOLS)
        finally:
            await gateway.aclose()

    return asyncio.run(run())


@each
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_provider_plans_at_an_address_of_its_own(server: WireServer, provider: str, stream: bool) -> None:
    dialect = MODELS[provider]
    server.script(Reply(dialect.reply("", PLAN)))

    reply = asked(provider, settings_of(provider, server, stream=stream))

    assert [call.arguments for call in reply.tool_calls] == [PLAN]
    (request,) = server.requests
    header, value = dialect.auth
    assert request.headers.get(header, request.headers.get("x-api-key")) in (value, KEY)
    if dialect is not MODELS["google"]:
        assert bool(request.body.get("stream")) is stream
    assert dialect.read(request.body).tools == ["__planning__"]


@each
def test_a_provider_answers_in_a_form(server: WireServer, provider: str) -> None:
    server.script(Reply(MODELS[provider].reply('{"a": 1}', None)))

    reply = asked(provider, settings_of(provider, server), SCHEMA)

    assert reply.text == '{"a": 1}'
    (request,) = server.requests
    body = str(request.body)
    assert (
        "json_schema" in body or "output_" in body or "responseJsonSchema" in body or "responseSchema" in body
    ) or ("## Form of the answer" in body)


def row_of(name: ModelName) -> list[str]:
    """Return what pydantic-ai says of a model, as the table does."""
    place = name.place.partition("@")[0]
    models = Models(ModelSettings(api_keys={place: KEY}))

    async def made() -> Model:
        try:
            return models.model(parse_model_name(f"{place}:{name.model}"), None, frozenset(), is_stream=False)
        finally:
            await models.aclose()

    model = asyncio.run(made())
    profile = model.profile
    thinking = "yes" if profile.get("supports_thinking") else "no"
    kinds = ("image", "document", "audio_file", "video")
    parts = [kind.removesuffix("_file") for kind in kinds if profile.get(f"supports_{kind}_input", True)]
    return [
        "forced" if profile.get("supports_forced_tool_choice", True) else "offered",
        "yes",
        "always" if profile.get("thinking_always_enabled") else thinking,
        "schema" if profile.get("supports_json_schema_output", False) else "in words",
        "set" if profile.get("supports_cache") else "implicit",
        "no" if type(model).batch_create is Model.batch_create else "yes",
        ", ".join(parts),
    ]


def test_the_table_of_the_documentation_is_that_of_the_profiles() -> None:
    text = (Path(__file__).parents[3] / "docs/models.md").read_text("utf-8")
    rows = [
        [cell.strip(" `") for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("| `") and line.count("|") == 9 and ":" in line
    ]

    found = {row[0]: row[1:] for row in rows if row[0].split(":")[0] in MODELS}
    expected = {f"{name}:{dialect.model}": row_of(model_of(name)) for name, dialect in MODELS.items()}
    assert found == expected


def test_a_server_that_is_not_named_is_refused(server: WireServer) -> None:
    with pytest.raises(ModelFailed) as caught:
        asked("vllm", replace(settings_of("vllm", server), base_urls={}))

    assert caught.value.error.code == "model_refused"
    assert "PLANQ_MODEL_SERVERS" in caught.value.error.message


def test_each_server_gets_its_own_key() -> None:
    first, second = WireServer(), WireServer()
    try:
        for server in (first, second):
            server.script(Reply(OPENAI_CHAT.reply("", PLAN)))
        settings = ModelSettings(
            "openai@one:m",
            {"openai@one": f"{first.url}/v1", "openai@two": f"{second.url}/v1"},
            {"openai": "sk-of-openai", "openai@one": "sk-of-the-first", "openai@two": "sk-of-the-second"},
        )

        async def run() -> None:
            gateway = ModelGateway(settings)
            for name in ("openai@one:m", "openai@two:m"):
                await gateway.plan(replace(ask_for(OPENAI_CHAT), model=name), TOOLS)
            await gateway.aclose()

        asyncio.run(run())
    finally:
        first.close()
        second.close()

    assert [one.headers["authorization"] for one in first.requests] == ["Bearer sk-of-the-first"]
    assert [one.headers["authorization"] for one in second.requests] == ["Bearer sk-of-the-second"]


@pytest.mark.parametrize(
    "provider", sorted(set(Provider) - {Provider.BEDROCK, Provider.GOOGLE_CLOUD, Provider.AZURE})
)
def test_every_provider_is_made_from_a_key(provider: Provider) -> None:
    async def look() -> str:
        models = Models(ModelSettings(api_keys={provider.value: KEY}))
        try:
            model = models.model(parse_model_name(f"{provider}:openai/gpt-4o"), None, frozenset(), is_stream=True)
            return model.base_url or ""
        finally:
            await models.aclose()

    url = asyncio.run(look())
    assert url.startswith("http")
