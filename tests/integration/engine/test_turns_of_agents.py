"""A turn of an agent over the real engine: what its model is sent and may do, what stands in its conversation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from planq.shared.agentic.agents.checks import NamedAgent
from planq.shared.kernel.states import Strategy
from planq.worker.tools.declare import tool
from tests.integration.engine.test_conversations import note, says
from tests.integration.engine.test_turns_for_models import calling, gateway, of_tenant, saying
from tests.integration.llm.dialects import OPENAI_CHAT
from tests.integration.llm.strict import StrictServer, strict_server
from tests.support.agents import keep_agent
from tests.support.conversations import Thread
from tests.support.harness import Harness, make_tool

KEEPER = {"name": "keeper", "description": "You keep minutes.", "tools": ["note"]}


@tool(name="other", effect="read")
async def other(text: str) -> dict[str, str]:
    """Do something else."""
    return {"text": text}


@pytest.fixture
def provider() -> Iterator[StrictServer]:
    with strict_server() as server:
        yield server


async def turn_of(harness: Harness, thread: Thread, document: Mapping[str, Any], text: str, **skills: str) -> Any:
    """Store an agent and let it have a turn; returns the turn's job."""
    version = await keep_agent(harness, document, **skills)
    given = {"agent": document["name"], "agent_version": version, "skill_versions": [1] * len(skills)}
    named = NamedAgent(document["name"])
    received = await says(
        harness, thread, text, submission=given, named_agent=named, strategy=Strategy.REACT, model=OPENAI_CHAT.model
    )
    await harness.drain()
    job, _ = await harness.requests.job("default", received.job_id)
    return job


def test_the_prompt_of_a_turn_is_skills_agent_history_message_and_its_tools_are_the_agents(
    play: Any, provider: StrictServer
) -> None:
    provider.script(saying("hello"), calling("note", text="a"), saying("noted"))

    async def scenario(harness: Harness) -> None:
        await of_tenant(harness, prompt="You are the voice of ACME.")
        thread = Thread(harness.database)
        await says(harness, thread, "good morning", strategy=Strategy.REACT, model=OPENAI_CHAT.model)
        await harness.drain()
        job = await turn_of(harness, thread, KEEPER, "note it", style="Short words.", tone="Be kind.")
        await harness.model.aclose()
        assert (job["status"], job["answer"]) == ("completed", "noted")

    play(scenario, gateway(provider), [make_tool(note), make_tool(other)])

    assert provider.refused == []
    before, body = provider.requests[0].body, provider.requests[-1].body
    assert {tool["function"]["name"] for tool in before["tools"]} == {"note", "other"}
    assert [tool["function"]["name"] for tool in body["tools"]] == ["note"]
    system = "\n".join(message["content"] for message in body["messages"] if message["role"] == "system")
    order = ["These rules come first", "the voice of ACME", "Short words.", "Be kind.", "You keep minutes."]
    assert [system.index(text) for text in order] == sorted(system.index(text) for text in order)
    spoken = [message for message in body["messages"] if message["role"] != "system"]
    assert [message.get("content") for message in spoken][:3] == ["good morning", "hello", "note it"]


def test_the_object_of_a_turn_goes_to_its_chained_tool_and_both_stand_in_the_conversation(
    play: Any, provider: StrictServer
) -> None:
    provider.script(saying(json.dumps({"text": "Ana moved"})))
    document = {
        "name": "extractor",
        "description": "You extract.",
        "structured_output": True,
        "properties": {"text": {"type": "string"}},
        "required": ["text"],
        "chained_tool": "note",
    }

    async def scenario(harness: Harness) -> Any:
        thread = Thread(harness.database)
        job = await turn_of(harness, thread, document, "Ana moved to Lisbon")
        await harness.model.aclose()
        return job, await thread.rows(job["conversation_id"])

    job, rows = play(scenario, gateway(provider), [make_tool(note)])

    assert job["output"] == {"text": "Ana moved"}
    kinds = [kind for kind, _ in rows]
    assert kinds == ["inbound", "tool_call", "tool_response", "outbound"]
    call, response = rows[1][1], rows[2][1]
    assert (call["name"], call["arguments"], call["id"]) == ("note", {"text": "Ana moved"}, response["id"])
    assert json.loads(rows[3][1]) == {"text": "Ana moved"}


BOSS = {"name": "boss", "description": "You let others work.", "tools": ["ask_agent", "cp__call_agents"]}
HELPER = {"name": "helper", "description": "You check."}


@pytest.mark.parametrize("tool", ["ask_agent", "cp__call_agents"])
@pytest.mark.parametrize(
    ("form", "seen"),
    [
        (None, ["check it"]),
        ("none", ["check it"]),
        ("full", ["good morning", "hello", "check it"]),
        ("summary", ["- user: good morning\n- assistant: hello\n\ncheck it"]),
    ],
)
def test_an_agent_that_a_turn_asks_sees_as_much_of_the_conversation_as_it_is_asked_with(
    play: Any, provider: StrictServer, tool: str, form: str | None, seen: list[str]
) -> None:
    history = {} if form is None else {"history": form}
    asked: dict[str, Any] = {"agent_name": "helper", "input_text": "check it", **history}
    if tool != "ask_agent":
        asked = {"agents": [{"agent_id": "helper", "prompt": "check it", **history}]}
    provider.script(saying("hello"), calling(tool, **asked), saying("checked"), saying("all is well"))

    async def scenario(harness: Harness) -> Any:
        thread = Thread(harness.database)
        await says(harness, thread, "good morning", strategy=Strategy.REACT, model=OPENAI_CHAT.model)
        await harness.drain()
        await keep_agent(harness, HELPER)
        job = await turn_of(harness, thread, BOSS, "is it right?")
        await harness.model.aclose()
        return job

    job = play(scenario, gateway(provider), agents=True)

    assert (job["status"], job["answer"]) == ("completed", "all is well")
    assert provider.refused == []
    body = provider.requests[2].body
    spoken = [message["content"] for message in body["messages"] if message["role"] != "system"]
    assert len(spoken) == len(seen)
    assert all(told.endswith(end) for told, end in zip(spoken, seen, strict=True)), spoken
    system = "\n".join(message["content"] for message in body["messages"] if message["role"] == "system")
    assert "You check." in system


@pytest.mark.parametrize(
    ("tools", "offered"),
    [
        (None, {"note"}),
        (["*"], {"note"}),
        (["*", "ask_agent", "cp__agent_orchestrate"], {"note", "ask_agent", "cp__agent_orchestrate"}),
        (["note", "cp__call_agents"], {"note", "cp__call_agents"}),
    ],
)
def test_a_turn_without_an_agent_may_let_agents_work_where_its_tenant_lists_the_tool_by_name(
    play: Any, provider: StrictServer, tools: list[str] | None, offered: set[str]
) -> None:
    provider.script(saying("hello"))

    async def scenario(harness: Harness) -> None:
        await of_tenant(harness, tools=tools)
        await says(harness, Thread(harness.database), "hi", strategy=Strategy.REACT, model=OPENAI_CHAT.model)
        await harness.drain()
        await harness.model.aclose()

    play(scenario, gateway(provider), [make_tool(note)], agents=True)

    (request,) = provider.requests
    assert {tool["function"]["name"] for tool in request.body["tools"]} == offered
