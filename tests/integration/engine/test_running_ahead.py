"""Quick `pure` steps run before their plan is stored, and leave what they leave when they run after it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from planq.worker.handlers import step
from planq.worker.tools import ToolError, ToolResponse, tool
from tests.support.agents import rows
from tests.support.harness import Harness, ScriptedModel, make_tool

Play = Callable[..., Any]
STEPS = (
    "SELECT index, status, attempt, output, worker_id, error, cost_usd FROM steps WHERE job_id = %s ORDER BY index"
)
EVENTS = "SELECT kind, data FROM events WHERE job_id = %s ORDER BY sequence"
OUTPUT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
CHAIN = {
    "calls": [
        {"tool_name": "echo", "arguments": {"n": 1}},
        {"tool_name": "echo", "arguments": {"n": "$0.output.n"}},
        {"tool_name": "echo", "arguments": {"n": 3}},
    ]
}


class Tools:
    """Tools that count their calls; `behave` is what `echo` does beside answering."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.behave: Callable[[int], Any] = lambda _: None

    def all(self, effect: str = "pure", **options: Any) -> list[Any]:
        @tool(effect=effect, output_schema=OUTPUT, **options)  # type: ignore[arg-type]
        async def echo(n: int) -> Any:
            """Return n, as quickly as can be."""
            self.calls.append(n)
            said = self.behave(n)
            if asyncio.iscoroutine(said):
                await said
            return {"n": n} if said is None or asyncio.iscoroutine(said) else said

        return [make_tool(echo)]


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine makes no tool slow."""
    monkeypatch.setattr(step, "_QUICK_SECONDS", 60.0)
    monkeypatch.setattr(step, "FUSED_SECONDS", 60.0)


async def completed(harness: Harness, **fields: Any) -> Any:
    """Run a job, the first of which teaches the worker whether its tool is quick; return it."""
    job, _ = await harness.run(plan=CHAIN, **fields)
    assert (job["status"], job["error"]) == ("completed", None)
    return job


def accepting(harness: Harness) -> list[int]:
    """Return a list to which each plan that is stored adds how many of its steps have run."""
    found: list[int] = []
    real = harness.store.accept_plan

    async def noted(*given: Any, **named: Any) -> Any:
        result = await real(*given, **named)
        found.append(len(result.ran))
        return result

    harness.store.accept_plan = noted  # type: ignore[method-assign]
    return found


def test_quick_steps_are_stored_with_their_plan_and_leave_the_same(play: Play) -> None:
    tools = Tools()

    async def scenario(harness: Harness) -> None:
        ran = accepting(harness)
        first = await completed(harness)
        tools.calls.clear()

        async def refuse(*_: Any, **__: Any) -> Any:
            raise AssertionError("there is nothing left to store")

        harness.store.succeed_step = refuse  # type: ignore[method-assign]
        second = await completed(harness)
        assert (ran, tools.calls) == ([0, 3], [1, 1, 3])
        for query in (STEPS, EVENTS):
            found = [await rows(harness, query, job["id"]) for job in (first, second)]
            kept = [sorted(map(str, each)) if query is EVENTS else each for each in found]
            assert kept[0] == kept[1]
        kinds = [row["kind"] for row in await rows(harness, EVENTS, second["id"])]
        assert kinds[2:-2] == ["plan_accepted", *["step_started", "step_succeeded"] * 3]
        assert second["answer"] == first["answer"]
        assert await harness.worker_registry.broken_invariants() == []

    play(scenario, ScriptedModel(), tools.all())


@pytest.mark.parametrize("fields", [{"loop": {"policy": {"echo": "auto"}}}, {"respond": "output"}])
def test_what_a_claim_has_beside_its_plan_decides_whether_steps_run_ahead(play: Play, fields: Any) -> None:
    async def scenario(harness: Harness) -> list[int]:
        ran = accepting(harness)
        await completed(harness)
        await completed(harness, **fields)
        return ran

    assert play(scenario, ScriptedModel(), Tools().all()) == [0, 0 if "loop" in fields else 3]


def test_a_tool_that_was_slow_is_called_after_its_plan_is_stored(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "_QUICK_SECONDS", 0.0)
    tools = Tools()

    async def scenario(harness: Harness) -> None:
        ran = accepting(harness)
        for _ in range(2):
            await completed(harness)
        assert (ran, len(tools.calls)) == ([0, 0], 6)

    play(scenario, ScriptedModel(), tools.all())


@pytest.mark.parametrize("effect", ["read", "idempotent"])
def test_only_pure_steps_run_ahead(play: Play, effect: str) -> None:
    async def scenario(harness: Harness) -> None:
        ran = accepting(harness)
        for _ in range(2):
            await completed(harness)
        assert ran == [0, 0]

    play(scenario, ScriptedModel(), Tools().all(effect))


def test_a_tool_with_a_price_is_called_after_its_plan_is_stored(play: Play) -> None:
    async def scenario(harness: Harness) -> None:
        ran = accepting(harness)
        await completed(harness)
        job = await completed(harness)
        assert ran == [0, 0]
        assert float(job["cost_usd"]) == pytest.approx(0.06)

    play(scenario, ScriptedModel(), Tools().all(price_usd=0.02))


def fail() -> None:
    raise ToolError("it went wrong")


def hang(calls: list[int]) -> Any:
    return asyncio.Event().wait() if len(calls) == 1 else None


@pytest.mark.parametrize("misbehaviour", ["fails", "hangs", "costs", "says more"])
def test_what_does_not_simply_succeed_runs_again_after_its_plan_is_stored(
    play: Play, misbehaviour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if misbehaviour == "hangs":
        monkeypatch.setattr(step, "FUSED_SECONDS", 0.1)
    tools = Tools()
    does: dict[str, Callable[[int], Any]] = {
        "fails": lambda _: fail(),
        "hangs": lambda _: hang(tools.calls),
        "costs": lambda _: ToolResponse(structured={"n": 1}, cost_usd=0.25),
        "says more": lambda _: ToolResponse("one", {"n": 1}),
    }

    async def scenario(harness: Harness) -> None:
        await completed(harness)
        tools.calls.clear()
        tools.behave = does[misbehaviour]
        plan = {"calls": CHAIN["calls"][:1], "on_failure": "answer"}
        job, (only,) = await harness.run(plan=plan)
        assert (tools.calls, only["attempt"], job["status"]) == ([1, 1], 1, "completed")
        assert only["status"] == ("failed" if misbehaviour == "fails" else "succeeded")
        assert float(job["cost_usd"] or 0) == (0.25 if misbehaviour == "costs" else 0)
        kinds = [row["kind"] for row in await rows(harness, EVENTS, job["id"])]
        assert kinds.count("step_started") == 1
        (found,) = await rows(harness, "SELECT content FROM steps WHERE job_id = %s", job["id"])
        assert found["content"] == ("one" if misbehaviour == "says more" else None)

    play(scenario, ScriptedModel(), tools.all())


def test_a_job_that_is_cancelled_meanwhile_ends_without_its_plan(play: Play) -> None:
    tools = Tools()

    async def scenario(harness: Harness) -> None:
        await completed(harness)

        async def cancel() -> None:
            await harness.requests.cancel("default", job_id)

        tools.behave = lambda _: cancel()
        job_id = await harness.submit(plan=CHAIN)
        await harness.drain()
        job, steps = await harness.requests.job("default", job_id)
        assert (job["status"], steps) == ("cancelled", [])

    play(scenario, ScriptedModel(), tools.all())


def test_a_job_that_is_paused_meanwhile_runs_its_steps_when_it_is_resumed(play: Play) -> None:
    tools = Tools()

    async def scenario(harness: Harness) -> None:
        await completed(harness)
        tools.calls.clear()

        async def pause() -> None:
            await harness.requests.pause("default", job_id)

        tools.behave = lambda _: pause()
        job_id = await harness.submit(plan=CHAIN)
        await harness.drain()
        job, steps = await harness.requests.job("default", job_id)
        assert [step["status"] for step in steps] == ["ready", "pending", "ready"]
        tools.behave = lambda _: None
        tools.calls.clear()
        await harness.publish((await harness.requests.resume("default", job_id)).wakes)
        await harness.drain()
        job, steps = await harness.requests.job("default", job_id)
        assert (job["status"], sorted(tools.calls)) == ("completed", [1, 1, 3])

    play(scenario, ScriptedModel(), tools.all())
