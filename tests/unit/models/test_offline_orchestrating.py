"""Plans of agents that the offline rules make of a prompt."""

from __future__ import annotations

import json
from typing import Any

import pytest

from planq.shared.agentic.models.exchange import Findings
from planq.shared.agentic.orchestration.plan import OrchestrationPlan
from planq.shared.agentic.orchestration.request import read_reply
from planq.worker.agents.planner import planner_ask
from planq.worker.models.offline import answer_offline

TEAM = {name: {"description": name} for name in ("critic", "writer", "writer-two")}


def planned(prompt: str, agents: Any = TEAM) -> Any:
    ask = planner_ask("job", "offline", prompt, {"critic": "the critic"}, agents, 12)
    return read_reply(answer_offline(ask, Findings(is_direct=True)).text, max_steps=12)


def test_each_sentence_that_names_an_agent_is_a_step_that_is_shown_the_one_before() -> None:
    plan = planned("Let the critic look at leases. This is fun. Then let writer-two write it up, then the writer too")

    assert isinstance(plan, OrchestrationPlan)
    calls = [step.calls[0] for step in plan.steps]
    assert [(call.agent_id, call.prompt, call.result_key) for call in calls] == [
        ("critic", "Let the critic look at leases", "result_1"),
        ("writer-two", "Then let writer-two write it up\n\n{{ result.result_1 }}", "result_2"),
        ("writer", "the writer too\n\n{{ result.result_2 }}", "result_3"),
    ]


@pytest.mark.parametrize("agents", [TEAM, {}])
def test_a_prompt_that_names_no_agent_gives_no_plan(agents: Any) -> None:
    found = planned("Do something", agents)

    assert [defect.code for defect in found] == ["min_items"]


def test_what_the_prompt_says_is_no_template_of_the_plan() -> None:
    plan = planned('The critic says "x"')

    assert isinstance(plan, OrchestrationPlan)
    assert json.dumps(plan.steps[0].calls[0].prompt) == '"The critic says \\"x\\""'
