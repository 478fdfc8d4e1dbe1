"""A job's own settings of its model calls: they reach each call of the job, win over its agent's, and end with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from planq.shared.agentic.models.call_settings import AgentCallSettings, CallSettings
from planq.shared.agentic.models.exchange import ToolCallRequest
from planq.shared.kernel.states import Strategy
from planq.worker.tools.declare import tool
from tests.support.agents import submit_agent
from tests.support.harness import Harness, ScriptedModel, make_tool
from tests.support.orchestras import agent_step, below, orchestrate

Play = Callable[..., Any]
OF_JOB: dict[str, Any] = {"temperature": 0.2, "seed": 7, "max_tokens": 50, "extra_body": {"top_k": 3}}
PLAN = {"type": "tool_calls", "reasoning": "r", "calls": [{"tool_name": "look", "arguments": {}}]}
PLANNED = [ToolCallRequest("__planning__", PLAN, "p1")]
CALLED = [ToolCallRequest("look", {}, "c1")]


@tool()
async def look() -> dict[str, str]:
    """Look."""
    return {"seen": "a"}


@pytest.mark.parametrize(
    ("strategy", "model"),
    [
        (Strategy.PLAN, ScriptedModel(PLANNED, "Done.")),
        (Strategy.REACT, ScriptedModel(turns=[CALLED, "Done."])),
        (Strategy.LOOP, ScriptedModel(turns=[PLANNED, "Done."])),
    ],
    ids=["plan", "react", "loop"],
)
def test_each_call_of_a_job_has_its_settings(play: Play, strategy: Strategy, model: ScriptedModel) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.submit(strategy=strategy, model_settings=OF_JOB)
        await harness.drain()

    play(scenario, model, [make_tool(look)])

    assert len(model.asked) == 2
    for ask, _ in model.asked:
        assert ask.settings == AgentCallSettings(**OF_JOB)
        assert (ask.temperature, ask.max_tokens) == (0.2, 50)


def settings_of(play: Play, document: dict[str, Any], of_job: dict[str, Any] | None) -> Any:
    async def scenario(harness: Harness) -> None:
        await submit_agent(harness, {"name": "writer", "instructions": "Write.", **document}, model_settings=of_job)
        await harness.drain()

    model = ScriptedModel("Done.", "Done.", turns=["Done."])
    play(scenario, model, [])
    return model.asked[0][0]


def test_a_jobs_settings_win_over_its_agents(play: Play) -> None:
    document = {
        "temperature": 1.5,
        "max_tokens": 900,
        "model_settings": {"seed": 1, "top_p": 0.5, "extra_body": {"top_k": 1, "min_p": 0.1}},
    }

    asked = settings_of(play, document, OF_JOB)

    assert (asked.temperature, asked.max_tokens) == (0.2, 50)
    assert asked.settings == CallSettings(**{**OF_JOB, "top_p": 0.5, "extra_body": {"top_k": 3, "min_p": 0.1}})


def test_an_agents_settings_count_where_its_job_has_none(play: Play) -> None:
    document = {"temperature": 1.5, "model_settings": {"temperature": 0.1, "max_tokens": 60}}

    asked = settings_of(play, document, None)

    assert (asked.temperature, asked.max_tokens, asked.settings.max_tokens) == (1.5, 60, 60)


def test_a_child_job_does_not_inherit_the_settings_of_its_parent(orchestra: Callable[..., Any]) -> None:
    plan = orchestrate({"steps": [agent_step("top", "one")]})

    _, _, jobs = orchestra({"one": {"ok": {"v": 1}}}, plan, also=below, model_settings=OF_JOB)

    assert [job["model_settings"] for job in jobs] == [None, None]
