"""Compiling orchestrations: the calls that come out, and every defect at once."""

from __future__ import annotations

from typing import Any

import pytest

from planq.shared.agentic.orchestration.compiling import Compiled, compile_orchestration
from planq.shared.agentic.orchestration.plan import OrchestrationPlan
from planq.shared.agentic.orchestration.request import OrchestrateLimits
from planq.shared.agentic.orchestration.validation import read_plan
from planq.shared.agentic.plan.document import parse_plan


def agent(name: str, **call: Any) -> dict[str, Any]:
    return {"id": name, "type": "agent", "status": "pending", "agent": {"agent_id": name, "prompt": "go", **call}}


def group(name: str, *calls: dict[str, Any], **fields: Any) -> dict[str, Any]:
    steps = [{"prompt": "go", **call} for call in calls]
    return {"id": name, "type": "parallel", "status": "pending", "parallel": {"steps": steps, **fields}}


def compiled(*steps: dict[str, Any], bindings: Any = None, limits: OrchestrateLimits | None = None) -> Any:
    decoded = read_plan({"steps": list(steps)})
    assert isinstance(decoded, OrchestrationPlan), decoded
    return compile_orchestration(decoded, limits or OrchestrateLimits(), bindings)


def test_each_step_becomes_one_call_after_the_one_before() -> None:
    found = compiled(agent("a", result_key="k"), group("p", {"agent_id": "b"}, {"agent_id": "c"}), agent("d"))

    assert isinstance(found, Compiled)
    plan = parse_plan(found.plan)
    assert [(call.tool_name, call.depends_on, call.retries) for call in plan.calls] == [
        ("cp__call_agent", [], 0),
        ("cp__parallel", [0], 0),
        ("cp__call_agent", [1], 0),
    ]
    assert plan.calls[1].arguments["max_concurrency"] == 2
    assert [step["id"] for step in found.frame["steps"]] == ["a", "p", "d"]


def test_bindings_of_the_request_win_and_those_of_a_group_stay_in_it() -> None:
    found = compiled(
        group("p", {"agent_id": "b", "prompt": "{{ bindings.x }} {{ bindings.mode }}"}, bindings={"mode": "fast"}),
        agent("d", **{"with": {"x": "{{ x }}"}}),
        bindings={"x": 2},
    )

    group_arguments, later = [call["arguments"] for call in found.plan["calls"]]
    assert group_arguments["steps"][0]["prompt"] == "2 fast"
    assert later["with"] == {"x": 2}
    assert found.frame["bindings"] == {"x": 2}
    (defect,) = compiled(
        group("p", {"agent_id": "b", "prompt": "p"}, bindings={"mode": "fast"}),
        agent("d", **{"with": {"mode": "{{ bindings.mode }}"}}),
    )
    assert (defect.pointer, defect.code) == ("steps[1].agent.with.mode", "unknown_binding")


@pytest.mark.parametrize(("own", "given"), [(None, 5_000), (120_000, 120_000), (1, 1)])
def test_an_agent_gets_its_own_time_or_the_default(own: int | None, given: int) -> None:
    call = {} if own is None else {"timeout_ms": own}
    limits = OrchestrateLimits(default_timeout_ms=5_000)

    found = compiled(agent("a", **call), limits=limits)

    assert found.plan["calls"][0]["arguments"]["timeout_ms"] == given


def test_the_longest_time_counts_groups_as_they_run() -> None:
    limits = OrchestrateLimits(max_parallel=2, default_timeout_ms=10_000)

    found = compiled(agent("a"), group("p", *[{"agent_id": "b"}] * 3), limits=limits)

    assert found.seconds == 10 + 20


def test_bindings_that_are_called_as_results_are_defects_all_told() -> None:
    defects = compiled(
        agent("a", result_key="k", prompt="{{ result.g }}"),
        group("p", {"agent_id": "b", "result_key": "c"}, result_key="g", bindings={"k": 1}),
        bindings={"c": 1, "g": 2},
    )

    assert [(defect.pointer, defect.code) for defect in defects] == [
        ("bindings.c", "duplicate_result_key"),
        ("bindings.g", "duplicate_result_key"),
        ("steps[0].agent.prompt", "forward_reference"),
        ("steps[1].parallel.bindings.k", "duplicate_result_key"),
    ]


def test_the_result_of_first_success_is_the_winners_own() -> None:
    found = compiled(
        group("p", {"agent_id": "b", "result_key": "v"}, merge_strategy="first_success", result_key="g"),
        agent("d", **{"with": {"a": "{{ result.g.v }}", "b": "{{ result.v.x }}"}}),
    )

    assert found.plan["calls"][1]["arguments"]["with"] == {
        "a": "$0.output.output.v",
        "b": "$0.output.children.0.output.x",
    }


def test_what_is_not_as_asked_stands_in_the_frame() -> None:
    steps = [
        group("p", *[{"agent_id": "b"}] * 6, max_concurrency=9),
        agent("a", **{"with": {"n": "{{ bindings.o.none }}"}}),
    ]
    plan, limits = read_plan({"steps": steps, "bindings": {"o": {}}}), OrchestrateLimits()
    assert isinstance(plan, OrchestrationPlan)

    found = compile_orchestration(plan, limits, lowered=limits.lowerings({"max_parallel": 9}))

    assert isinstance(found, Compiled)
    assert [(one["path"], one["rule"]) for one in found.frame["warnings"]] == [
        ("max_parallel", "lowered"),
        ("steps[0].parallel.max_concurrency", "lowered"),
        ("plan", "unknown_name"),
    ]
    assert "'bindings.o.none'" in found.frame["warnings"][2]["message"]
    assert "warnings" not in compiled(agent("a")).frame
