"""Jobs and executions of a conversation over HTTP: as turns in its order, or as readers of it."""

from __future__ import annotations

from typing import Any

from tests.integration.api.conftest import Api, problem_of, search
from tests.integration.api.test_turn_agents import Desk


def stored(api: Api, job_id: str) -> dict[str, Any]:
    (row,) = api.jobs.execute("SELECT *, run_at = planq_never() AS is_held FROM jobs WHERE id = %s", job_id)
    return row


def test_a_job_is_a_turn_of_the_conversation_that_it_names_in_its_order(api: Api) -> None:
    desk = Desk(api, conversation_policy="merge")
    first = desk.send("hello", thread="t").json()
    body = {"input": "sum up", "conversation_id": first["conversation_id"], "user": "ann"}
    key = {"Idempotency-Key": "one"}
    sent = desk.call("POST", "/jobs", json=body, headers=key)
    assert sent.status_code == 202, sent.text
    job = sent.json()
    path = f"/conversations/{first['conversation_id']}/messages"
    rows = desk.call("GET", path).json()["items"][::-1]

    assert stored(api, job["id"])["is_held"], "it waits for the turn before it"
    assert [(row["text"], row["job_id"], row["user_id"]) for row in rows] == [
        ("hello", first["job_id"], "ann"),
        ("sum up", job["id"], "ann"),
    ]
    again = desk.call("POST", "/jobs", json=body, headers=key)
    assert (again.json()["id"], again.headers["Idempotency-Replayed"]) == (job["id"], "true")
    assert len(desk.call("GET", path).json()["items"]) == 2
    other = desk.call("POST", "/jobs", json={**body, "input": "another"}, headers=key)
    problem_of(other, 409, "conflict")
    later = desk.call("POST", "/jobs", json={**body, "plan": {"calls": [search()]}}).json()
    assert later["id"] != job["id"], "a job merges with no other"
    message = desk.send("and now?", thread="t").json()
    assert message["job_id"] not in (first["job_id"], job["id"], later["id"]), "nor does a message with a plan's job"


def test_an_execution_is_a_turn_with_the_version_that_the_conversation_keeps(api: Api) -> None:
    desk = Desk(api)
    desk.keeps("helper")
    begun = desk.call("POST", "/conversations", json={"agent": "helper"}).json()
    desk.ends(desk.send(conversation_id=begun["id"], thread=begun["thread"]))
    desk.keeps("helper", "You help more.")

    asked = {"prompt": "go on", "conversation_id": begun["id"]}
    found = desk.call("POST", "/agents/helper/executions/async", json=asked)
    assert found.status_code == 202, found.text
    assert found.json()["agent"] == {"name": "helper", "version": 1}
    job = stored(api, found.json()["exec_id"])
    assert (str(job["conversation_id"]), job["is_held"]) == (begun["id"], False)
    newest = desk.call("POST", "/jobs", json={"input": "x", "agent": "helper@2", "conversation_id": begun["id"]})
    assert newest.json()["agent"] == {"name": "helper", "version": 2}
    shown = desk.call("GET", f"/conversations/{begun['id']}").json()
    assert shown["agent_versions"] == {"helper": 1}


def test_a_job_that_reads_is_no_turn_and_is_shown_what_had_ended_when_it_came(api: Api) -> None:
    desk = Desk(api)
    first = desk.send("hello", thread="t")
    desk.ends(first)
    desk.send("and you?", thread="t")
    conversation = first.json()["conversation_id"]
    found = desk.call("POST", "/jobs", json={"input": "x", "conversation_id": conversation, "conversation": "read"})

    job = stored(api, found.json()["id"])
    assert job["history"] == {"of": conversation, "form": "full", "before": 2}
    assert (job["conversation_id"], job["is_held"]) == (None, False)
    assert len(desk.call("GET", f"/conversations/{conversation}/messages").json()["items"]) == 3


def test_what_is_no_conversation_to_have_a_job_in_is_refused(api: Api) -> None:
    desk = Desk(api, conversation_policy="reject")
    begun = desk.call("POST", "/conversations", json={}).json()
    unknown = "01a21f0c-99d7-7b49-af94-173699c3c168"

    def post(**body: Any) -> Any:
        return desk.call("POST", "/jobs", json={"input": "x", **body})

    problem_of(post(conversation_id=unknown), 404, "not_found")
    problem_of(post(conversation_id=unknown, conversation="read"), 404, "not_found")
    problem_of(post(conversation_id="x"), 404, "not_found")
    told = problem_of(post(conversation="read"), 422, "invalid_request")["detail"]
    assert "conversation_id" in told
    problem_of(post(conversation_id=begun["id"], conversation="write"), 422, "invalid_request")
    assert post(conversation_id=begun["id"]).status_code == 202
    problem_of(post(conversation_id=begun["id"]), 409, "conflict")
    assert desk.call("PATCH", f"/conversations/{begun['id']}", json={"is_closed": True}).status_code == 200
    assert "closed" in problem_of(post(conversation_id=begun["id"]), 409, "conflict")["detail"]
