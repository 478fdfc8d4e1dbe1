"""Requests and limits of orchestrations: what is refused, and in which words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from planq.shared.agentic.orchestration.plan import OrchestrationPlan
from planq.shared.agentic.orchestration.request import OrchestrateLimits, agent_request, read_reply, request_defects
from planq.shared.agentic.schema.schemas import check_schema, violations
from planq.shared.kernel.limits import Limits
from planq.worker.agents.orchestration.schema import ORCHESTRATE_INPUT, PLAN_SCHEMA_FOR_MODELS

PLAN = {"steps": [{"id": "a", "type": "agent", "status": "pending", "agent": {"agent_id": "x"}}]}


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "2"])
@pytest.mark.parametrize("name", ["max_parallel", "timeout_ms"])
def test_a_limit_is_a_whole_number_above_zero(name: str, value: Any) -> None:
    (defect,) = request_defects({name: value})

    assert (defect.pointer, defect.code) == (name, "min")


def test_limits_come_from_the_job() -> None:
    limits = OrchestrateLimits.of(Limits(orchestrate_max_depth=2, agent_timeout_seconds=1.5))

    assert limits == OrchestrateLimits(max_depth=2, default_timeout_ms=1_500)
    assert [limits.is_too_deep(depth) for depth in (0, 1, 2, 3)] == [False, False, True, True]


@pytest.mark.parametrize(
    ("raw", "rule"),
    [
        ({"agent_id": "x", "prompt": " "}, "required"),
        ({"agent_id": " ", "prompt": "p"}, "required"),
        ({"agent_id": "x", "prompt": "p", "timeout_ms": 0}, "min"),
        ({"agent_id": "x", "prompt": "p", "timeout_ms": 300_001}, "max"),
    ],
)
def test_an_agent_is_asked_something_in_its_time(raw: dict[str, Any], rule: str) -> None:
    found = agent_request(raw, 60_000)

    assert isinstance(found, list)
    assert [defect.code for defect in found] == [rule]


@pytest.mark.parametrize("reply", ["", "[]", "NaN", "{" * 50_000, '{"steps": []} and more', "null"])
def test_a_planner_replies_with_one_json_object(reply: str) -> None:
    assert isinstance(read_reply(reply, max_steps=12), list)


def test_a_planner_cannot_plan_by_calling_itself() -> None:
    plan = json.loads(json.dumps(PLAN).replace('"x"', '"cp__agent_orchestrate"'))

    found = read_reply(json.dumps(plan), max_steps=12)

    assert isinstance(found, list)
    assert found[0].code == "forbidden"
    assert isinstance(read_reply(json.dumps(PLAN), max_steps=12), OrchestrationPlan)


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        ({}, "expected exactly one of 'plan' or 'prompt'"),
        ({"plan": PLAN, "prompt": "p"}, "expected exactly one of 'plan' or 'prompt'"),
        ({"prompt": "p", "timeout_ms": 0}, "/timeout_ms: expected minimum 1"),
        ({"prompt": "p", "max_parallel": -3}, "/max_parallel: expected minimum 1"),
        ({"plan": {"steps": [{**PLAN["steps"][0], "agent": None}]}}, "/plan/steps/0/agent: expected object"),
        ({"plan": {"steps": [{**PLAN["steps"][0], "parallel": {}}]}}, "/plan/steps/0/parallel: required but missing"),
    ],
)
def test_the_published_schema_tells_what_is_wrong_where_it_is(request_: dict[str, Any], told: str) -> None:
    assert any(told in violation.render() for violation in violations(ORCHESTRATE_INPUT, request_))


def test_the_schemas_agree_on_plans() -> None:
    check_schema(PLAN_SCHEMA_FOR_MODELS, "the planner")

    assert violations(ORCHESTRATE_INPUT, {"plan": PLAN}) == []
    assert violations(PLAN_SCHEMA_FOR_MODELS, PLAN) == []


def test_what_is_asked_above_a_limit_is_lowered_and_told() -> None:
    limits = OrchestrateLimits(max_parallel=4, default_timeout_ms=60_000)
    asked = {"max_parallel": 40, "timeout_ms": 60_001}

    told = limits.lowerings(asked)

    assert [(one.pointer, one.code) for one in told] == [("max_parallel", "lowered"), ("timeout_ms", "lowered")]
    assert "40 is above the limit of 4" in told[0].message
    assert limits.lowered(asked) == limits
    assert limits.lowerings({"max_parallel": 4, "timeout_ms": 1, "prompt": "p"}) == []


@pytest.mark.parametrize(
    ("children", "wanted", "is_told"), [(6, 5, True), (6, 4, False), (3, 40, False), (6, None, False)]
)
def test_a_group_is_told_only_what_makes_a_difference(children: int, wanted: int | None, is_told: bool) -> None:
    told = OrchestrateLimits(max_parallel=4).group_lowerings(children, wanted, "steps[0].parallel.max_concurrency")

    assert [one.pointer for one in told] == ["steps[0].parallel.max_concurrency"] * is_told


def test_limits_under_caps_are_the_lower_of_both() -> None:
    own, caps = OrchestrateLimits(max_depth=5, max_steps=2), OrchestrateLimits(max_depth=3, max_steps=12)

    assert own.capped(caps) == OrchestrateLimits(max_depth=3, max_steps=2)
