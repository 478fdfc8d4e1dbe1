"""A provider that is away: its circuit opens, other models are asked, and each tenant has a key and a circuit."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from shared.domain.errors import AuthFailed
from shared.domain.models.exchange import Ask, ModelFailed
from shared.domain.models.names import Provider
from tests.integration.llm.calls import Waits, every_stream, settings_for
from tests.integration.llm.dialects import KEY, OPENAI_CHAT, Dialect
from tests.integration.llm.wire import Reply, WireServer, wire_server
from worker.llm.gateway import ModelGateway, Patience

AWAY = Reply({"error": {"message": "down"}}, 503)


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def server() -> Iterator[WireServer]:
    with wire_server() as running:
        yield running


def gateway(server: WireServer, dialect: Dialect, clock: Clock | None = None, **given: Any) -> ModelGateway:
    settings = settings_for(dialect, server, max_attempts=1)
    return ModelGateway(settings, patience=Patience(settings, Waits(), lambda: 0.5), clock=clock or Clock(), **given)


def saying(dialect: Dialect, text: str) -> Reply:
    return Reply(dialect.reply(text, None))


async def asked(model: ModelGateway, tenant: str = "a", *, fallbacks: tuple[str, ...] = (), name: str = "") -> Any:
    try:
        reply = await model.plan(Ask("job-1", "hello", name, tenant_id=tenant, fallback_models=fallbacks), [])
    except ModelFailed as failure:
        return failure.error
    return reply


def test_after_five_failures_a_tenant_is_refused_at_once_and_another_is_not(server: WireServer) -> None:
    server.script(AWAY)
    clock = Clock()
    model = gateway(server, OPENAI_CHAT, clock)

    async def scenario() -> None:
        for _ in range(5):
            assert (await asked(model)).code == "transient"
        refused = await asked(model)
        assert "asked again in 60 s" in refused.message
        assert len(server.requests) == 5
        await asked(model, "b")
        assert len(server.requests) == 6
        clock.now = 61.0
        server.script(saying(OPENAI_CHAT, "back"))
        assert [(await asked(model)).text for _ in range(3)] == ["back"] * 3
        await model.aclose()

    asyncio.run(scenario())


@pytest.mark.parametrize("status", [401, 400, 429])
def test_a_provider_that_answers_is_not_away(server: WireServer, status: int) -> None:
    server.script(Reply({"error": {"message": "no"}}, status))
    model = gateway(server, OPENAI_CHAT)

    async def scenario() -> None:
        for _ in range(8):
            await asked(model)
        await model.aclose()

    asyncio.run(scenario())

    assert len(server.requests) == 8


def test_the_next_model_is_asked_and_its_name_is_recorded(server: WireServer) -> None:
    server.script(AWAY, Reply({"error": {"message": "no such model"}}, 404), saying(OPENAI_CHAT, "hi"))
    model = gateway(server, OPENAI_CHAT)

    async def scenario() -> Any:
        reply = await asked(model, fallbacks=("openai:second", "openai:third", "openai:fourth"))
        await model.aclose()
        return reply

    reply = asyncio.run(scenario())

    assert (reply.text, reply.call.model, reply.call.attempts) == ("hi", "openai:third", 3)
    assert [request.body["model"] for request in server.requests] == ["gpt-4o", "second", "third"]


def test_without_a_provider_the_rules_can_be_the_last_resort(server: WireServer) -> None:
    server.script(AWAY)
    model = gateway(server, OPENAI_CHAT)

    async def scenario() -> Any:
        reply = await asked(model, fallbacks=("offline",))
        await model.aclose()
        return reply

    assert asyncio.run(scenario()).call.model == "offline"


@every_stream
def test_a_tenants_own_key_is_sent_and_no_others(server: WireServer, dialect: Dialect) -> None:
    server.script(saying(dialect, "hi"))
    own = {"a": "sk-tenant-a-0123", "b": "sk-tenant-b-0123"}

    async def key_of(tenant: str, provider: Provider) -> str | None:
        return own.get(tenant)

    model = gateway(server, dialect, keys=key_of)

    async def scenario() -> None:
        for tenant in ("a", "b", "c", "a"):
            await asked(model, tenant)
        await model.aclose()

    asyncio.run(scenario())

    name, form = dialect.auth
    sent = [request.headers[name] for request in server.requests]
    assert sent == [form.replace(KEY, key) for key in (own["a"], own["b"], KEY, own["a"])]


def test_a_tenants_key_that_is_refused_or_cannot_be_had_is_not_told(server: WireServer) -> None:
    server.script(Reply({"error": {"message": "no, sk-tenant-a-0123!"}}, 401))

    async def key_of(tenant: str, provider: Provider) -> str | None:
        if tenant == "locked":
            raise AuthFailed("the secret cannot be opened")
        return "sk-tenant-a-0123"

    model = gateway(server, OPENAI_CHAT, keys=key_of)

    async def scenario() -> Any:
        found = [await asked(model), await asked(model, "locked")]
        await model.aclose()
        return found

    refused, locked = asyncio.run(scenario())

    assert (refused.code, locked.code) == ("auth", "auth")
    assert "sk-tenant" not in refused.message
    assert len(server.requests) == 1
