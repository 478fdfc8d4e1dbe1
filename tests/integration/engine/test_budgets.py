"""The budget of a tree of jobs: what is granted, what is refused, and who is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from planq.shared.agentic.models.exchange import Ask, Findings, ModelReply, ToolCallRequest
from planq.shared.kernel.budget import Holder, Price, ReservationRequest
from planq.shared.kernel.states import Effect, JobStatus
from planq.shared.kernel.usage import ModelCall, Purpose
from planq.shared.kernel.wakes import Wake
from planq.worker.tools.declare import tool
from tests.support.agents import TalkingModel, keep_agent, look, rows, run_agent, saying, submit_agent
from tests.support.children import DelegatingTool
from tests.support.claiming import claim_stage
from tests.support.harness import Harness, make_tool

WRITER = {"name": "writer", "description": "You write.", "tools": ["echo"]}
THINKER = {"name": "thinker", "description": "You think."}
CLERK = {**THINKER, "structured_output": True, "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@tool(effect=Effect.PURE)
async def echo(text: str) -> dict[str, str]:
    """Say it."""
    return {"text": text}


@tool(effect=Effect.PURE)
async def keep(n: int) -> dict[str, int]:
    """Keep it."""
    return {"kept": n}


ECHOES = [
    ToolCallRequest(
        "__planning__",
        {
            "type": "tool_calls",
            "reasoning": "so",
            "calls": [{"tool_name": "echo", "arguments": {"text": text}} for text in "ab"],
        },
    )
]


class Priced(TalkingModel):
    """Every answer costs a dollar and a thousand tokens."""

    async def respond(self, ask: Ask, findings: Findings, *, cut_off: Any = None) -> ModelReply:
        reply = await super().respond(ask, findings)
        call = ModelCall(Purpose.RESPOND, ask.model, 5, 900, 100, cost_usd=Decimal(1))
        return ModelReply(reply.text, (), call)


def test_a_job_without_a_budget_is_not_looked_at(play: Callable[..., Any]) -> None:
    async def scenario(harness: Harness) -> Any:
        harness.store.reserve = None  # type: ignore[assignment,method-assign]
        return await run_agent(harness, WRITER)

    job, *_ = play(scenario, saying("done", planned=ECHOES), [make_tool(echo)])

    assert job["status"] == "completed"


@pytest.mark.parametrize(
    ("budget", "calls", "steps", "limit"),
    [
        ({"max_model_calls": 1}, 1, 2, "max_model_calls"),
        ({"max_steps": 1}, 1, 0, "max_steps"),
        ({"max_tokens": 100}, 0, 0, "max_tokens"),
        ({"max_model_calls": 2, "max_steps": 2, "max_tokens": 100_000, "max_cost_usd": 1}, 2, 2, None),
    ],
)
def test_a_hard_limit_ends_the_job_before_it_is_passed(
    play: Callable[..., Any], budget: Mapping[str, Any], calls: int, steps: int, limit: str | None
) -> None:
    async def scenario(harness: Harness) -> Any:
        return await run_agent(harness, WRITER, budget=budget)

    job, rows_of_steps, _, _ = play(scenario, saying("done", planned=ECHOES), [make_tool(echo)])

    assert (job["model_calls"], len(rows_of_steps)) == (calls, steps)
    if limit is None:
        assert job["status"] == "completed"
        return
    assert (job["status"], job["error"]["code"]) == ("failed", "budget_exceeded")
    assert job["error"]["details"]["limit"] == limit
    assert limit in job["error"]["message"]


def test_a_price_counts_once_it_is_known(play: Callable[..., Any]) -> None:
    model = Priced(texts=["no", '{"n": 1}'])

    async def scenario(harness: Harness) -> Any:
        return await run_agent(harness, CLERK, budget={"max_cost_usd": 1.0})

    job, *_ = play(scenario, model)

    assert (job["status"], job["model_calls"], job["cost_usd"]) == ("failed", 1, Decimal(1))
    assert job["error"]["code"] == "invalid_output"
    assert "there was no repair: the budget" in job["error"]["details"]["errors"][-1]


def test_a_reply_is_cut_to_what_is_left(play: Callable[..., Any]) -> None:
    model = saying("short")

    async def scenario(harness: Harness) -> Any:
        await run_agent(harness, {**THINKER, "max_tokens": 3_000}, budget={"max_tokens": 2_000})
        await run_agent(harness, {**THINKER, "max_tokens": 3_000}, budget={"max_tokens": 20_000})

    play(scenario, model)

    cut, whole = (ask.max_tokens for ask, _ in model.asked)
    assert 64 <= cut < 2_000
    assert whole == 3_000


@pytest.mark.parametrize(
    ("limits", "calls", "limit"),
    [
        ({"request_limit": 1}, 1, "request_limit"),
        ({"total_tokens_limit": 100}, 0, "total_tokens_limit"),
        ({"input_tokens_limit": 100}, 0, "input_tokens_limit"),
        ({"output_tokens_limit": 30}, 0, "output_tokens_limit"),
        ({"request_limit": 2, "total_tokens_limit": 9_000}, 2, None),
    ],
)
def test_an_agents_own_limits_count_for_one_run(
    play: Callable[..., Any], limits: Mapping[str, int], calls: int, limit: str | None
) -> None:
    async def scenario(harness: Harness) -> Any:
        return await run_agent(harness, {**WRITER, "limits": limits})

    job, *_ = play(scenario, saying("done", planned=ECHOES), [make_tool(echo)])

    assert job["model_calls"] == calls
    if limit is not None:
        assert (job["status"], job["error"]["details"]["limit"]) == ("failed", limit)
        assert "the agent's own limit" in job["error"]["message"]


def test_a_reply_is_cut_to_the_agents_own_limit(play: Callable[..., Any]) -> None:
    model = saying("short")

    async def scenario(harness: Harness) -> Any:
        return await run_agent(harness, {**THINKER, "limits": {"output_tokens_limit": 500}})

    play(scenario, model)

    assert model.asked[0][0].max_tokens == 500


async def delegate(harness: Harness, count: int, budget: Mapping[str, Any]) -> UUID:
    """Submit a job that lets `count` agents think at once; it plans and answers without a model itself."""
    await keep_agent(harness, THINKER)
    children = [{"agent": "thinker", "input": f"think {number}"} for number in range(count)]
    arguments = {"children": children, "until": "all", "most": count}
    plan = {"calls": [{"tool_name": "delegate", "arguments": arguments}]}
    return await harness.submit("", plan=plan, budget=budget)


async def tree(harness: Harness, root: UUID) -> tuple[Any, list[Any]]:
    """Return the root's row and its children's."""
    (job,) = await rows(harness, "SELECT * FROM jobs WHERE id = %s", root)
    return job, await rows(harness, "SELECT * FROM jobs WHERE parent_job_id = %s ORDER BY id", root)


def test_a_tree_shares_one_budget(play: Callable[..., Any]) -> None:
    async def scenario(harness: Harness) -> Any:
        root = await delegate(harness, 3, {"max_model_calls": 2})
        await harness.drain()
        return await tree(harness, root)

    job, children = play(scenario, saying("thought"), [DelegatingTool()])

    assert sorted(child["status"] for child in children) == ["completed", "completed", "failed"]
    refused = next(child for child in children if child["status"] == "failed")
    assert (refused["error"]["code"], refused["model_calls"]) == ("budget_exceeded", 0)
    assert (job["status"], job["error"]["code"], job["model_calls"]) == ("failed", "budget_exceeded", 0)


async def a_cent(model: str, asked_tokens: int) -> Price:
    """Whatever is asked costs a cent, and every reply nothing."""
    return Price(0.01, 0.0)


@pytest.mark.parametrize("budget", [{"max_model_calls": 4}, {"max_cost_usd": 0.045}])
def test_calls_at_the_same_time_cannot_pass_a_limit_together(
    play: Callable[..., Any], budget: Mapping[str, Any]
) -> None:
    model = saying("thought")
    going, go_on = [], asyncio.Event()
    answered = model.respond

    async def waiting(ask: Any, findings: Any, *, cut_off: Any = None) -> Any:
        going.append(ask.input)
        await go_on.wait()
        return await answered(ask, findings, cut_off=cut_off)

    model.respond = waiting  # type: ignore[method-assign]

    async def scenario(harness: Harness) -> Any:
        root = await delegate(harness, 6, budget)
        running: set[asyncio.Task[Any]] = set()
        async with asyncio.timeout(60):
            # Not one after the other: the calls that wait must not keep the others from being asked for.
            while len(await rows(harness, "SELECT id FROM jobs WHERE status = 'failed'")) < 2:
                running |= {asyncio.create_task(harness.run_one(wake)) for wake in harness.published}
                harness.published = []
                await asyncio.wait(running, timeout=0.02, return_when=asyncio.FIRST_COMPLETED)
        at_once = len(going)
        go_on.set()
        await asyncio.wait_for(asyncio.gather(*running), 60)
        await harness.drain()
        return at_once, await tree(harness, root)

    at_once, (_, children) = play(scenario, model, [DelegatingTool()], prices=a_cent)

    assert at_once == 4
    assert sorted(child["status"] for child in children) == ["completed"] * 4 + ["failed"] * 2


def test_what_a_lost_stage_had_reserved_is_free_again(play: Callable[..., Any]) -> None:
    async def scenario(harness: Harness) -> Any:
        job_id = await submit_agent(harness, THINKER, budget={"max_model_calls": 1})
        claim = await claim_stage(harness.store, job_id, [JobStatus.QUEUED])
        assert claim is not None
        holder = Holder(job_id, claim.attempt)
        held = await harness.store.reserve(holder, ReservationRequest(model_calls=1))
        again = await harness.store.reserve(holder, ReservationRequest(model_calls=1))
        assert (held.exceeded, again.exceeded) == (None, None), "its own reservation does not stand in its way"
        await harness.store.release(claim)  # as the sweeper does for a worker that died
        await harness.drain()
        return await look(harness, job_id)

    job, *_ = play(scenario, saying("thought"))

    assert (job["status"], job["answer"]) == ("completed", "thought")


def test_a_soft_limit_is_told_once(play: Callable[..., Any]) -> None:
    budget = {"max_model_calls": 3, "soft": 0.3}

    async def scenario(harness: Harness) -> Any:
        return await run_agent(harness, WRITER, budget=budget)

    job, _, _, events = play(scenario, saying("done", planned=ECHOES), [make_tool(echo)])

    assert job["status"] == "completed"
    (warned,) = [data for kind, data in events if kind == "budget_warning"]
    assert warned["soft"] == 0.3
    assert warned["by"] == str(job["id"])


def test_a_tree_that_asks_is_paused_at_its_soft_limit_until_it_is_resumed(play: Callable[..., Any]) -> None:
    model = saying("thought")

    async def scenario(harness: Harness) -> Any:
        root = await delegate(harness, 2, {"max_model_calls": 9, "soft": 0.2, "ask": True})
        await harness.drain()
        paused = await tree(harness, root)
        made = len(model.asked)
        assert (await harness.requests.resume("default", root)) is not None
        await harness.sweeper.sweep()
        await harness.drain()
        return paused, made, await tree(harness, root)

    (root, children), made, (after, ended) = play(scenario, model, [DelegatingTool()])

    assert root["paused_at"] is not None
    assert all(child["paused_at"] is not None for child in children if child["status"] != "completed")
    assert made < 3
    assert after["status"] == "completed"
    assert [child["status"] for child in ended] == ["completed", "completed"]


def test_a_soft_limit_that_a_plan_comes_to_is_asked_about_before_the_next_call(play: Callable[..., Any]) -> None:
    # Pins: told where nobody could wait, it was never asked about.
    budget = {"max_steps": 4, "soft": 0.5, "ask": True}
    model = saying("done", planned=ECHOES)

    async def scenario(harness: Harness) -> Any:
        job_id = await submit_agent(harness, WRITER, budget=budget)
        await harness.drain()
        paused, *_ = await look(harness, job_id)
        assert (await harness.requests.resume("default", job_id)) is not None
        harness.published.append(Wake.respond(job_id))
        await harness.drain()
        return paused, await look(harness, job_id)

    paused, (job, _, _, events) = play(scenario, model, [make_tool(echo)])

    assert (paused["status"], paused["paused_at"] is not None, paused["model_calls"]) == ("responding", True, 1)
    assert (job["status"], job["model_calls"]) == ("completed", 2)
    assert [kind for kind, _ in events].count("budget_warning") == 1


@pytest.mark.parametrize(("max_steps", "is_called"), [(2, False), (3, True)])
def test_the_step_of_a_chained_tool_counts_and_its_refusal_leaves_the_answer(
    play: Callable[..., Any], max_steps: int, is_called: bool
) -> None:
    # Pins: the round of a chained tool was not reserved, so that a tree could pass its budget of steps.
    agent = {**CLERK, "tools": ["echo"], "chained_tool": "keep"}

    async def scenario(harness: Harness) -> Any:
        return await run_agent(harness, agent, budget={"max_steps": max_steps})

    job, _, messages, _ = play(scenario, saying({"n": 1}, planned=ECHOES), [make_tool(echo), make_tool(keep)])

    assert (job["status"], job["output"], job["error"], job["model_calls"]) == ("completed", {"n": 1}, None, 2)
    assert job["round"] == (1 if is_called else 0)
    assert [message["kind"] for message in messages] == ["tool_call", "tool_response"]
    assert {message["call_id"] for message in messages} == {job["chained"]["call_id"]}
    assert messages[0]["content"] == {"n": 1}
    if is_called:
        assert job["chained"]["result"] == {"kept": 1}
        return
    assert job["chained"]["error"]["code"] == "budget_exceeded"
    assert "max_steps is 2" in job["chained"]["error"]["message"]
    assert messages[1]["content"]["status"] == "error"
