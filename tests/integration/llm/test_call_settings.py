"""Settings of a model and of an agent on the wire of every format."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from planq.shared.agentic.models.call_settings import AgentCallSettings, CallSettings
from planq.shared.agentic.models.exchange import Ask
from planq.worker.models.gateway import ModelGateway
from planq.worker.models.settings import ModelSettings
from tests.integration.llm.calls import PLAN, TOOLS, ask_for, settings_for
from tests.integration.llm.dialects import ANTHROPIC, GOOGLE, KEY, OPENAI_CHAT, OPENAI_RESPONSES, Dialect
from tests.integration.llm.wire import Reply, WireRequest, WireServer

OF_MODEL = CallSettings(top_p=0.9, seed=7, max_tokens=300, extra_headers={"X-Title": "planq", "X-Of": "model"})
OF_AGENT = AgentCallSettings(
    top_p=0.5, stop=["END"], max_tokens=5_000, extra_body={"top_k": 3}, extra_headers={"X-Of": "agent"}
)


def planned(server: WireServer, dialect: Dialect, settings: ModelSettings, ask: Ask) -> WireRequest:
    server.script(Reply(dialect.reply("", PLAN)))

    async def run() -> None:
        gateway = ModelGateway(settings)
        await gateway.plan(ask, TOOLS)
        await gateway.aclose()

    asyncio.run(run())
    (request,) = server.requests
    return request


SENT: dict[str, dict[str, Any]] = {
    "openai-chat": {"top_p": 0.5, "seed": 7, "stop": ["END"], "max_completion_tokens": 300, "top_k": 3},
    "openai-responses": {"top_p": 0.5, "max_output_tokens": 300, "top_k": 3},
    "anthropic": {"top_p": 0.5, "stop_sequences": ["END"], "max_tokens": 300, "top_k": 3},
}


@pytest.mark.parametrize("dialect", [OPENAI_CHAT, OPENAI_RESPONSES, ANTHROPIC], ids=repr)
def test_an_agents_settings_win_over_those_of_its_model(server: WireServer, dialect: Dialect) -> None:
    place = dialect.model.partition(":")[0]
    settings = settings_for(dialect, server, of_models={f"{place}:*": OF_MODEL})

    request = planned(server, dialect, settings, replace(ask_for(dialect), settings=OF_AGENT))

    sent = SENT[dialect.name]
    assert {name: request.body.get(name) for name in sent} == sent
    assert (request.headers["x-title"], request.headers["x-of"]) == ("planq", "agent")
    header, value = dialect.auth
    assert request.headers.get(header, request.headers.get("x-api-key")) in (value, KEY)


def test_google_gets_them_in_its_own_form(server: WireServer) -> None:
    settings = settings_for(GOOGLE, server, of_models={"google:*": OF_MODEL})

    request = planned(server, GOOGLE, settings, replace(ask_for(GOOGLE), settings=OF_AGENT))

    config = request.body["generationConfig"]
    assert (config["topP"], config["seed"], config["stopSequences"], config["maxOutputTokens"]) == (
        0.5,
        7,
        ["END"],
        300,
    )


def test_without_any_only_the_limit_is_sent(server: WireServer) -> None:
    request = planned(server, OPENAI_CHAT, settings_for(OPENAI_CHAT, server), ask_for(OPENAI_CHAT))

    assert set(request.body) == {
        "max_completion_tokens",
        "messages",
        "model",
        "stream",
        "stream_options",
        "tool_choice",
        "tools",
    }


def test_thinking_is_sent_to_a_model_that_thinks(server: WireServer) -> None:
    dialect = replace(OPENAI_RESPONSES, model="openai:gpt-5")
    settings = replace(settings_for(dialect, server), default_model=dialect.model)

    request = planned(
        server, dialect, settings, replace(ask_for(dialect), settings=AgentCallSettings(thinking="high"))
    )

    assert request.body["reasoning"]["effort"] == "high"
