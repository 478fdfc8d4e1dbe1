"""The recipes of docs/loops.md, run in both forms; planners of packages in the place of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from planq.shared.agentic.models.exchange import ToolCallRequest
from planq.shared.agentic.plan.planner import PlanningRequest
from planq.shared.agentic.tools.contract import Tool
from planq.shared.kernel.states import Effect, Strategy
from planq.shared.platform.errors import ToolFailed
from planq.worker.models.planners import InstalledPlanners
from planq.worker.tools.declare import tool
from tests.support.harness import Harness, ScriptedModel, make_tool
from tests.support.recipes import RECIPES, both_forms

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
FORMS = ["imported", "written"]


def planned(*calls: tuple[str, Mapping[str, Any]]) -> list[ToolCallRequest]:
    listed = [{"tool_name": name, "arguments": arguments} for name, arguments in calls]
    return [ToolCallRequest("__planning__", {"type": "tool_calls", "reasoning": "", "calls": listed}, "p")]


@pytest.fixture
def ran() -> list[tuple[str, Any]]:
    """Which tools were called with what, in order."""
    return []


@pytest.fixture
def tools(ran: list[tuple[str, Any]]) -> list[Tool]:
    def looking(name: str) -> Tool:
        @tool(name=name, effect=Effect.READ, output_schema=TEXT, retries=0)
        async def look(text: str) -> dict[str, str]:
            ran.append((name, text))
            if text == "broken":
                raise ToolFailed("the index is gone")
            return {"text": f"<{text}>"}

        return make_tool(look)

    @tool(name="my_tool_summarise", effect=Effect.READ)
    async def summarise(data: dict[str, Any]) -> dict[str, Any]:
        ran.append(("my_tool_summarise", data))
        return {"length": len(str(data))}

    @tool(name="notify_send_slack", effect=Effect.UNSAFE)
    async def notify(channel: str, text: str) -> dict[str, Any]:
        ran.append(("notify_send_slack", (channel, text)))
        return {}

    return [*map(looking, ("web_search", "calc_eval", "secret")), make_tool(summarise), make_tool(notify)]


@pytest.fixture
def run(play: Callable[..., Any], tools: list[Tool]) -> Callable[..., Any]:
    """`run(model, block)`: carry a job of `loop` out; returns its row and all its steps."""

    def carried(model: ScriptedModel, block: Mapping[str, Any]) -> Any:
        async def scenario(harness: Harness) -> Any:
            job, _ = await harness.run("do it", strategy=Strategy.LOOP, loop=block)
            async with harness.database.connection() as connection:
                query = b'SELECT * FROM steps WHERE job_id = %s ORDER BY "index"'
                steps = await (await connection.execute(query, [job["id"]])).fetchall()
            assert await harness.worker_registry.broken_invariants() == []
            return job, steps

        return play(scenario, model, tools)

    return carried


SEARCH = ("web_search", {"text": "a"})
ENDLESS = [planned(("web_search", {"text": str(number)})) for number in range(9)]

SCRIPTS: dict[str, tuple[Sequence[Any], tuple[str, str | None, list[str]], list[tuple[str, Any]]]] = {
    "Another prompt": ([planned(SEARCH), "done"], ("completed", "answered", ["succeeded"]), [("web_search", "a")]),
    "Other tools": (
        [planned(SEARCH, ("secret", {"text": "b"})), "done"],
        ("completed", "answered", ["succeeded", "failed"]),
        [("web_search", "a")],
    ),
    "A step after the last round": (
        [planned(SEARCH), "done"],
        ("completed", "answered", ["succeeded", "succeeded"]),
        [("web_search", "a"), ("my_tool_summarise", {"text": "<a>"})],
    ),
    "Another end": (
        ENDLESS,
        ("completed", "max_rounds", ["succeeded"] * 3),
        [("web_search", "0"), ("web_search", "1"), ("web_search", "2")],
    ),
    "Errors": (
        [planned(("web_search", {"text": "broken"})), "never asked"],
        ("failed", None, ["failed", "succeeded"]),
        [
            ("web_search", "broken"),
            ("notify_send_slack", ("#runtime-alerts", "tool web_search failed: the index is gone")),
        ],
    ),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_does_in_both_forms_what_it_says(
    run: Callable[..., Any], ran: list[tuple[str, Any]], recipe: str, form: str
) -> None:
    turns, expected, called = SCRIPTS[recipe]
    model = ScriptedModel(turns=turns)

    job, steps = run(model, both_forms(recipe)[form])

    assert (job["status"], job["stop_reason"], [step["status"] for step in steps]) == expected
    assert ran == called
    prompts = {ask.prompt.template for ask, _ in model.asked if ask.prompt is not None}
    wanted = {"Plan the next calls for {{query}}.\nYou have: {{tools}}\n"} if recipe == "Another prompt" else set()
    assert prompts == wanted


class Lookup:
    """The planner of the documentation: look once, then answer; its first decision of all may be broken."""

    def __init__(self, *firsts: Mapping[str, Any]) -> None:
        self.asked: list[PlanningRequest] = []
        self._firsts = list(firsts)

    async def plan(self, request: PlanningRequest) -> Mapping[str, Any]:
        self.asked.append(request)
        if self._firsts:
            return self._firsts.pop(0)
        if not request.variables["results"]:
            call = {"tool_name": "web_search", "arguments": {"text": request.input}}
            return {"type": "tool_calls", "reasoning": "look", "calls": [call]}
        return {"type": "direct_response", "content": request.variables["results"][-1]["result"]["text"]}


def test_a_planner_of_ones_own_plans_the_rounds(run: Callable[..., Any], ran: list[tuple[str, Any]]) -> None:
    own = Lookup()
    model = ScriptedModel(turns=["never asked"], own=InstalledPlanners({"lookup": own}))

    job, steps = run(model, {"planner": "lookup", "max_rounds": 3, "tools": {"allow": ["web.search"]}})

    assert (job["status"], job["stop_reason"], job["answer"]) == ("completed", "answered", "<do it>")
    assert ran == [("web_search", "do it")]
    assert model.asked == []
    assert [(one.next_index, one.rounds_left) for one in own.asked] == [(0, 3), (1, 2)]
    assert [[definition.name for definition in one.tools] for one in own.asked] == [["web_search"]] * 2
    assert (job["model_calls"], job["input_tokens"], float(job["cost_usd"])) == (2, 0, 0.0)
    assert len(steps) == 1


def test_its_decision_is_checked_as_a_models(run: Callable[..., Any]) -> None:
    broken = {"type": "tool_calls", "reasoning": "", "calls": "web_search"}
    own = Lookup(broken)
    twice = Lookup(broken, broken)

    job, _ = run(ScriptedModel(turns=["x"], own=InstalledPlanners({"lookup": own})), {"planner": "lookup"})
    refused, _ = run(ScriptedModel(turns=["x"], own=InstalledPlanners({"lookup": twice})), {"planner": "lookup"})

    assert (job["status"], job["answer"]) == ("completed", "<do it>")
    assert [bool(request.errors) for request in own.asked] == [False, True, False]
    assert (refused["status"], refused["error"]["code"]) == ("failed", "plan_invalid")


def test_a_planner_that_is_not_there_fails_the_job(run: Callable[..., Any]) -> None:
    job, _ = run(ScriptedModel(turns=["x"], own=InstalledPlanners({})), {"planner": "lookup"})
    without, _ = run(ScriptedModel(turns=["x"]), {"planner": "lookup"})

    for one in (job, without):
        assert (one["status"], one["error"]["code"]) == ("failed", "invalid_arguments")
        assert "no planner 'lookup' is installed here" in one["error"]["message"]


def test_an_expression_without_a_value_fails_the_job_and_says_which(run: Callable[..., Any]) -> None:
    job, _ = run(ScriptedModel(turns=[planned(SEARCH), "done"]), {"until": "length(round)"})

    assert (job["status"], job["error"]["code"]) == ("failed", "invalid_arguments")
    assert job["error"]["message"].startswith("loop/until/0: the expression")
