"""Reading plans: strict, and every structural defect at once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planq.shared.agentic.plan.compile import compile_plan
from planq.shared.agentic.plan.document import Plan, parse_plan
from planq.shared.agentic.plan.errors import PlanError, format_plan_errors
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.states import Effect, Pool
from planq.shared.platform.errors import PlanInvalid
from tests.unit.agentic.strategies import json_values


def test_what_no_json_text_can_say_is_refused() -> None:
    deep: Any = 1
    for _ in range(300):
        deep = [deep]
    with pytest.raises(PlanInvalid) as refused:
        parse_plan({"calls": [{"tool_name": "a", "arguments": {"a": deep}}]})
    assert refused.value.errors[0]["error"]["type"] == "too_deep"
    assert defects({"calls": [{"tool_name": "a", "arguments": {"a": float("nan")}}]}) == [""]
    assert defects({"calls": [{"tool_name": "a", "arguments": {"a": {1, 2}}}]}) == [""]


def defects(raw: Any, *, from_model: bool = False) -> list[str]:
    with pytest.raises(PlanInvalid) as refused:
        parse_plan(raw, from_model=from_model)
    assert {error["error"]["type"] for error in refused.value.errors} == {"invalid_plan"}
    return [error["error"]["path"] for error in refused.value.errors]


def test_a_caller_may_leave_out_what_a_model_may_not() -> None:
    raw = {"calls": [{"tool_name": "now"}]}
    assert parse_plan(raw).calls[0].arguments == {}
    assert defects(raw, from_model=True) == ["/type", "/reasoning", "/calls/0/arguments"]


def test_all_defects_are_reported_with_their_places() -> None:
    calls = [
        {"tool_name": 5, "arguments": [], "retries": -1, "x": 1},
        {"tool_name": "", "depends_on": ["a", True], "timeout_seconds": -1.0},
        "call",
    ]
    assert defects({"type": "other", "calls": calls, "more": 1}) == [
        "/type",
        "/calls/0/tool_name",
        "/calls/0/arguments",
        "/calls/0/retries",
        "/calls/0/x",
        "/calls/1/tool_name",
        "/calls/1/depends_on/0",
        "/calls/1/depends_on/1",
        "/calls/1/timeout_seconds",
        "/calls/2",
        "/more",
    ]


@pytest.mark.parametrize("raw", [None, [], "plan", {}, {"calls": []}, {"calls": {}}])
def test_what_is_no_plan_is_refused(raw: Any) -> None:
    assert defects(raw)


@given(st.dictionaries(st.sampled_from(["type", "calls", "reasoning"]), json_values | st.lists(json_values)))
def test_any_json_is_a_plan_or_refused_with_our_error(raw: Any) -> None:
    try:
        plan: Plan | None = parse_plan(raw)
    except PlanInvalid as refused:
        plan = None
        errors = refused.errors
    assert plan is not None or errors


def test_errors_survive_being_stored_and_are_listed_up_to_a_limit() -> None:
    error = PlanError(
        1, "/a", "$0.output.x", "field_not_found", {"tool_name": "t", "field": "x", "available_fields": []}
    )
    assert PlanError.from_json(error.to_json()) == error
    text = format_plan_errors([error, error.to_json(), error], limit=2)
    assert text.count("\n- ") == 3
    assert text.endswith("and 1 more")


def test_a_compiled_step_has_the_tools_name_pool_and_lowered_limits() -> None:
    tools = {
        "web_fetch": ToolDefinition(name="web_fetch", effect=Effect.READ, timeout_seconds=50, retries=2),
        "crunch": ToolDefinition(name="crunch", effect=Effect.PURE, pool=Pool.CPU, timeout_seconds=300),
    }
    calls = [
        {"tool_name": "web.fetch", "timeout_seconds": 60.0},
        {"tool_name": "crunch", "arguments": {"x": "$0.output.text"}, "retries": 0},
        {"tool_name": "web_fetch", "timeout_seconds": 5.0, "depends_on": [1]},
    ]
    first, second, third = compile_plan(parse_plan({"calls": calls}), tools, step_timeout_seconds=100).steps
    assert (first.tool_name, first.timeout_seconds, first.dependents) == ("web_fetch", 50, (1,))
    assert (second.pool, second.timeout_seconds, second.inputs) == (Pool.CPU, 100, (0,))
    assert (first.retry.retries, second.retry.retries) == (2, 0)
    assert (third.timeout_seconds, third.inputs, third.depends_on) == (5, (), (1,))


def test_what_cannot_run_does_not_compile() -> None:
    with pytest.raises(PlanInvalid) as refused:
        compile_plan(parse_plan({"calls": [{"tool_name": "ghost", "depends_on": [3]}]}), {})
    assert [error["error"]["type"] for error in refused.value.errors] == ["unknown_tool", "invalid_dependency"]
