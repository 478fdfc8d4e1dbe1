"""A provider that is away: its circuit opens, other models are asked, and each tenant has a key and a circuit."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from planq.shared.agentic.models.exchange import Ask, ModelFailed
from planq.shared.agentic.models.names import Provider
from planq.shared.platform.errors import AuthFailed
from planq.worker.models.gateway import ModelGateway, TryLimits
from tests.integration.llm.calls import Waits, every_stream, settings_for
from tests.integration.llm.dialects import KEY, OPENAI_CHAT, Dialect
from tests.integration.llm.wire import Reply, WireServer, wire_server
from tests.support.tiers import some

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


def gateway(
    server: WireServer, dialect: Dialect, clock: Clock | None = None, *, max_attempts: int = 1, **given: Any
) -> ModelGateway:
    settings = settings_for(dialect, server, max_attempts=max_attempts)
    return ModelGateway(settings, patience=TryLimits(settings, Waits(), lambda: 0.5), clock=clock or Clock(), **given)


def saying(dialect: Dialect, text: str) -> Reply:
    return Reply(dialect.reply(text, None))


async def asked(
    model: ModelGateway, tenant: str = "a", *, fallbacks: tuple[str, ...] = (), name: str = "", job: str = "job-1"
) -> Any:
    try:
        reply = await model.plan(Ask(job, "hello", name, tenant_id=tenant, fallback_models=fallbacks), [])
    except ModelFailed as failure:
        return failure.error
    return reply


def test_after_five_jobs_a_model_is_probed_and_other_models_and_tenants_are_asked(server: WireServer) -> None:
    server.script(AWAY)
    clock = Clock()
    model = gateway(server, OPENAI_CHAT, clock)

    async def scenario() -> None:
        for job in range(5):
            assert (await asked(model, job=str(job))).code == "transient"
        refused = await asked(model, job="5")
        assert "down" in refused.message, "the provider's words"
        assert len(server.requests) == 5
        await asked(model, "b")
        await asked(model, name="openai:another")
        assert len(server.requests) == 7
        clock.now = 2.0
        server.script(saying(OPENAI_CHAT, "back"))
        assert [(await asked(model, job=str(job))).text for job in range(3)] == ["back"] * 3
        await model.aclose()

    asyncio.run(scenario())


NO_CHOICES = {"id": "x", "object": "chat.completion", "choices": []}
UNREADABLE = [Reply("<html>gateway</html>"), Reply(NO_CHOICES, whole=True)]


@pytest.mark.parametrize("poison", some([AWAY, *UNREADABLE], AWAY), ids=["500", "html", "no choices"])
def test_one_poisoned_job_closes_the_way_to_nobody(server: WireServer, poison: Reply) -> None:
    model = gateway(server, OPENAI_CHAT, max_attempts=4)

    async def scenario() -> None:
        for healthy in range(20):
            server.script(poison)
            failed = await asked(model, job="poison")
            assert "several jobs" not in failed.message
            server.script(saying(OPENAI_CHAT, "hi"))
            if healthy % 7 == 0:
                assert (await asked(model, job=f"healthy-{healthy}")).text == "hi"
        await model.aclose()

    asyncio.run(scenario())


def test_replies_that_cannot_be_read_open_nothing(server: WireServer) -> None:
    server.script(UNREADABLE[0])
    model = gateway(server, OPENAI_CHAT)

    async def scenario() -> None:
        for job in range(8):
            await asked(model, job=str(job))
        await model.aclose()

    asyncio.run(scenario())

    assert len(server.requests) == 8


def test_a_job_whose_circuit_opens_between_its_tries_tells_what_it_was_answered_itself(server: WireServer) -> None:
    server.script(*(Reply({"error": {"message": f"down, {number}"}}, 503) for number in range(20)))
    model = gateway(server, OPENAI_CHAT, max_attempts=3)

    async def scenario() -> Any:
        for job in range(4):
            await asked(model, job=str(job))
        error = await asked(model, job="4")
        await model.aclose()
        return error

    error = asyncio.run(scenario())

    assert "down, 12" in error.message
    assert "several jobs" not in error.message
    assert len(server.requests) == 13


@pytest.mark.parametrize("status", [401, 400, 429])
def test_a_provider_that_answers_is_not_away(server: WireServer, status: int) -> None:
    server.script(Reply({"error": {"message": "no"}}, status))
    model = gateway(server, OPENAI_CHAT)

    async def scenario() -> None:
        for job in range(8):
            await asked(model, job=str(job))
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
