"""What a model is sent in a conversation: the prompt stack, the turns before, and never a call without its result."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from planq.shared.agentic.models.names import Provider
from planq.shared.agentic.turns.messages import Policy
from planq.shared.kernel.states import Strategy
from planq.shared.subjects.tenants.config import TenantConfig
from planq.shared.subjects.tenants.directory import TenantStore
from planq.worker.models.gateway import ModelGateway
from planq.worker.models.settings import ModelSettings
from planq.worker.tools.declare import tool
from tests.integration.engine.test_conversations import note, says
from tests.integration.llm.dialects import KEY, OPENAI_CHAT
from tests.integration.llm.strict import StrictServer, defects, strict_server
from tests.integration.llm.wire import Reply
from tests.support.conversations import Thread
from tests.support.harness import Harness, ScriptedModel, make_tool


@pytest.fixture
def provider() -> Iterator[StrictServer]:
    with strict_server() as server:
        yield server


def gateway(server: StrictServer) -> ModelGateway:
    url = {Provider.OPENAI: f"{server.url}/v1"}
    return ModelGateway(
        ModelSettings(OPENAI_CHAT.model, url, {Provider.OPENAI: KEY}, openai_api="chat", stream=False)
    )


def calling(name: str, **arguments: Any) -> Reply:
    body = OPENAI_CHAT.reply("", arguments)
    body["choices"][0]["message"]["tool_calls"][0]["function"]["name"] = name
    return Reply(body)


def saying(text: str) -> Reply:
    return Reply(OPENAI_CHAT.reply(text, None))


async def of_tenant(harness: Harness, **config: Any) -> None:
    store = TenantStore(harness.database)
    await store.change("default", config=TenantConfig(**config))


def test_a_turn_is_sent_the_stack_of_prompts_and_the_turns_before(play: Any, provider: StrictServer) -> None:
    provider.script(calling("note", text="a"), saying("noted"), saying("you are welcome"))

    async def scenario(harness: Harness) -> None:
        await of_tenant(harness, prompt="You are the voice of ACME.")
        thread = Thread(harness.database)
        for text in ("note it", "thanks"):
            await says(harness, thread, text, strategy=Strategy.REACT, model=OPENAI_CHAT.model)
            await harness.drain()
        await harness.model.aclose()

    play(scenario, gateway(provider), [make_tool(note)])

    assert provider.refused == []
    messages = provider.requests[-1].body["messages"]
    system = [message["content"] for message in messages if message["role"] == "system"]
    told = "\n".join(system)
    assert told.index("These rules come first") < told.index("Be accurate") < told.index("You are the voice of ACME.")
    spoken = [message for message in messages if message["role"] != "system"]
    assert [message["role"] for message in spoken] == ["user", "assistant", "tool", "assistant", "user"]
    assert [message.get("content") for message in spoken][::2] == ["note it", '{"text": "<a>"}', "thanks"]


@pytest.mark.parametrize("strategy", [Strategy.REACT, Strategy.GUIDED])
def test_after_an_interrupted_call_a_strict_provider_takes_the_next_request(
    play: Any, provider: StrictServer, strategy: Strategy
) -> None:
    called, go_on = asyncio.Event(), asyncio.Event()
    plans = [saying('{"steps": [{"step_number": 1, "description": "Pay"}]}')] if strategy is Strategy.GUIDED else []
    provider.script(*plans, calling("pay", amount=5), *plans, saying("stopped"))

    @tool(name="pay", effect="unsafe")
    async def pay(amount: int) -> dict[str, int]:
        """Pay an amount."""
        called.set()
        await go_on.wait()
        return {"paid": amount}

    async def scenario(harness: Harness) -> Any:
        thread = Thread(harness.database)
        given = {"strategy": strategy, "model": OPENAI_CHAT.model}
        first = await says(harness, thread, "pay", **given)
        paying = asyncio.ensure_future(harness.drain())
        await called.wait()
        second = await says(harness, thread, "stop", policy=Policy.INTERRUPT, **given)
        harness.dispatcher.interrupt(first.job_id)
        harness.dispatcher.in_flight.cut_off(harness.dispatcher.in_flight.attempts())
        go_on.set()
        await paying
        await harness.drain()
        await harness.model.aclose()
        job, _ = await harness.requests.job("default", second.job_id)
        return job["status"], job["answer"]

    assert play(scenario, gateway(provider), [make_tool(pay)]) == ("completed", "stopped")
    assert provider.refused == []
    (outcome,) = [message for message in provider.requests[-1].body["messages"] if message["role"] == "tool"]
    assert json.loads(outcome["content"]) in ({"paid": 5}, {"error": {"code": "outcome_unknown"}})


def test_the_strict_provider_refuses_what_others_refuse() -> None:
    user, call = {"role": "user"}, {"role": "assistant", "tool_calls": [{"id": "1"}]}
    result = {"role": "tool", "tool_call_id": "1"}
    assert list(defects([{"role": "system"}, user, call, result, user])) == []
    for dangling in (
        [user, call],
        [user, call, user],
        [user, result],
        [call, result],
        [user, call, result, call, result],
    ):
        assert list(defects(dangling))


def test_a_history_longer_than_its_budget_loses_its_oldest_messages(play: Any) -> None:
    async def scenario(harness: Harness) -> Any:
        await of_tenant(harness, history_tokens=5)
        thread = Thread(harness.database)
        for text in ("one two three", "four five six", "seven"):
            await says(harness, thread, text)
            await harness.drain()
        return [(message.role, message.content) for message in harness.model.asked[-1][0].history]

    kept = play(scenario, ScriptedModel("ok"))

    assert kept == [("assistant", "ok"), ("user", "four five six"), ("assistant", "ok")]


def test_a_message_that_comes_while_the_guide_is_written_is_told_to_the_first_turn(play: Any) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    class Planner(ScriptedModel):
        async def guide(self, *given: Any, **more: Any) -> Any:
            asked.set()
            await go_on.wait()
            return await super().guide(*given, **more)

    async def scenario(harness: Harness) -> Any:
        thread = Thread(harness.database)
        await says(harness, thread, "note it", strategy=Strategy.GUIDED)
        working = asyncio.ensure_future(harness.drain())
        await asked.wait()
        merged = await says(harness, thread, "twice, please", strategy=Strategy.GUIDED, policy=Policy.MERGE)
        go_on.set()
        await working
        await harness.drain()
        return merged.outcome, [(message.role, message.content) for message in harness.model.told[0][0]]

    model = Planner(guided='{"steps": [{"step_number": 1, "description": "Note"}]}', turns=["done"])

    assert play(scenario, model, [make_tool(note)]) == ("merged", [("user", "twice, please")])
