"""What a chat client's key sees and touches of jobs: the message flow alone."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest

from planq.api.intake.message_flow import plan_id_of
from planq.shared.agentic.plan.compile import compile_plan
from planq.shared.agentic.plan.document import Plan
from planq.shared.agentic.references.resolution import as_called
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.questions import StepQuestion
from planq.shared.kernel.states import JobStatus, QuestionKind, Strategy
from planq.shared.kernel.store.transitions import PostgresJobStore
from planq.shared.platform.database import Database
from planq.shared.subjects.conversations.store import ConversationStore
from planq.shared.subjects.tenants.api_keys import ApiKeyStore
from planq.shared.subjects.tenants.keys import KeyScope
from tests.integration.api.conftest import Api, problem_of, search
from tests.integration.api.control import TOOLS, JobDriver, begun, call, plan
from tests.support.claiming import claim_stage
from tests.support.conversations import message

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
FORM = StepQuestion(QuestionKind.FORM, "where?", SCHEMA)


@pytest.fixture
def api(control_api: Api) -> Api:
    return control_api


@pytest.fixture
def chat(api: Api) -> dict[str, str]:
    """Return the header of a key that has `messages` alone."""
    scopes = frozenset({KeyScope.MESSAGES})
    _, text = api.jobs.run(lambda database: ApiKeyStore(database).create("default", "chat", scopes, None))
    return {"Authorization": f"Bearer {text}"}


def turn(api: Api) -> tuple[str, str]:
    """Receive a message; return its job and its conversation."""
    inbound = message("hello", thread=str(uuid4()), strategy=Strategy.REACT)
    received = api.jobs.run(lambda database: ConversationStore(database).receive(inbound))
    return str(received.job_id), str(received.conversation_id)


def asking(api: Api, job_id: str) -> str:
    """Let a turn ask something; return the question's id."""
    body = plan(call("look"))

    async def work(database: Database) -> None:
        store = PostgresJobStore(database, new_id(), as_called)
        claim = await claim_stage(store, UUID(job_id), [JobStatus.QUEUED])
        assert claim is not None
        compiled = compile_plan(Plan.model_validate(body), {one.name: one for one in TOOLS})
        assert (await store.accept_plan(claim, "model", body, compiled.steps, [])).applied

    api.jobs.run(work)
    JobDriver(api, job_id).ask(0, FORM)
    (question,) = api.http.get(f"/jobs/{job_id}/elicitations").json()["items"]
    return str(question["id"])


def test_tasks_and_plans_show_and_touch_turns_and_tasks_alone(api: Api, chat: dict[str, str]) -> None:
    foreign = api.submit({"input": "a secret of /jobs"})["id"]
    planned = begun(api, call("look")).id
    turn_id, _ = turn(api)
    task_id = api.http.post("/tasks", json={"goal": "g"}, headers=chat).json()["task_id"]

    shown: list[str] = []
    params: dict[str, Any] = {"limit": 1}
    while len(shown) < 2 or params["cursor"]:
        page = api.http.get("/tasks", params=params, headers=chat).json()
        assert len(page["items"]) == 1, "pages are full"
        shown += [one["task_id"] for one in page["items"]]
        params["cursor"] = page["next_cursor"]
    assert shown[:2] == [task_id, turn_id]
    assert not {foreign, planned} & {*shown}
    assert api.http.get("/plans", headers=chat).json()["items"] == []
    plan_path = f"/plans/{plan_id_of(UUID(planned))}"
    for path in (f"/tasks/{foreign}", f"/tasks/{planned}", plan_path):
        problem_of(api.http.get(path, headers=chat), 404, "not_found")
    problem_of(api.http.post(f"{plan_path}/refine", json={"current_step": 1}, headers=chat), 404, "not_found")
    for act in ("cancel", "resume"):
        problem_of(api.http.post(f"/tasks/{foreign}/{act}", headers=chat), 404, "not_found")
    assert api.http.get(f"/jobs/{foreign}").json()["status"] == "queued"
    for own in (turn_id, task_id):
        assert api.http.get(f"/tasks/{own}", headers=chat).status_code == 200
        assert api.http.post(f"/tasks/{own}/cancel", headers=chat).json()["status"] == "cancelled"


def test_events_questions_and_outputs_of_the_message_flow_are_open(api: Api, chat: dict[str, str]) -> None:
    foreign = begun(api, call("sign"), call("look"))
    foreign.ask(0)
    (theirs,) = api.http.get(f"/jobs/{foreign.id}/elicitations").json()["items"]
    turn_id, _ = turn(api)
    question = asking(api, turn_id)

    listed = api.http.get("/elicitations", headers=chat).json()["items"]
    assert [one["id"] for one in listed] == [question]
    answer: dict[str, Any] = {"action": "accept", "content": {"city": "Bern"}}
    for method, path in (
        ("GET", f"/jobs/{foreign.id}/events?follow=false"),
        ("GET", f"/jobs/{foreign.id}/elicitations"),
        ("GET", f"/jobs/{foreign.id}/artifacts"),
        ("GET", f"/jobs/{foreign.id}/steps/0/output"),
        ("GET", f"/elicitations/{theirs['id']}"),
        ("POST", f"/elicitations/{theirs['id']}"),
    ):
        body = answer if method == "POST" else None
        problem_of(api.http.request(method, path, headers=chat, json=body), 404, "not_found")
    assert "step_asking" in api.http.get(f"/jobs/{turn_id}/events?follow=false", headers=chat).text
    for path in (f"/jobs/{turn_id}/elicitations", f"/jobs/{turn_id}/artifacts", f"/elicitations/{question}"):
        assert api.http.get(path, headers=chat).status_code == 200
    answered = api.http.post(f"/elicitations/{question}", json=answer, headers=chat)
    assert (answered.status_code, answered.json()["status"]) == (200, "accepted")
    for path in (f"/jobs/{turn_id}", f"/jobs/{turn_id}/steps", "/jobs", "/events", "/batches"):
        problem_of(api.http.get(path, headers=chat), 403, "insufficient_scope")


def test_artifacts_are_those_of_the_message_flow(api: Api, chat: dict[str, str]) -> None:
    def made(job_id: str, text: str) -> None:
        output = {"artifact_id": "report", "artifact": {"text": text}, "_metadata": {}}
        api.jobs.run_plan(job_id, plan(search()), {0: output})

    made(api.submit({"input": "x"})["id"], "older, of /jobs")
    problem_of(api.http.get("/artifacts/report", headers=chat), 404, "not_found")
    made(turn(api)[0], "of a turn")
    made(api.submit({"input": "y"})["id"], "newest, of /jobs")

    found = api.http.get("/artifacts/report", headers=chat)
    assert (found.json()["artifact"]["text"], found.headers["Artifact-Version"]) == ("of a turn", "2")
    problem_of(api.http.get("/artifacts/report?version=3", headers=chat), 404, "not_found")
    assert api.http.get("/artifacts/report").headers["Artifact-Version"] == "3"
