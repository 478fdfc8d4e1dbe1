"""Executions of agents: jobs seen from their result; sync, async, of any depth."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from planq.shared.kernel.new_ids import new_id
from tests.integration.api.conftest import Api, MakeApi, problem_of, search
from tests.support.waiting import eventually

JSON = {"Content-Type": "application/json"}

AGENT = {
    "name": "doer",
    "description": "You do things.",
    "actions": {"greet": {"prompt": "Greet {{ who }}"}},
}


@pytest.fixture
def path(api: Api) -> str:
    assert api.http.put("/agents/doer", json=AGENT).status_code in (200, 201)
    return "/agents/doer/executions"


def answer(api: Api, job_id: str, text: str = "done", output: str | None = None) -> None:
    """End a queued job, as a worker does; `output` is JSON text."""
    if output is not None:
        api.jobs.execute("UPDATE jobs SET output = %s::json WHERE id = %s", output, job_id)
    api.jobs.complete(job_id, text, notify=True)


def test_an_execution_is_a_job_that_can_be_looked_at_while_it_runs(api: Api, path: str) -> None:
    response = api.http.post(f"{path}/async", json={"prompt": "say hello", "with": {"a": 1}})

    execution = response.json()
    assert (response.status_code, execution["status"]) == (202, "queued")
    assert response.headers["location"] == f"/executions/agents/{execution['exec_id']}"
    assert execution["agent"]["name"] == "doer"
    assert (execution["output"], execution["elapsed_ms"]) == (None, None)
    job = api.http.get(f"/jobs/{execution['exec_id']}").json()
    assert (job["input"], job["agent"]) == ("say hello", execution["agent"])
    answer(api, execution["exec_id"])
    ended = api.http.get(response.headers["location"]).json()
    assert (ended["status"], ended["output"]) == ("completed", {"text": "done"})
    assert ended["elapsed_ms"] >= 0


def test_a_structured_answer_is_the_output(api: Api, path: str) -> None:
    execution = api.http.post(f"{path}/async", json={"prompt": "x"}).json()

    answer(api, execution["exec_id"], '{"n": 1}', '{"n": 1}')

    assert api.http.get(f"/executions/agents/{execution['exec_id']}").json()["output"] == {"n": 1}
    assert api.http.get(f"/jobs/{execution['exec_id']}").json()["output"] == {"n": 1}


def test_the_synchronous_way_waits_for_the_end(api: Api, path: str) -> None:
    key = {"Idempotency-Key": "greeting"}
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(api.http.post, path, json={"action": "greet", "with": {"who": "you"}}, headers=key)
        find = "SELECT id::text FROM jobs WHERE idempotency_key = 'greeting'"
        (row,) = eventually(lambda: api.jobs.execute(find), what="the job is stored")
        answer(api, row["id"])
        response = asked.result(60)

    assert (response.status_code, response.json()["output"]) == (200, {"text": "done"})
    assert response.json()["action"] == "greet"
    again = api.http.post(path, json={"action": "greet", "with": {"who": "you"}}, headers=key)
    assert (again.status_code, again.json()) == (200, response.json())
    assert again.headers["idempotency-replayed"] == "true"
    other = api.http.post(path, json={"action": "greet"}, headers=key)
    assert "another request" in problem_of(other, 409, "conflict")["detail"]


def test_what_takes_longer_than_the_wait_limit_is_answered_202(make_api: MakeApi) -> None:
    api = make_api(max_wait_seconds=0.05)
    api.http.put("/agents/doer", json=AGENT)

    response = api.http.post("/agents/doer/executions", json={"prompt": "x"})

    assert (response.status_code, response.json()["status"]) == (202, "queued")
    assert response.headers["location"].endswith(response.json()["exec_id"])


@pytest.mark.parametrize(
    ("body", "seconds"),
    [({}, 60.0), ({"timeout_ms": 1500}, 1.5), ({"timeout_seconds": 300}, 300.0), ({"timeout": 90}, 90.0)],
)
def test_the_timeout_bounds_the_job(api: Api, path: str, body: dict[str, Any], seconds: float) -> None:
    execution = api.http.post(f"{path}/async", json={"prompt": "x", **body}).json()

    job = api.http.get(f"/jobs/{execution['exec_id']}").json()
    lives = datetime.fromisoformat(job["expires_at"]) - datetime.fromisoformat(job["created_at"])
    assert lives == timedelta(seconds=seconds)
    assert datetime.fromisoformat(job["created_at"]) <= datetime.now(UTC) + timedelta(seconds=1)


def test_the_limits_of_the_tenant_are_what_a_request_can_lower(make_api: MakeApi) -> None:
    api = make_api()
    own = {"agent_timeout_seconds": 7, "orchestrate_max_depth": 5, "orchestrate_max_steps": 2}
    api.jobs.configure(limits=own)
    api.http.put("/agents/doer", json=AGENT)

    execution = api.http.post("/agents/doer/executions/async", json={"prompt": "x"}).json()
    api.submit({"input": "x", "limits": {"orchestrate_max_depth": 4}})

    first, second = api.jobs.execute("SELECT limits FROM jobs ORDER BY id")
    assert (first["limits"]["job_timeout_seconds"], first["limits"]["orchestrate_max_depth"]) == (7.0, 5)
    assert second["limits"]["orchestrate_max_depth"] == 4
    for name, value, cap in (("orchestrate_max_depth", 6, 5), ("orchestrate_max_steps", 3, 2)):
        refused = api.http.post("/jobs", json={"input": "x", "limits": {name: value}})
        assert f"limit {name}: a request can only lower it; expected at most {cap}" in refused.json()["detail"]
        assert refused.status_code == 422
    assert execution["status"] == "queued"


@pytest.mark.parametrize(
    ("agent", "body", "status", "told"),
    [
        ("nobody", {"prompt": "x"}, 404, "agent 'nobody' does not exist; there are"),
        ("doer", {}, 422, "an action or a prompt"),
        ("doer", {"action": "fly"}, 422, "it has greet"),
        ("doer", {"prompt": "x", "timeout_ms": 300_001}, 422, "at most 300 s"),
        ("doer", {"prompt": "x", "timeout_seconds": 300.5}, 422, "at most 300 s"),
        ("doer", {"prompt": "x", "timeout_ms": 0}, 422, "timeout_ms"),
        ("doer", {"prompt": "x", "timeout_ms": -1}, 422, "timeout_ms"),
        ("doer", {"prompt": "x", "timeout_ms": 1, "timeout_seconds": 1}, 422, "timeout_ms and timeout_seconds"),
        ("doer", {"prompt": " "}, 422, "prompt: expected a text that says what to do, found only white space"),
        (
            "doer",
            {"prompt": "x", "input": "y"},
            422,
            "known fields are action, budget, conversation",
        ),
        ("doer", {"prompt": "x", "budget": {"soft": 0.5}}, 422, "budget"),
        ("doer", {"prompt": "x", "budget": {"max_tokens": 0}}, 422, "budget.max_tokens"),
        ("doer", {"prompt": "x", "with": []}, 422, "with"),
        (
            "doer",
            {"prompt": "x", "with": {"a": ["\x00"]}},
            422,
            "with/a/0: the character NUL (U+0000) cannot be stored",
        ),
    ],
)
@pytest.mark.parametrize("way", ["", "/async"])
def test_what_no_agent_can_do_is_refused(
    api: Api, path: str, agent: str, body: dict[str, Any], status: int, told: str, way: str
) -> None:
    response = api.http.post(f"/agents/{agent}/executions{way}", json=body)

    assert response.status_code == status, response.text
    assert told in response.json()["detail"]


def test_what_an_agent_cannot_be_asked_has_one_code_and_names_every_place(api: Api) -> None:
    schema = {"type": "object", "required": ["n"], "properties": {"m": {"type": "integer"}}}
    api.http.put("/agents/counter", json={"name": "counter", "actions": {"add": {"input_schema": schema}}})
    body = {"action": "add", "with": {"m": "x", "text": "a\x00"}}

    for response in (
        api.http.post("/agents/counter/executions/async", json=body),
        api.http.post("/jobs", json={"agent": "counter", **body}),
    ):
        problem = problem_of(response, 422, "invalid_arguments")
        assert [one["field"] for one in problem["errors"]] == ["with/text", "with", "with/m"]
    unknown = api.http.post("/agents/counter/executions/async", json={"action": "ad"})
    problem = problem_of(unknown, 422, "invalid_arguments")
    assert (problem["errors"][0]["field"], problem["actions"]) == ("action", ["add"])


@pytest.mark.parametrize("place", ["/agents/doer/executions", "/agents/doer/executions/async", "/jobs"])
def test_a_key_that_stands_twice_is_refused_wherever_it_comes(api: Api, path: str, place: str) -> None:
    body = b'{"agent": "doer", "input": "x", "with": {"topic": 1, "topic": 2}}'

    response = api.http.post(place, content=body, headers=JSON)

    problem = problem_of(response, 422, "invalid_request")
    assert [one["field"] for one in problem["errors"]] == ["with/topic"]
    document = api.http.put("/agents/twice", content=b'{"name": "twice",\n "name": "b"}', headers=JSON)
    (error,) = problem_of(document, 422, "invalid_request")["errors"]
    assert (error["path"], error["line"]) == ("/name", 2)


def test_a_budget_is_kept_with_the_job(api: Api, path: str) -> None:
    budget = {"max_model_calls": 3, "ask": False}
    execution = api.http.post(f"{path}/async", json={"prompt": "x", "budget": budget}).json()

    assert api.jobs.execute("SELECT budget FROM jobs WHERE id = %s", execution["exec_id"]) == [{"budget": budget}]


def test_a_job_without_an_agent_is_no_execution(api: Api) -> None:
    job = api.submit()

    assert "/jobs/" in problem_of(api.http.get(f"/executions/agents/{job['id']}"), 404, "not_found")["detail"]
    problem_of(api.http.get(f"/executions/agents/{new_id()}"), 404, "not_found")
    problem_of(api.http.get("/executions/agents/none"), 404, "not_found")


def test_children_are_shown_with_their_parent_and_by_themselves(api: Api, path: str) -> None:
    parent = api.http.post(f"{path}/async", json={"prompt": "x"}).json()["exec_id"]
    api.jobs.run_plan(parent, {"type": "tool_calls", "calls": [search()] * 3}, {})
    assert api.http.get(f"/jobs/{parent}").json()["children"] == []
    api.jobs.execute("UPDATE steps SET kind = 'agent' WHERE job_id = %s AND index = 2", parent)
    child = api.submit({"input": "part"})["id"]
    api.jobs.execute(
        "UPDATE jobs SET parent_job_id = %s, parent_step_index = 2, parent_round = 0, child_position = 1, "
        "child_key = 'facts', depth = 1 WHERE id = %s",
        parent,
        child,
    )

    (shown,) = api.http.get(f"/jobs/{parent}").json()["children"]
    assert shown == {
        "id": child,
        "step_index": 2,
        "position": 1,
        "key": "facts",
        "agent": None,
        "action": None,
        "status": "queued",
        "outcome": None,
    }
    assert api.http.get(f"/executions/agents/{parent}").json()["children"] == [shown]
    execution = api.http.get(f"/executions/agents/{child}").json()
    assert (execution["parent"], execution["depth"]) == ({"job_id": parent, "step_index": 2}, 1)


def test_the_usage_of_a_tree_has_that_of_all_jobs_below(api: Api, path: str) -> None:
    root, child, grandchild, sibling, stranger = (
        api.http.post(f"{path}/async", json={"prompt": str(number)}).json()["exec_id"] for number in range(5)
    )
    for above, below in ((root, child), (child, grandchild), (root, sibling)):
        api.jobs.execute(
            "UPDATE jobs SET parent_job_id = %s, parent_step_index = 0, parent_round = 0 WHERE id = %s", above, below
        )
    for job in (root, child):
        api.jobs.run_plan(job, {"type": "tool_calls", "calls": [search()]}, {})
        api.jobs.execute("UPDATE steps SET kind = 'agent' WHERE job_id = %s", job)
    counted = "model_calls, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, cost_usd"
    used = f"UPDATE jobs SET ({counted}) = ROW"
    api.jobs.execute(f"{used} (1, 10, 20, 3, 4, 0.1) WHERE id = %s", root)
    api.jobs.execute(f"{used} (2, 100, 200, 30, 40, 0.2) WHERE id = %s", child)
    api.jobs.execute(f"{used} (3, 1000, 2000, 300, 400, NULL) WHERE id = %s", grandchild)
    api.jobs.execute(f"{used} (9, 9, 9, 9, 9, 9) WHERE id = %s", stranger)

    shown = {job: api.http.get(f"/jobs/{job}").json() for job in (root, child, grandchild, sibling)}

    assert shown[root]["tree_usage"] == {
        "jobs": 4,
        "model_calls": 6,
        "input_tokens": 1110,
        "output_tokens": 2220,
        "cache_read_tokens": 333,
        "cache_write_tokens": 444,
        "cost_usd": 0.3,
    }
    assert (shown[root]["usage"]["input_tokens"], shown[root]["model_calls"]) == (10, 1)
    assert (shown[child]["tree_usage"]["jobs"], shown[child]["tree_usage"]["input_tokens"]) == (2, 1100)
    assert shown[grandchild]["tree_usage"] == {**shown[grandchild]["usage"], "jobs": 1, "model_calls": 3}
    assert shown[grandchild]["tree_usage"]["cost_usd"] is None
    assert shown[sibling]["tree_usage"]["jobs"] == 1
    assert api.http.get(f"/executions/agents/{root}").json()["tree_usage"] == shown[root]["tree_usage"]
    assert "with 3 child jobs <b>3330</b> tokens, <b>$0.3000</b>" in api.http.get(f"/ui/jobs/{root}").text
    assert "child job" not in api.http.get(f"/ui/jobs/{sibling}").text
