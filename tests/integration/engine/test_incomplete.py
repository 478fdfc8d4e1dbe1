"""Answers that a model did not finish: the outcomes of their jobs, and plans that were cut off, which do nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from planq.shared.agentic.models.ending import cut_off_by
from planq.shared.agentic.models.exchange import ToolCallRequest
from planq.shared.kernel.states import Effect, Strategy
from planq.worker.models.gateway import ModelGateway
from planq.worker.tools.declare import tool
from tests.integration.engine.test_outages import document
from tests.integration.llm.calls import settings_for
from tests.integration.llm.dialects import ANTHROPIC
from tests.integration.llm.wire import Reply, WireServer
from tests.support.agents import rows, submit_agent
from tests.support.harness import Harness, ScriptedModel, make_tool

Play = Callable[..., Any]
CUT = cut_off_by("length", "length")
HALF = "The answer is forty-"


@tool(effect=Effect.UNSAFE)
async def pay(to: str) -> dict[str, str]:
    """Pay."""
    return {"paid": to}


def run(play: Play, model: ScriptedModel, **fields: Any) -> dict[str, Any]:
    async def scenario(harness: Harness) -> dict[str, Any]:
        job_id = await harness.submit(callback_url="http://192.0.2.1/", **fields)
        await harness.drain()
        assert await harness.worker_registry.broken_invariants() == []
        (told,) = await rows(
            harness, "SELECT data FROM events WHERE job_id = %s ORDER BY sequence DESC LIMIT 1", job_id
        )
        (sent,) = await rows(harness, "SELECT body FROM deliveries WHERE job_id = %s", job_id)
        return {**await document(harness, job_id), "told": told["data"], "sent": json.loads(sent["body"])["data"]}

    found: dict[str, Any] = play(scenario, model, [make_tool(pay)])
    return found


@pytest.mark.parametrize("strategy", [Strategy.PLAN, Strategy.REACT])
def test_a_job_whose_answer_was_cut_off_says_so_wherever_it_is_seen(play: Play, strategy: Strategy) -> None:
    job = run(play, ScriptedModel(HALF, HALF, turns=[HALF], cut=CUT), strategy=strategy)

    assert (job["status"], job["outcome"], job["answer"]) == ("completed", "incomplete", HALF)
    assert (job["incomplete"]["reason"], job["incomplete"]["finish_reason"]) == ("length", "length")
    assert "PLANQ_MODEL_MAX_OUTPUT_TOKENS" in job["incomplete"]["message"]
    assert (job["told"]["outcome"], job["told"]["code"]) == ("incomplete", "answer_incomplete")
    assert job["sent"]["outcome"] == "incomplete"
    assert job["sent"]["incomplete"] == {"reason": "length", "finish_reason": "length"}


@pytest.mark.parametrize("strategy", [Strategy.PLAN, Strategy.REACT, Strategy.LOOP])
def test_no_call_of_a_reply_that_was_cut_off_is_made(play: Play, strategy: Strategy) -> None:
    call = ToolCallRequest("pay", {"to": "Ada"}, "c1")
    plan = {"type": "tool_calls", "reasoning": "r", "calls": [{"tool_name": "pay", "arguments": {"to": "Ada"}}]}
    said = [call] if strategy is Strategy.REACT else [ToolCallRequest("__planning__", plan, "p1")]

    job = run(play, ScriptedModel(said, "Nothing was paid.", turns=[said], cut=CUT), strategy=strategy)

    assert job["steps"] == []
    seen = json.dumps([job["error"], job["plan_errors"]])
    assert "the reply was cut off" in seen
    assert "limit of output tokens" in seen


def test_a_whole_answer_is_not_incomplete(play: Play) -> None:
    job = run(play, ScriptedModel("It is 42."))

    assert (job["outcome"], job["incomplete"], job["error"]) == ("succeeded", None, None)
    assert job["sent"]["incomplete"] is None


def test_an_agents_answer_that_was_cut_off_is_incomplete(play: Play) -> None:
    async def scenario(harness: Harness) -> dict[str, Any]:
        job_id = await submit_agent(harness, {"name": "writer", "instructions": "Write."})
        await harness.drain()
        return await document(harness, job_id)

    job = play(scenario, ScriptedModel(HALF, HALF, turns=[HALF], cut=CUT), [])

    assert (job["status"], job["outcome"], job["answer"]) == ("completed", "incomplete", HALF)


def test_an_agent_may_fail_for_it_and_keeps_the_text(play: Play) -> None:
    assert CUT is not None

    async def scenario(harness: Harness) -> dict[str, Any]:
        job_id = await submit_agent(harness, {"name": "writer", "instructions": "Write.", "on_incomplete": "fail"})
        await harness.drain()
        assert await harness.worker_registry.broken_invariants() == []
        return await document(harness, job_id)

    model = ScriptedModel(HALF, HALF, turns=[HALF], cut=replace(CUT, is_failure=True))
    job = play(scenario, model, [])

    assert {ask.on_incomplete for ask, _ in model.asked} == {"fail"}
    assert (job["status"], job["outcome"], job["answer"]) == ("failed", "failed", HALF)
    assert (job["error"]["code"], job["error"]["details"]["reason"]) == ("answer_incomplete", "length")


def test_a_jobs_choice_wins(play: Play) -> None:
    async def scenario(harness: Harness) -> None:
        await rows(harness, 'UPDATE tenants SET config = \'{"on_incomplete": "continue"}\' RETURNING id')
        await harness.submit(on_incomplete="fail")
        await harness.drain()

    model = ScriptedModel("It is 42.")
    play(scenario, model, [])

    assert {ask.on_incomplete for ask, _ in model.asked} == {"fail"}


def test_a_tenants_choice_counts_where_nobody_else_has_one(play: Play) -> None:
    async def scenario(harness: Harness) -> None:
        await rows(harness, 'UPDATE tenants SET config = \'{"on_incomplete": "continue"}\' RETURNING id')
        await harness.submit()
        await harness.drain()

    model = ScriptedModel("It is 42.")
    play(scenario, model, [])

    assert {ask.on_incomplete for ask, _ in model.asked} == {"continue"}


@tool(effect=Effect.READ)
async def note(text: str) -> dict[str, str]:
    """Note."""
    return {"noted": text}


OBJECT = {"properties": {"text": {"type": "string"}}, "required": ["text"], "structured_output": True}


@pytest.mark.parametrize("is_failure", [False, True], ids=["accept", "fail"])
def test_the_mark_stays_when_a_chained_tool_follows(play: Play, is_failure: bool) -> None:
    assert CUT is not None

    async def scenario(harness: Harness) -> dict[str, Any]:
        job_id = await submit_agent(
            harness, {"name": "writer", "instructions": "Write.", "chained_tool": "note", **OBJECT}
        )
        await harness.drain()
        assert await harness.worker_registry.broken_invariants() == []
        return await document(harness, job_id)

    model = ScriptedModel('{"text": "a"}', '{"text": "a"}', cut=replace(CUT, is_failure=is_failure))
    job = play(scenario, model, [make_tool(note)])

    assert json.loads(job["answer"]) == {"text": "a"}
    if is_failure:
        assert (job["status"], job["error"]["code"], job["steps"]) == ("failed", "answer_incomplete", [])
    else:
        assert (job["outcome"], job["incomplete"]["reason"]) == ("incomplete", "length")
        assert [step["status"] for step in job["steps"]] == ["succeeded"]


@pytest.mark.parametrize("is_failure", [False, True], ids=["accept", "fail"])
@pytest.mark.parametrize("agent", [None, {"name": "writer", "instructions": "Write.", "tools": [{"name": "note"}]}])
def test_the_mark_stays_when_calls_follow_the_last_round(
    play: Play, agent: dict[str, Any] | None, is_failure: bool
) -> None:
    assert CUT is not None
    fields = {"strategy": Strategy.REACT, "loop": {"after": [{"tool": "note", "with": {"text": "done"}}]}}

    async def scenario(harness: Harness) -> dict[str, Any]:
        if agent is None:
            job_id = await harness.submit(**fields)
        else:
            job_id = await submit_agent(harness, agent, **fields)
        await harness.drain()
        assert await harness.worker_registry.broken_invariants() == []
        return await document(harness, job_id)

    model = ScriptedModel(HALF, turns=[HALF], cut=replace(CUT, is_failure=is_failure))
    job = play(scenario, model, [make_tool(note)])

    assert (job["answer"], len(job["steps"])) == (HALF, 0 if is_failure else 1)
    assert job["outcome"] == ("failed" if is_failure else "incomplete")


@pytest.mark.parametrize(
    ("limits", "answer", "requests"),
    [
        ({"max_model_calls": 2}, HALF + "two.", 2),
        ({"max_model_calls": 1}, HALF, 1),
        ({"max_tokens": 4_000}, HALF, 1),
    ],
)
def test_a_call_that_continues_reserves_of_the_budget(
    play: Play, limits: dict[str, int], answer: str, requests: int
) -> None:
    def reply(text: str, reason: str) -> Reply:
        body = deepcopy(ANTHROPIC.reply(text, None))
        body["stop_reason"] = reason
        body["usage"] = {"input_tokens": 3_500, "output_tokens": 300}
        return Reply(body)

    async def scenario(harness: Harness) -> dict[str, Any]:
        job_id = await submit_agent(
            harness,
            {"name": "writer", "instructions": "Write."},
            model=ANTHROPIC.model,
            on_incomplete="continue",
            budget=limits,
        )
        await harness.drain()
        await gateway.aclose()
        return await document(harness, job_id)

    server = WireServer()
    try:
        server.script(reply(HALF, "max_tokens"), reply("two.", "end_turn"))
        gateway = ModelGateway(settings_for(ANTHROPIC, server))
        job = play(scenario, gateway, [])
    finally:
        server.close()

    assert (job["answer"], len(server.requests)) == (answer, requests)
    assert job["outcome"] == ("succeeded" if requests == 2 else "incomplete")
    assert job["model_calls"] == 1
