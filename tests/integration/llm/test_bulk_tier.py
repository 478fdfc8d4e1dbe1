"""Calls of bulk jobs ask for the cheaper tier once, and for the default tier where that does not answer."""

from __future__ import annotations

import asyncio
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from planq.shared.agentic.models.adaptations import Adaptation
from planq.shared.agentic.models.call_settings import CallSettings
from planq.shared.agentic.models.exchange import ModelReply
from planq.shared.agentic.models.names import parse_model_name
from planq.worker.models.adapting import KnownAdaptations
from planq.worker.models.gateway import ModelGateway, TryLimits
from planq.worker.models.providers import Providers
from planq.worker.models.settings import ModelSettings
from tests.integration.llm.calls import TOOLS, Waits, ask_for, settings_for
from tests.integration.llm.dialects import ANTHROPIC, OPENAI_CHAT, OPENAI_RESPONSES, Dialect
from tests.integration.llm.test_refusals import Stored
from tests.integration.llm.wire import Reply, WireServer

openai = pytest.mark.parametrize("dialect", [OPENAI_CHAT, OPENAI_CHAT.whole, OPENAI_RESPONSES], ids=repr)
ANSWER = "It is four."
NO_ROOM = Reply(
    {"error": {"message": "Resource Unavailable", "type": "server_error", "code": "resource_unavailable"}},
    429,
    {"retry-after": "3600"},
)


def asked(
    models: ModelSettings, dialect: Dialect, times: int = 1, *, stored: Stored | None = None, **ask: Any
) -> list[ModelReply]:
    async def run() -> list[ModelReply]:
        gateway = ModelGateway(models, patience=TryLimits(models, Waits()), adaptations=stored)
        try:
            question = replace(ask_for(dialect), **{"is_bulk": True, **ask})
            return [await gateway.plan(question, TOOLS) for _ in range(times)]
        finally:
            await gateway.aclose()

    return asyncio.run(run())


def tiers(server: WireServer) -> list[str | None]:
    return [request.body.get("service_tier") for request in server.requests]


@openai
def test_a_bulk_call_asks_for_the_cheaper_tier_and_pays_its_price(server: WireServer, dialect: Dialect) -> None:
    dialect = replace(dialect, model=f"{dialect.model.partition(':')[0]}:gpt-5-mini")
    replies = [deepcopy(dialect.reply(ANSWER, None)) | {"model": "gpt-5-mini"} for _ in range(2)]
    replies[0]["service_tier"] = "flex"
    server.script(*[Reply(one, whole=True) for one in replies])
    settings = settings_for(dialect, server, bulk_tier="flex", stream=False)

    (cheap,) = asked(settings, dialect)
    (plain,) = asked(settings, dialect, is_bulk=False)

    assert tiers(server) == ["flex", None]
    assert float(cheap.call.cost_usd or 0) == pytest.approx(float(plain.call.cost_usd or 0) / 2)
    assert plain.call.cost_usd


@openai
def test_without_capacity_the_default_tier_answers_at_once(server: WireServer, dialect: Dialect) -> None:
    server.script(NO_ROOM, Reply(dialect.reply(ANSWER, None)), NO_ROOM, Reply(dialect.reply(ANSWER, None)))
    stored = Stored()

    replies = asked(settings_for(dialect, server, bulk_tier="flex"), dialect, 2, stored=stored)

    assert [reply.text for reply in replies] == [ANSWER, ANSWER]
    assert tiers(server) == ["flex", None, "flex", None], "what has no room now may have some later"
    assert [reply.call.attempts for reply in replies] == [1, 1]
    assert stored.rows == {}


def test_a_model_without_the_tier_is_not_asked_for_it_again(server: WireServer) -> None:
    words = "Invalid service_tier argument: flex is not available for this model"
    refused = Reply({"error": {"message": words, "code": "invalid_request_error"}}, 400)
    server.script(refused, *[Reply(OPENAI_CHAT.reply(ANSWER, None))] * 2)
    stored = Stored()

    asked(settings_for(OPENAI_CHAT, server, bulk_tier="flex"), OPENAI_CHAT, 2, stored=stored)

    assert tiers(server) == ["flex", None, None]
    assert [set(found) for found in stored.rows.values()] == [{Adaptation.NO_SERVICE_TIER}]


def test_a_try_after_a_failure_uses_the_default_tier(server: WireServer) -> None:
    away = Reply({"error": {"message": "overloaded"}}, 503)
    server.script(away, Reply(OPENAI_CHAT.reply(ANSWER, None)))

    (reply,) = asked(settings_for(OPENAI_CHAT, server, bulk_tier="flex"), OPENAI_CHAT)

    assert reply.call.attempts == 2
    assert tiers(server) == ["flex", None]


def test_a_tier_that_is_set_stays_and_a_rate_limit_is_one(server: WireServer) -> None:
    limited = Reply({"error": {"message": "slow down", "code": "rate_limit_exceeded"}}, 429)
    server.script(limited, Reply(OPENAI_CHAT.reply(ANSWER, None)))

    (reply,) = asked(settings_for(OPENAI_CHAT, server, bulk_tier="flex"), OPENAI_CHAT)
    asked(
        settings_for(OPENAI_CHAT, server, bulk_tier="flex"),
        OPENAI_CHAT,
        settings=CallSettings(service_tier="default"),
    )

    assert reply.call.attempts == 2
    assert tiers(server) == ["flex", None, "default"]


@pytest.mark.parametrize(("dialect", "tier"), [(OPENAI_CHAT, "auto"), (ANTHROPIC, "flex")])
def test_other_servers_are_not_asked_for_it(server: WireServer, dialect: Dialect, tier: str) -> None:
    server.script(Reply(dialect.reply(ANSWER, None)))

    asked(settings_for(dialect, server, bulk_tier=tier), dialect)

    assert tiers(server) == [None]


@pytest.mark.parametrize(
    ("url", "has_flex"),
    [(None, True), ("https://api.openai.com/v1", True), ("https://api.openai.com.example/v1", False)],
)
def test_openai_itself_is_asked_for_it_by_default(url: str | None, has_flex: bool) -> None:
    settings = ModelSettings(base_urls={} if url is None else {"openai": url})
    providers = Providers(settings, KnownAdaptations(None, lambda: 0.0))

    assert providers._has_flex(parse_model_name("openai:gpt-5-mini")) is has_flex
    assert not providers._has_flex(parse_model_name("anthropic:claude-haiku-4-5"))
