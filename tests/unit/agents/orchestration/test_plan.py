"""Orchestration plans: defects that the cases do not have, and what a valid plan becomes."""

from __future__ import annotations

from typing import Any

import pytest

from planq.shared.agentic.orchestration.plan import (
    MergeStrategy,
    OrchestrationEvent,
    OrchestrationPlan,
    ParallelGroup,
    StepType,
)
from planq.shared.agentic.orchestration.validation import MAX_CHILDREN, read_plan
from planq.shared.agentic.schema.schemas import violations
from planq.shared.platform.values.defects import Defect
from planq.worker.agents.orchestration.schema import PLAN_SCHEMA

AGENT = {"id": "a", "type": "agent", "status": "pending", "agent": {"agent_id": "x"}}


def defects(raw: Any, **options: Any) -> list[tuple[str, str]]:
    found = read_plan(raw, **options)
    assert isinstance(found, list)
    return [(defect.pointer, defect.code) for defect in found]


def test_every_defect_is_told_at_once() -> None:
    raw = {
        "id": 7,
        "steps": [
            {"id": "a b", "type": "agnet", "agent": {"agent_id": "x"}},
            "no step",
            {**AGENT, "agent": {"agent_id": " ", "with": [], "timeout_ms": True}, "parallel": {"steps": []}},
            {**AGENT, "agent": {"agent_id": "x", "timeout_ms": 300_001}},
        ],
    }

    assert defects(raw) == [
        ("id", "type"),
        ("steps[0].id", "pattern"),
        ("steps[0].type", "enum"),
        ("steps[0].status", "required"),
        ("steps[1]", "type"),
        ("steps[2].agent.with", "type"),
        ("steps[2].agent.timeout_ms", "type"),
        ("steps[2].agent.agent_id", "required"),
        ("steps[2].parallel", "forbidden"),
        ("steps[3].agent.timeout_ms", "max"),
        ("steps[3].id", "duplicate"),
    ]


@pytest.mark.parametrize("raw", [[], "plan", 3, True])
def test_a_plan_is_an_object(raw: Any) -> None:
    assert defects(raw) == [("plan", "type")]


@pytest.mark.parametrize("steps", [None, []])
def test_a_plan_has_steps(steps: Any) -> None:
    assert defects({"steps": steps}) == [("steps", "min_items")]


def test_a_plan_has_no_more_steps_than_allowed_and_groups_no_more_agents() -> None:
    group = {"id": "p", "type": "parallel", "status": "pending"}
    wide = {**group, "parallel": {"steps": [{"agent_id": "x"}] * (MAX_CHILDREN + 1)}}

    assert defects({"steps": [AGENT, wide]}, max_steps=1) == [
        ("steps", "max_items"),
        ("steps[1].parallel.steps", "max_items"),
    ]


def test_a_plan_that_is_nested_too_deeply_is_refused_and_not_walked() -> None:
    deep: Any = {}
    for _ in range(5_000):
        deep = {"d": deep}

    assert defects({"steps": [AGENT], "bindings": deep}) == [("plan", "depth")]


def test_untrusted_text_is_cut_and_quoted() -> None:
    (defect,) = read_plan({"steps": [{**AGENT, "id": "x y" * 1_000 + "\n"}]})  # type: ignore[misc]

    assert isinstance(defect, Defect)
    assert len(defect.message) < 200
    assert "\n" not in defect.message


def test_a_valid_plan_is_read() -> None:
    raw = {
        "steps": [
            {
                "id": "p",
                "type": "parallel",
                "status": "success",
                "parallel": {"steps": [{"agent_id": " x ", "with": None}], "merge_strategy": "collect_all"},
            }
        ]
    }

    plan = read_plan(raw)

    assert isinstance(plan, OrchestrationPlan)
    group = plan.steps[0].call
    assert isinstance(group, ParallelGroup)
    assert group.merge_strategy is MergeStrategy.COLLECT
    assert (group.calls[0].agent_id, group.calls[0].with_, group.max_concurrency) == ("x", {}, None)


def test_the_words_that_are_published_are_those_that_are_understood_in_their_order() -> None:
    step = PLAN_SCHEMA["properties"]["steps"]["items"]["properties"]
    call, transitions = step["parallel"]["properties"], step["transitions"]["properties"]

    assert step["type"]["enum"] == ["agent", "parallel"] == list(StepType)
    assert call["merge_strategy"]["enum"] == ["collect", "collect_all", "first_success", "best_effort"]
    assert {MergeStrategy(name) for name in call["merge_strategy"]["enum"]} == set(MergeStrategy)
    assert transitions["allowed_events"]["items"]["enum"] == list(OrchestrationEvent)
    assert [str(event) for event in OrchestrationEvent][4:7] == ["step_succeeded", "step_failed", "parallel_complete"]


def test_the_name_of_an_agent_is_no_longer_than_one_can_be() -> None:
    fits, long = ({**AGENT, "agent": {"agent_id": "x" * size}} for size in (128, 129))

    assert isinstance(read_plan({"steps": [fits]}), OrchestrationPlan)
    assert defects({"steps": [long]}) == [("steps[0].agent.agent_id", "max_length")]
    assert [one.code for one in violations(PLAN_SCHEMA, {"steps": [long]})] == ["maxLength"]
