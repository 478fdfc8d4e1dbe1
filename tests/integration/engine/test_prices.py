"""What calls of tools cost counts in their step, their job and its budget, whatever becomes of the call."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

from planq.shared.agentic.tools.contract import ToolContext
from planq.shared.subjects.metrics.store import TallyStore
from planq.worker.tools import ToolError, ToolResponse, tool
from tests.support.agents import rows
from tests.support.harness import Harness, ScriptedModel, make_tool

Play = Callable[..., Any]

called: list[str] = []


@tool(effect="read", price_usd=0.02)
async def look_up(word: str) -> dict[str, str]:
    """Look a word up."""
    called.append(word)
    return {"word": word}


@tool(effect="read", price_usd=0.02)
async def measure() -> ToolResponse[dict[str, int]]:
    """Say what it has cost."""
    return ToolResponse(structured={"n": 1}, cost_usd=0.0055)


@tool(effect="pure")
async def meter() -> ToolResponse[dict[str, int]]:
    """Say what it has cost, without a price."""
    return ToolResponse("one", {"n": 1}, cost_usd=0.001)


@tool(effect="read")
async def free() -> dict[str, int]:
    """Cost nothing."""
    return {"n": 1}


@tool(effect="unsafe", price_usd=0.01)
async def fail() -> dict[str, int]:
    """Fail."""
    raise ToolError("it went wrong")


@tool(effect="unsafe", price_usd=0.01)
async def confirm(context: ToolContext) -> dict[str, int]:
    """Ask first."""
    await context.ask("Really?")
    return {"n": 1}


TOOLS = [make_tool(one) for one in (look_up, measure, meter, free, fail, confirm)]


def plan(*names: str, **arguments: Any) -> dict[str, Any]:
    return {"calls": [{"tool_name": name, "arguments": arguments} for name in names]}


def test_a_declared_price_counts_and_what_the_tool_reports_counts_instead(play: Play) -> None:
    async def scenario(harness: Harness) -> None:
        calls = plan("measure", "meter", "free", "fail")["calls"] + plan("look_up", word="a")["calls"]
        job_id = await harness.submit("x", plan={"on_failure": "continue", "calls": calls})
        await harness.drain()
        job, steps = await harness.requests.job("default", job_id)
        costs = [None if step["cost_usd"] is None else str(step["cost_usd"]) for step in steps]
        assert costs == ["0.0055", "0.001", None, "0.01", "0.02"]
        assert (steps[0]["output"], steps[1]["content"]) == ({"n": 1}, "one")
        assert job["cost_usd"] == Decimal("0.0365"), "a call that failed may have been paid for"
        days = await rows(harness, "SELECT model, calls, cost_usd FROM daily_costs WHERE model LIKE 'tool:%%'")
        assert {(day["model"], day["calls"], str(day["cost_usd"])) for day in days} == {
            ("tool:fail", 1, "0.01"),
            ("tool:look_up", 1, "0.02"),
            ("tool:measure", 1, "0.0055"),
            ("tool:meter", 1, "0.001"),
        }, "what was reported counts, once"
        assert await harness.worker_registry.broken_invariants() == []

    play(scenario, ScriptedModel(), TOOLS)


def test_calls_at_the_same_time_stop_where_the_next_would_pass_the_budget(play: Play) -> None:
    called.clear()

    async def scenario(harness: Harness) -> None:
        calls = [call for word in "abc" for call in plan("look_up", word=word)["calls"]]
        job_id = await harness.submit("x", plan={"calls": calls}, budget={"max_cost_usd": 0.05})
        await harness.drain()
        job, steps = await harness.requests.job("default", job_id)
        assert (len(called), job["cost_usd"]) == (2, Decimal("0.04"))
        (refused,) = [step for step in steps if step["status"] == "failed"]
        assert (refused["error"]["code"], refused["cost_usd"]) == ("budget_exceeded", None)
        assert refused["error"]["details"] == {"limit": "max_cost_usd", "most": 0.05, "used": 0.04}
        assert await harness.worker_registry.broken_invariants() == []

    play(scenario, ScriptedModel(), TOOLS)


def test_a_call_that_asks_first_has_cost_nothing_yet(play: Play) -> None:
    async def scenario(harness: Harness) -> None:
        job_id = await harness.submit("x", plan=plan("confirm"))
        await harness.drain()
        job, (step,) = await harness.requests.job("default", job_id)
        assert (job["status"], step["cost_usd"], job["cost_usd"]) == ("input_required", 0, 0)

    play(scenario, ScriptedModel(), TOOLS)


def test_a_charge_that_comes_again_changes_nothing_and_every_attempt_has_its_own(play: Play) -> None:
    async def scenario(harness: Harness) -> None:
        job_id = await harness.submit("x", plan=plan("free"), budget={"max_cost_usd": 0.05})
        await harness.drain()

        async def charge(attempt: int, usd: str, is_ahead: bool) -> Any:
            given = job_id, 0, attempt, Decimal(usd), is_ahead
            (row,) = await rows(harness, "SELECT planq_charge_step(%s, %s, %s, %s, %s) AS passed", *given)
            return row["passed"].get("exceeded")

        for _ in range(2):
            assert await charge(1, "0.03", True) is None
        assert await charge(2, "0.03", True) == "max_cost_usd"
        assert await charge(2, "0.015", True) is None
        assert await charge(1, "0.5", False) is None, "what was spent was spent"
        _, (step,) = await harness.requests.job("default", job_id)
        assert step["cost_usd"] == Decimal("0.515")
        assert await harness.worker_registry.broken_invariants() == []

    play(scenario, ScriptedModel(), TOOLS)


def test_a_job_that_is_resumed_has_each_attempt_counted_once_whenever_somebody_looks(play: Play) -> None:
    async def scenario(harness: Harness) -> None:
        tallies = TallyStore(harness.database)

        async def counted() -> Decimal:
            await tallies.add_up()
            return (await tallies.counted()).get(("tool_cost", "fail"), Decimal(0))

        before = await counted()
        job_id = await harness.submit("x", plan=plan("fail"))
        await harness.drain()
        assert await counted() - before == Decimal("0.01")
        for resumes in range(2):
            await harness.publish((await harness.requests.resume("default", job_id, after=resumes)).wakes)
            await harness.drain()
        _, (step,) = await harness.requests.job("default", job_id)
        assert (step["attempt"], step["cost_usd"]) == (3, Decimal("0.03"))
        assert await counted() - before == Decimal("0.03"), "it was 0.06: what a step had cost before came again"

    play(scenario, ScriptedModel(), TOOLS)
