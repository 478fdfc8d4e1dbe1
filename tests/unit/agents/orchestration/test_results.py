"""What an orchestration returns, from what became of its steps."""

from __future__ import annotations

from typing import Any

import pytest

from planq.shared.agentic.orchestration.plan import MergeStrategy
from planq.shared.agentic.schema.schemas import violations
from planq.worker.agents.orchestration.results import (
    AgentResult,
    Status,
    StepOutcome,
    agent_counts,
    first_success,
    group_bindings,
    group_status,
    merge,
    render_orchestration,
)
from planq.worker.agents.orchestration.schema import ORCHESTRATE_OUTPUT

BOOM = {"code": "tool_error", "message": "boom"}
GOOD = AgentResult(Status.SUCCESS, "e1", {"v": 1}, None, 12, 2.0)
BAD = AgentResult(Status.FAILED, "e2", None, BOOM, 5, 1.0)
LOST = AgentResult(Status.SKIPPED, "e3", None, {"code": "cancelled", "message": "not needed"})
UNREACHED = StepOutcome(was_begun=False, succeeded=False)


def frame(strategy: str = "collect") -> dict[str, Any]:
    return {
        "id": "plan",
        "bindings": {"topic": "x"},
        "steps": [
            {"id": "a", "type": "agent", "result_key": "k", "agent_id": "one", "action_id": ""},
            {
                "id": "p",
                "type": "parallel",
                "result_key": "g",
                "merge_strategy": strategy,
                "children": [
                    {"result_key": "c1", "agent_id": "two", "action_id": ""},
                    {"result_key": "c2", "agent_id": "three", "action_id": "look"},
                ],
            },
        ],
    }


def rendered(*outcomes: StepOutcome, strategy: str = "collect") -> dict[str, Any]:
    document = render_orchestration(frame(strategy), outcomes)
    assert violations(ORCHESTRATE_OUTPUT, document) == []
    return document


def test_a_success_binds_every_named_output() -> None:
    document = rendered(StepOutcome(True, True, [GOOD], None, 20), StepOutcome(True, True, [GOOD, GOOD]))

    assert document["success"] is True
    assert document["bindings"] == {
        "topic": "x",
        "k": {"v": 1},
        "c1": {"v": 1},
        "c2": {"v": 1},
        "g": {"c1": {"v": 1}, "c2": {"v": 1}},
    }
    assert "errors" not in document
    assert document["steps"][0] == {
        "id": "a",
        "type": "agent",
        "status": "success",
        "agent_id": "one",
        "exec_id": "e1",
        "output": {"v": 1},
        "elapsed_ms": 20,
    }
    assert agent_counts(document) == {"steps": 2, "agents": 3, "success": 3, "failed": 0, "skipped": 0}


def test_what_was_not_reached_is_skipped() -> None:
    document = rendered(StepOutcome(True, False, [BAD], BOOM), UNREACHED)

    assert document["success"] is False
    assert [step["status"] for step in document["steps"]] == ["failed", "skipped"]
    assert document["errors"] == [{"step_id": "a", "error": BOOM}]
    assert document["bindings"] == {"topic": "x"}


def test_a_group_that_failed_is_partial_and_binds_nothing() -> None:
    document = rendered(StepOutcome(True, True, [GOOD]), StepOutcome(True, False, [GOOD, BAD], BOOM))

    group = document["steps"][1]
    assert (group["status"], "output" in group) == ("partial", False)
    assert [child["status"] for child in group["children"]] == ["success", "failed"]
    assert document["bindings"] == {"topic": "x", "k": {"v": 1}}
    assert (document["success"], document["errors"]) == (False, [{"step_id": "p[1]", "error": BOOM}])


def test_an_error_of_the_group_itself_is_told_beside_those_of_its_agents() -> None:
    late = {"code": "plan_timeout", "message": "the steps did not end in time"}
    quoted = {"code": "tool_error", "message": "agent 'three' did not succeed: boom"}

    by_itself = rendered(StepOutcome(True, True, [GOOD]), StepOutcome(True, False, [GOOD, BAD], late))
    by_its_agent = rendered(StepOutcome(True, True, [GOOD]), StepOutcome(True, False, [GOOD, BAD], quoted))

    assert by_itself["errors"] == [{"step_id": "p[1]", "error": BOOM}, {"step_id": "p", "error": late}]
    assert by_its_agent["errors"] == [{"step_id": "p[1]", "error": BOOM}]


@pytest.mark.parametrize(("error", "told"), [(BOOM, []), ({"code": "cancelled", "message": "gone"}, [None])])
def test_what_ended_the_run_is_told_unless_a_step_tells_it(error: Any, told: list[None]) -> None:
    document = render_orchestration(frame(), [StepOutcome(True, False, [BAD], BOOM), UNREACHED], error)

    assert [one.get("step_id") for one in document["errors"]] == ["a", *told]
    assert document["success"] is False


def test_warnings_of_the_frame_are_those_of_the_output() -> None:
    warning = {"path": "max_parallel", "rule": "lowered", "message": "…"}
    outcomes = [StepOutcome(True, True, [GOOD]), StepOutcome(True, True, [GOOD, GOOD])]

    document = render_orchestration({**frame(), "warnings": [warning]}, outcomes)

    assert (document["warnings"], document["success"]) == ([warning], True)
    assert violations(ORCHESTRATE_OUTPUT, document) == []


def test_best_effort_never_fails_and_still_tells() -> None:
    document = rendered(StepOutcome(True, True, [GOOD]), StepOutcome(True, True, [BAD, GOOD]), strategy="best_effort")

    assert document["success"] is True
    assert document["steps"][1]["status"] == "partial"
    assert document["bindings"]["g"] == {"c2": {"v": 1}}
    assert document["errors"] == [{"step_id": "p[0]", "error": BOOM}]


def test_of_first_success_the_losers_are_skipped_and_no_error() -> None:
    document = rendered(
        StepOutcome(True, True, [GOOD]), StepOutcome(True, True, [LOST, GOOD]), strategy="first_success"
    )

    group = document["steps"][1]
    assert (group["status"], group["output"]) == ("success", {"v": 1})
    assert [child["status"] for child in group["children"]] == ["skipped", "success"]
    assert document["bindings"]["g"] == {"v": 1}
    assert "c1" not in document["bindings"]
    assert (document["success"], "errors" in document) == (True, False)


def test_a_step_that_failed_before_its_agents_began_tells_why() -> None:
    document = rendered(StepOutcome(True, True, [GOOD]), StepOutcome(True, False, [], BOOM))

    assert document["steps"][1]["error"] == BOOM
    assert [child["status"] for child in document["steps"][1]["children"]] == ["skipped", "skipped"]
    assert document["errors"] == [{"step_id": "p", "error": BOOM}]


@pytest.mark.parametrize(
    ("statuses", "strategy", "expected"),
    [
        (["success", "failed"], MergeStrategy.FIRST_SUCCESS, Status.SUCCESS),
        (["failed", "skipped"], MergeStrategy.FIRST_SUCCESS, Status.FAILED),
        (["success", "failed"], MergeStrategy.BEST_EFFORT, Status.PARTIAL),
        (["skipped", "skipped"], MergeStrategy.BEST_EFFORT, Status.FAILED),
    ],
)
def test_the_status_of_a_group_depends_on_its_strategy(
    statuses: list[str], strategy: MergeStrategy, expected: Status
) -> None:
    assert group_status(statuses, strategy) is expected


def test_the_first_to_succeed_wins_wherever_it_stands() -> None:
    children = [
        AgentResult(Status.FAILED, order=0.5, result_key="a"),
        AgentResult(Status.SUCCESS, output="late", order=2.0, result_key="b"),
        AgentResult(Status.SUCCESS, output="early", order=1.0, result_key="c"),
    ]

    assert first_success(children) is children[2]
    assert merge(MergeStrategy.FIRST_SUCCESS, children) == "early"
    assert group_bindings(MergeStrategy.FIRST_SUCCESS, children, "g") == {"c": "early", "g": "early"}
    assert group_bindings(MergeStrategy.FIRST_SUCCESS, children[:1], "g") == {"g": None}
