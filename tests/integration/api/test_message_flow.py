"""Plans and tasks over HTTP: jobs in the words of the message flow, and its recorded cases."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest

from planq.shared.kernel.questions import StepQuestion
from planq.shared.kernel.states import QuestionKind
from planq.shared.kernel.wakes import Wake
from tests.conformance.cases import Case, load, mismatches, params
from tests.conformance.overrides import expectation
from tests.integration.api.conftest import Api, problem_of
from tests.integration.api.control import JobDriver, begun, call, failed_job

CASES = load("inbound_flow")


@pytest.fixture
def api(control_api: Api, wakes: list[Wake]) -> Api:
    return control_api


def queued(api: Api) -> str:
    return str(api.http.post("/tasks", json={"goal": "g"}).json()["task_id"])


def planning(api: Api) -> str:
    task = JobDriver(api, api.submit({"input": "g"})["id"])
    assert task.claim_stage() is not None
    return task.id


def paused(api: Api) -> str:
    task = begun(api, call("look"))
    assert api.http.post(f"/jobs/{task.id}/pause").status_code == 200
    return task.id


def completed(api: Api) -> str:
    task = begun(api, call("look"))
    task.succeed(0)
    task.answer()
    return task.id


def failed(api: Api) -> str:
    task = begun(api, call("look"))
    task.succeed(0)
    task.answer(None)
    return task.id


def cancelled(api: Api) -> str:
    task = begun(api, call("look"))
    assert api.http.post(f"/tasks/{task.id}/cancel").status_code == 200
    return task.id


TASKS: dict[str, Callable[[Api], str]] = {
    "planning": planning,
    "executing": lambda api: begun(api, call("look")).id,
    "paused": paused,
    "completed": completed,
    "failed": failed,
    "cancelled": cancelled,
    "missing": lambda api: str(uuid4()),
}


def of(op: str) -> list[Any]:
    return params(case for case in CASES if case.op == op)


@pytest.mark.parametrize("case", of("task"))
def test_task(case: Case, api: Api) -> None:
    task = TASKS[case.input["status"]](api)

    found = api.http.post(f"/tasks/{task}/{case.input['action']}")

    is_done = found.status_code == 200
    actual = {"status": found.json()["status"]} if is_done else {"error": True, "http": found.status_code}
    expected, used = expectation(case)
    assert mismatches(expected, actual) == [], f"expected by {used}"


@pytest.mark.parametrize("case", of("create_task"))
def test_create_task(case: Case, api: Api) -> None:
    found = api.http.post("/tasks", json={"goal": "g", **case.input})

    assert mismatches(expectation(case)[0], found.json()) == []


@pytest.mark.parametrize("case", of("refine_plan"))
def test_refine_plan(case: Case, api: Api) -> None:
    task = begun(api, *[call("look", str(number)) for number in case.input["steps"]])
    plan = api.http.get(f"/tasks/{task.id}").json()["plan_id"]

    found = api.http.post(f"/plans/{plan}/refine", json={"current_step": case.input["current_step"]})

    statuses = [step["status"] for step in found.json()["steps"]]
    assert mismatches(expectation(case)[0], {"statuses": statuses}) == []


def test_a_task_is_the_job_and_its_plan_the_jobs_own(api: Api) -> None:
    story = begun(api, call("look"), call("mail"), input="look, then write")
    story.succeed(0)
    story.fail(1, "tool_error")

    task = api.http.get(f"/tasks/{story.id}").json()
    plan = api.http.get(f"/plans/{task['plan_id']}").json()

    assert (task["status"], task["current_step"], task["goal"]) == ("executing", 2, "look, then write")
    assert [result["status"] for result in task["state"]["step_results"]] == ["success", "failure"]
    assert task["state"]["step_results"][1]["error"] == "Unable to retrieve data"
    assert [step["status"] for step in plan["steps"]] == ["completed", "failed"]
    assert (plan["status"], plan["task_id"], plan["estimated_steps"]) == ("executing", story.id, 2)


def test_refining_a_plan_changes_nothing(api: Api) -> None:
    story = begun(api, call("look"), call("look", "b"))
    plan = f"/plans/{api.http.get(f'/tasks/{story.id}').json()['plan_id']}"
    before = api.http.get(plan).json()

    assert api.http.post(f"{plan}/refine", json={"current_step": 2}).json() != before
    assert api.http.get(plan).json() == before


def test_a_goal_becomes_a_job_as_the_tenant_has_its_messages_worked_on(api: Api) -> None:
    made = api.http.post("/tasks", json={"goal": "do it", "metadata": {"a": 1}}, headers={"Idempotency-Key": "t1"})
    again = api.http.post("/tasks", json={"goal": "do it", "metadata": {"a": 1}}, headers={"Idempotency-Key": "t1"})

    assert (made.status_code, again.json()["task_id"]) == (201, made.json()["task_id"])
    assert made.headers["location"] == f"/tasks/{made.json()['task_id']}"
    job = api.http.get(f"/jobs/{made.json()['task_id']}").json()
    assert (job["input"], job["strategy"], job["metadata"]) == ("do it", "guided", {"a": 1})


def test_lists_go_from_page_to_page_and_pass_over_what_does_not_fit(api: Api) -> None:
    with_plan, without = begun(api, call("look")).id, queued(api)
    wanted = {"/tasks": {with_plan, without}, "/tasks?status=executing": {with_plan, without}}
    wanted |= {"/agentic/tasks": {with_plan, without}, "/plans": {with_plan}, "/agentic/plans": {with_plan}}
    for path, ids in wanted.items():
        found: set[str] = set()
        cursor: str | None = ""
        while cursor is not None and not ids <= found:
            page = api.http.get(path, params={"limit": 1, **({"cursor": cursor} if cursor else {})}).json()
            found |= {item["task_id"] for item in page["items"]}
            cursor = page["next_cursor"]
        assert ids <= found
        assert without not in found or "plans" not in path
    assert api.http.get("/tasks?status=cancelled&limit=1").json()["items"] == []


def test_a_task_that_waits_for_a_person_goes_on_with_the_answer(api: Api) -> None:
    story = begun(api, call("look"))
    story.ask(0, StepQuestion(QuestionKind.FORM, "?"))

    assert api.http.get(f"/tasks/{story.id}").json()["status"] == "paused"
    refusal = problem_of(api.http.post(f"/tasks/{story.id}/resume"), 409, "conflict")
    assert f"/jobs/{story.id}/elicitations" in refusal["detail"]


def test_a_task_that_failed_goes_on_where_it_stood(api: Api) -> None:
    story = failed_job(api, "tool_error")
    assert api.http.post(f"/tasks/{story.id}/resume").status_code == 409  # as a task it has completed
    assert api.http.post(f"/tasks/{failed(api)}/resume").json()["status"] == "executing"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "says"),
    [
        ("GET", "/plans/test-plan-id", None, 404, "there is no plan"),
        ("GET", f"/plans/{UUID(int=1)}", None, 404, "there is no plan"),
        ("POST", "/plans/unknown/refine", {"current_step": 1}, 404, "there is no plan"),
        ("POST", "/plans/unknown/refine", {"current_step": -1}, 422, "current_step"),
        ("POST", "/plans/unknown/refine", {"current_step": "1"}, 422, "current_step"),
        ("GET", "/tasks/no-uuid", None, 404, "there is no job"),
        ("GET", "/tasks?status=done", None, 422, "status"),
        ("GET", "/tasks?cursor=%20", None, 422, "cursor"),
        ("GET", "/tasks?offset=1", None, 422, "offset"),
        ("POST", "/tasks", {}, 422, "goal: is required"),
        ("POST", "/tasks", {"goal": ""}, 422, "an empty one"),
        ("POST", "/tasks", {"goal": "g", "plan_id": "p"}, 422, "plan_id"),
        ("POST", "/tasks", {"goal": "g\x00"}, 422, "NUL"),
        ("POST", f"/tasks/{UUID(int=1)}/cancel", None, 404, "there is no job"),
    ],
)
def test_what_cannot_be_done_is_told(api: Api, method: str, path: str, body: Any, status: int, says: str) -> None:
    found = api.http.request(method, path, **({} if body is None else {"json": body}))

    assert found.status_code == status, found.text
    assert found.headers["content-type"] == "application/problem+json"
    assert says in json.dumps(found.json())
