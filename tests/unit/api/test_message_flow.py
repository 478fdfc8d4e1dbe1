"""Jobs in the words of the message flow: statuses of plans and tasks, numbered steps, ids of plans."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from planq.api.intake.message_flow import (
    job_id_of_plan,
    plan_document,
    plan_id_of,
    step_statuses,
    task_document,
    task_status,
)
from planq.shared.kernel.ids import uuid7
from planq.shared.platform.errors import NotFound
from planq.shared.subjects.jobs.job_view import JobView

JOB = uuid7(1_764_000_000_000, b"0123456789")
NOW = datetime(2026, 11, 24, tzinfo=UTC)
GUIDE = {
    "type": "guide",
    "steps": [
        {
            "step_number": number,
            "description": f"do {number}",
            "tool": None,
            "tool_arguments": {},
            "depends_on": [],
            "success_criteria": "",
        }
        for number in (1, 2, 5)
    ],
    "estimated_steps": 4,
    "complexity": "high",
    "success_criteria": "all is done",
}


def view(*steps: dict[str, Any], **changed: Any) -> JobView:
    row = {
        "id": JOB,
        "status": "executing",
        "strategy": "guided",
        "round": 1,
        "stop_reason": None,
        "input": "the goal",
        "conversation_id": None,
        "plan_source": "guide",
        "plan_body": GUIDE,
        "created_at": NOW,
        **dict.fromkeys(("started_at", "finished_at", "paused_at")),
    }
    return JobView({**row, **changed}, steps, True)


def step(index: int, status: str = "succeeded", **changed: Any) -> dict[str, Any]:
    return {
        "index": index,
        "round": 1,
        "tool_name": "look",
        "status": status,
        "output": {"n": index},
        "payload_hash": None,
        "error": None,
        "depends_on": [],
        "started_at": NOW,
        "finished_at": NOW + timedelta(seconds=index),
        **changed,
    }


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({"status": "queued"}, "executing"),
        ({"status": "planning", "round": 0}, "planning"),
        ({"status": "planning", "round": 1}, "executing"),
        ({"status": "planning", "round": 0, "strategy": "react"}, "executing"),
        ({"status": "responding"}, "executing"),
        ({"status": "input_required"}, "paused"),
        ({"paused_at": NOW}, "paused"),
        ({"status": "completed"}, "completed"),
        ({"status": "completed", "stop_reason": "max_tool_steps"}, "failed"),
        ({"status": "completed", "stop_reason": "answered"}, "completed"),
        ({"status": "failed"}, "failed"),
        ({"status": "cancelled"}, "cancelled"),
    ],
)
def test_a_task_stands_where_its_job_does(changed: dict[str, Any], status: str) -> None:
    assert task_status(view(**changed).row) == status


def test_the_id_of_a_plan_leads_back_to_its_job_and_is_no_jobs() -> None:
    assert plan_id_of(JOB) != JOB
    assert plan_id_of(JOB).version == 8
    assert job_id_of_plan(str(plan_id_of(JOB))) == JOB
    for text in ("test-plan-id", str(JOB), str(UUID(int=0))):
        with pytest.raises(NotFound, match="there is no plan"):
            job_id_of_plan(text)


def test_steps_before_the_one_that_is_worked_on_are_done() -> None:
    assert step_statuses([1, 2, 5], 2) == ["completed", "executing", "pending"]
    assert step_statuses([1, 2, 5], 3) == ["completed", "completed", "pending"]
    assert step_statuses([1, 2, 5], 0) == ["pending"] * 3


@pytest.mark.parametrize(
    ("made", "changed", "statuses"),
    [
        (0, {}, ["pending", "pending", "pending"]),
        (1, {}, ["completed", "executing", "pending"]),
        (9, {}, ["completed", "completed", "completed"]),
        (1, {"status": "completed"}, ["completed", "completed", "completed"]),
        (1, {"status": "failed"}, ["completed", "executing", "pending"]),
    ],
)
def test_a_guide_counts_the_calls_that_were_made(made: int, changed: dict[str, Any], statuses: list[str]) -> None:
    found = plan_document(view(*map(step, range(made)), **changed))
    assert found is not None
    assert [one["status"] for one in found["steps"]] == statuses
    assert (found["estimated_steps"], found["complexity"], found["goal"]) == (4, "high", "the goal")


def test_a_plan_that_is_carried_out_shows_its_steps_with_their_numbers() -> None:
    calls = [{"tool_name": "look", "arguments": {"q": "x"}}, {"tool_name": "put", "reason": "store it"}]
    steps = [step(0, round=0), step(1, "running", round=0, depends_on=[0])]
    found = plan_document(view(*steps, strategy="plan", plan_source="model", plan_body={"calls": calls}))
    assert found is not None
    assert [(one["step_number"], one["description"], one["depends_on"], one["status"]) for one in found["steps"]] == [
        (1, "look", [], "completed"),
        (2, "store it", [1], "executing"),
    ]


def test_the_turns_of_react_are_no_plan() -> None:
    react = view(strategy="react", plan_source="model", plan_body={"calls": []})
    assert plan_document(react) is None
    assert task_document(react)["plan_id"] is None


def test_a_task_shows_what_its_steps_came_to_but_no_words_of_a_tool() -> None:
    failed = step(1, "failed", error={"code": "tool_error", "message": "no tenant abc-123"}, output=None)
    large = step(2, round=2, output=None, payload_hash="aa")
    task = task_document(view(step(0), failed, large, step(3, "running")))
    assert task["current_step"] == 3
    assert task["state"]["step_results"] == [
        {"step_number": 1, "tool_name": "look", "status": "success", "result": {"n": 0}},
        {"step_number": 1, "tool_name": "look", "status": "failure", "error": "Unable to retrieve data"},
        {
            "step_number": 2,
            "tool_name": "look",
            "status": "success",
            "result": None,
            "result_ref": f"/jobs/{JOB}/steps/2/output",
        },
    ]
    assert task["updated_at"] == datetime(2026, 11, 24, 0, 0, 3, tzinfo=UTC)
    assert task_document(view())["state"] == {}
