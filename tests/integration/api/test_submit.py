"""Submitting jobs over HTTP: what is accepted, exactly once, and what is refused with a clear problem."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import kombu
import psycopg
import pytest

from planq.shared.kernel.ids import PLAN
from planq.shared.kernel.limits import Limits
from planq.worker.agents.orchestrate import Orchestrate
from tests.integration.api import control
from tests.integration.api.conftest import JSON, Api, MakeApi, problem_of, search
from tests.support.ports import free_port
from tests.support.waiting import eventually


def test_a_job_is_accepted_stored_and_located(api: Api) -> None:
    response = api.http.post("/jobs", json={"input": " Grüße ", "metadata": {"a": [1, None]}})

    job = response.json()
    assert response.status_code == 202
    assert response.headers["location"] == f"/jobs/{job['id']}"
    assert job["status"] == "queued"
    assert job["input"] == " Grüße "
    assert job["metadata"] == {"a": [1, None]}
    assert api.http.get(response.headers["location"]).json() == job


def test_a_job_belongs_to_the_user_that_its_caller_names(api: Api) -> None:
    job = api.http.post("/jobs", json={"input": "a", "user": "ada@example.org"}).json()
    nobody = api.submit()

    assert job["user"] == "ada@example.org"
    assert api.http.get(f"/jobs/{job['id']}").json()["user"] == "ada@example.org"
    assert nobody["user"] is None
    listed = {one["id"]: one["user"] for one in api.http.get("/jobs").json()["items"]}
    assert (listed[job["id"]], listed[nobody["id"]]) == ("ada@example.org", None)
    (row,) = api.jobs.execute("SELECT user_id FROM jobs WHERE id = %s", job["id"])
    assert row == {"user_id": "ada@example.org"}


@pytest.mark.parametrize("user", ["", "x" * 129, "a\nb", "\x00", 7])
def test_a_user_that_cannot_be_one_is_refused(api: Api, user: Any) -> None:
    response = api.http.post("/jobs", json={"input": "a", "user": user})

    assert response.status_code == 422, response.text
    assert "user" in str(response.json()["errors"])


def test_a_job_is_interactive_unless_its_caller_says_otherwise(api: Api) -> None:
    bulk = api.submit({"input": "a", "priority": "bulk"})
    usual = api.submit()

    assert (bulk["priority"], usual["priority"]) == ("bulk", "interactive")
    assert api.http.get(f"/jobs/{bulk['id']}").json()["priority"] == "bulk"
    listed = {one["id"]: one["priority"] for one in api.http.get("/jobs").json()["items"]}
    assert (listed[bulk["id"]], listed[usual["id"]]) == ("bulk", "interactive")


@pytest.mark.parametrize("priority", ["", "high", "Bulk", 0, ["bulk"]])
def test_a_priority_that_there_is_not_is_refused(api: Api, priority: Any) -> None:
    response = api.http.post("/jobs", json={"input": "a", "priority": priority})

    assert response.status_code == 422, response.text
    assert "'interactive' or 'bulk'" in str(response.json()["errors"])


def test_a_wake_up_is_published_after_the_commit(make_api: MakeApi, valkey_url: str) -> None:
    api = make_api(broker_url=valkey_url)

    job = api.submit()

    with kombu.Connection(valkey_url) as connection, connection.SimpleQueue("planq.io") as queue:
        message = queue.get(timeout=60)
        message.ack()
    assert message.headers["task"] == "planq.job.plan.v1"
    assert message.payload[1] == {"job": job["id"], "pool": "io", "round": 0, "steps": [[PLAN, None]]}


def test_a_broker_that_is_down_at_submit_does_not_lose_the_job(make_api: MakeApi) -> None:
    api = make_api(broker_url=f"redis://127.0.0.1:{free_port()}/0")

    job = api.submit()

    (row,) = api.jobs.execute("SELECT status, wake_at IS NOT NULL AS swept FROM jobs WHERE id = %s", job["id"])
    assert row == {"status": "queued", "swept": True}


def test_the_same_key_and_body_are_the_same_job(api: Api) -> None:
    key = {"Idempotency-Key": "k1"}
    first = api.http.post("/jobs", json={"input": "a", "metadata": {"x": 1, "y": 2}}, headers=key)
    again = api.http.post(
        "/jobs",
        content=b'{ "metadata" : {"y": 2, "x": 1}, "input": "\\u0061" }',
        headers={**key, **JSON},
    )

    assert (first.status_code, again.status_code) == (202, 202)
    assert first.json() == again.json()
    assert again.headers["location"] == first.headers["location"]
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"


def test_the_same_key_with_another_body_is_a_conflict(api: Api) -> None:
    api.submit({"input": "a"}, **{"Idempotency-Key": "k2"})

    response = api.http.post("/jobs", json={"input": "b"}, headers={"Idempotency-Key": "k2"})

    assert "another request" in problem_of(response, 409, "conflict")["detail"]


def test_one_key_used_many_times_at_once_makes_one_job(api: Api) -> None:
    with ThreadPoolExecutor(16) as pool:
        jobs = list(pool.map(lambda _: api.submit({"input": "race"}, **{"Idempotency-Key": "k3"})["id"], range(32)))

    assert len(set(jobs)) == 1
    assert len(api.jobs.execute("SELECT 1 FROM jobs WHERE idempotency_key = 'k3'")) == 1


def test_a_replay_is_answered_even_when_its_tools_are_gone(make_api: MakeApi) -> None:
    api = make_api()
    api.jobs.publish_tools()
    body = {"plan": {"calls": [search()]}}
    first = api.submit(body, **{"Idempotency-Key": "k"})
    api.jobs.execute("DELETE FROM tools")

    assert api.submit(body, **{"Idempotency-Key": "k"})["id"] == first["id"]


@pytest.mark.parametrize("key", ["", "x" * 256, "two words", "caf\xe9"])
def test_a_bad_idempotency_key_is_refused(api: Api, key: str) -> None:
    response = api.http.post("/jobs", json={"input": "a"}, headers={"Idempotency-Key": key.encode("latin-1")})

    found = problem_of(response, 400, "invalid_idempotency_key")["detail"].partition("found ")[2]
    shown = {"": "0 characters", "two words": "'two words'", "caf\xe9": r"'caf\xe9'"}
    assert found == shown.get(key, "256 characters")


def test_the_trace_of_the_caller_is_kept_and_a_missing_one_is_made(api: Api) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    given = api.submit(traceparent=f"00-{trace}-00f067aa0ba902b7-01")
    missing = api.submit(traceparent="00-00000000000000000000000000000000-00f067aa0ba902b7-01")

    def stored(job: dict[str, Any]) -> str:
        return str(api.jobs.execute("SELECT trace_id FROM jobs WHERE id = %s", job["id"])[0]["trace_id"])

    assert stored(given) == trace
    assert len(stored(missing)) == 32
    assert stored(missing) != "0" * 32


def test_a_plan_needs_no_input_and_is_kept_as_sent(api: Api) -> None:
    plan = {"calls": [{"tool_name": "text.search", "arguments": {"query": "x"}, "depends_on": []}]}

    job = api.submit({"plan": plan})

    assert job["input"] == ""
    assert job["plan"] == {"type": "tool_calls", **plan}
    assert api.http.get(f"/jobs/{job['id']}").json() == job


def test_limits_tools_and_model_are_stored(api: Api) -> None:
    job = api.submit(
        {
            "input": "a",
            "model": "openai:gpt-5",
            "tools": ["text.search", "text_search"],
            "limits": {"max_tool_steps": 3, "step_timeout_seconds": 1.5},
        }
    )

    (row,) = api.jobs.execute("SELECT model, tools, limits FROM jobs WHERE id = %s", job["id"])
    assert row["model"] == "openai:gpt-5"
    assert row["tools"] == ["text_search"]
    limits = Limits.from_json(row["limits"])
    assert (limits.max_tool_steps, limits.step_timeout_seconds, limits.max_plan_steps) == (3, 1.5, 10_000)


def test_a_context_is_kept_with_its_job_and_with_a_fork(api: Api) -> None:
    plan = {"calls": [search()]}
    job = api.submit({"input": "a", "context": "The shop is closed.", "plan": plan})
    blank = api.submit({"input": "a", "context": " ", "plan": plan})
    api.jobs.run_plan(job["id"], plan, {0: {"text": "found"}})
    fork = api.http.post(f"/jobs/{job['id']}/fork", json={"input": "b"}).json()

    ids = [job["id"], blank["id"], fork["id"]]
    rows = api.jobs.execute("SELECT with_input FROM jobs WHERE id = ANY (%s::uuid[]) ORDER BY id", ids)
    assert [row["with_input"] for row in rows] == [{"context": "The shop is closed."}, None, rows[0]["with_input"]]


REFUSED: list[tuple[str, Any, int, str, str]] = [
    ("no body", b"", 422, "invalid_request", "JSON body"),
    ("no JSON", b"hello", 400, "malformed_json", "line 1, column 1"),
    ("cut off", b'{\n  "input": "a"', 400, "malformed_json", "line 2"),
    ("NaN", b'{"input": "a", "metadata": {"x": NaN}}', 400, "malformed_json", "line 1, column 34"),
    ("infinity", b'{"input": "a", "metadata": {"x": 1e999}}', 400, "malformed_json", "column"),
    ("lone surrogate", b'{"input": "\\ud800"}', 400, "malformed_json", "surrogate"),
    ("no UTF-8", b'{"input": "\xff"}', 400, "malformed_json", "line 1"),
    ("2 000 levels", b'{"metadata": ' + b"[" * 2000 + b"]" * 2000 + b"}", 400, "malformed_json", "depth"),
    ("huge integer", b'{"input": "a", "metadata": {"x": 18446744073709551616}}', 422, "invalid_request", "64 bits"),
    ("very huge integer", b'{"metadata": ' + b"1" * 10_000 + b"}", 400, "malformed_json", "number"),
    ("deep, huge", b'{"m": 99999999999999999999, "x": ' + b"[" * 1000 + b"]" * 1000 + b"}", 422, "", "64 bits"),
    ("an array", [], 422, "invalid_request", "found an array"),
    ("null", None, 422, "invalid_request", "found null"),
    ("no input", {}, 422, "invalid_request", "input"),
    ("null input", {"input": None}, 422, "invalid_request", "found none"),
    ("empty input", {"input": ""}, 422, "invalid_request", "an empty one"),
    ("blank input", {"input": " \n\t\u2003"}, 422, "invalid_request", "white space"),
    ("empty input with a plan", {"input": "", "plan": {"calls": [search()]}}, 422, "invalid_request", "empty"),
    ("NUL", {"input": "a\x00b"}, 422, "invalid_request", "NUL"),
    ("long input", {"input": "é" * 50_001}, 413, "too_large", "at most 100000 bytes of UTF-8, found 100002"),
    ("input of a wrong type", {"input": 5}, 422, "invalid_request", "found a number (5)"),
    (
        "unknown field",
        {"input": "a", "promt": 1},
        422,
        "invalid_request",
        "known fields are action, agent, callback_url, context, conversation, conversation_id, input, limits",
    ),
    ("a long context", {"input": "a", "context": "é" * 50_001}, 413, "too_large", "context: expected at most 100000"),
    ("NUL in a context", {"input": "a", "context": "\x00"}, 422, "invalid_request", "context: the character NUL"),
    ("a context for an agent", {"input": "a", "agent": "b", "context": "c"}, 422, "invalid_request", "by `with`"),
    ("unknown strategy", {"input": "a", "strategy": "x"}, 422, "invalid_request", "known strategies are plan"),
    ("unknown model", {"input": "a", "model": "gpt"}, 422, "invalid_request", "openai:<model>"),
    ("a cassette", {"input": "a", "model": "cassette:/etc/passwd"}, 422, "invalid_request", "operator"),
    ("empty model", {"input": "a", "model": ""}, 422, "invalid_request", "unknown model"),
    ("unknown tool", {"input": "a", "tools": ["rm"]}, 422, "invalid_request", "'report_write', 'text_search'"),
    ("tools of a wrong type", {"input": "a", "tools": "text_search"}, 422, "invalid_request", "('text_search')"),
    ("metadata of a wrong type", {"input": "a", "metadata": [1]}, 422, "invalid_request", "found an array"),
    ("large metadata", {"input": "a", "metadata": {"x": "y" * 16_384}}, 413, "too_large", "16384"),
    ("a zero limit", {"input": "a", "limits": {"max_tool_steps": 0}}, 422, "invalid_request", "found a number (0)"),
    ("a long text", {"input": "a", "limits": {"max_tool_steps": "x" * 200}}, 422, "invalid_request", "120 more"),
    ("a raised limit", {"input": "a", "limits": {"max_tool_steps": 11}}, 422, "invalid_request", "at most 10"),
    ("half a step", {"input": "a", "limits": {"max_tool_steps": 1.5}}, 422, "invalid_request", "whole number"),
    ("a boolean limit", {"input": "a", "limits": {"max_tool_steps": True}}, 422, "invalid_request", "a boolean"),
    ("unknown limit", {"input": "a", "limits": {"steps": 1}}, 422, "invalid_request", "max_plan_steps"),
    ("a plan of a wrong type", {"plan": "search"}, 422, "plan_invalid", "expected an object"),
    ("a plan without calls", {"plan": {"calls": []}}, 422, "plan_invalid", "calls"),
]


@pytest.mark.parametrize(("body", "status", "code", "text"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_bad_input_is_refused_with_a_clear_problem(api: Api, body: Any, status: int, code: str, text: str) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()

    problem = problem_of(api.http.post("/jobs", content=content, headers=JSON), status, code or "invalid_request")

    assert text in problem["detail"]


def test_nothing_of_a_refused_request_is_stored(make_api: MakeApi) -> None:
    api = make_api()

    api.http.post("/jobs", json={"input": ""}, headers={"Idempotency-Key": "k"})
    api.http.post("/jobs", json={"plan": {"calls": [search()]}}, headers={"Idempotency-Key": "k"})

    assert api.jobs.execute("SELECT 1 FROM jobs") == []


def test_deeply_nested_metadata_is_refused(api: Api) -> None:
    nested: Any = 1
    for _ in range(500):
        nested = {"a": nested}

    response = api.http.post("/jobs", json={"input": "a", "metadata": nested}, headers={"Idempotency-Key": "deep"})
    without_key = api.http.post("/jobs", json={"input": "a", "metadata": nested})

    assert "levels" in problem_of(response, 422, "invalid_request")["detail"]
    assert "levels" in problem_of(without_key, 422, "invalid_request")["detail"]


def test_a_body_is_refused_by_its_declared_length_before_it_is_sent(api: Api) -> None:
    head = f"POST /jobs HTTP/1.1\r\nHost: 127.0.0.1:{api.port}\r\nContent-Type: application/json\r\n"

    with socket.create_connection(("127.0.0.1", api.port), timeout=60) as connection:
        connection.sendall(f"{head}Content-Length: 10000000000\r\n\r\n".encode())
        answer = connection.recv(65_536)

    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"application/problem+json" in answer


def test_a_body_without_a_length_is_refused_once_it_is_too_long(api: Api) -> None:
    def pieces() -> Iterator[bytes]:
        yield b'{"input": "'
        for _ in range(300):
            yield b"x" * 10_000
        yield b'"}'

    response = api.http.post("/jobs", content=pieces(), headers=JSON)

    assert "at most 2000000 bytes" in problem_of(response, 413, "too_large")["detail"]


CALL = {"tool_name": "text_search", "arguments": {"query": "x"}}


def test_all_defects_of_a_plan_are_reported_at_once(api: Api) -> None:
    calls = [
        {"tool_name": "nobody", "arguments": {}},
        {"tool_name": "text_search", "arguments": {"query": "$2.output.text"}},
        {"tool_name": "text_search", "arguments": {"query": "$1.output.count"}},
        {"tool_name": "text_search", "arguments": {"query": 5}},
        {"tool_name": "text_search", "arguments": {"query": "$1.output.nothing"}},
        {"tool_name": "text_search", "arguments": {"query": "a"}, "depends_on": [6]},
        {"tool_name": "text_search", "arguments": {"query": "b"}, "depends_on": [5]},
    ]

    problem = problem_of(api.http.post("/jobs", json={"input": "a", "plan": {"calls": calls}}), 422, "plan_invalid")

    found = [(error["tool_index"], error["error"]["type"]) for error in problem["errors"]]
    assert found == [
        (0, "unknown_tool"),
        (1, "forward_reference"),
        (2, "type_mismatch"),
        (3, "invalid_argument"),
        (4, "field_not_found"),
        (5, "dependency_cycle"),
    ]
    assert "unknown tool 'nobody'; available tools: 'report_write', 'text_search'" in problem["detail"]
    near = api.http.post("/jobs", json={"plan": {"calls": [{"tool_name": "text_serch"}]}})
    assert "unknown tool 'text_serch'; did you mean 'text_search'?" in problem_of(near, 422, "plan_invalid")["detail"]
    named = api.http.post("/jobs", json={"input": "a", "tools": ["report_wite"]})
    assert "did you mean 'report_write'?" in problem_of(named, 422, "invalid_request")["detail"]


@pytest.mark.parametrize("is_typed", [False, True])
def test_structural_defects_of_a_plan_hide_no_others(api: Api, is_typed: bool) -> None:
    calls: list[Any] = [
        {"tool_name": "nobody", "arguments": {}, "retries": -1},
        {"tool_name": "text_search", "arguments": "no object"},
        "no call",
        {"tool_name": "text_search", "arguments": {"query": "$4.output.text"}},
        {"tool_name": "text_search", "arguments": {"query": "{{ $2.output.text }} {{ $1.output.nothing }}"}},
    ]
    plan: dict[str, Any] = {"calls": calls}
    if is_typed:
        renamed = {"tool_name": "name", "arguments": "args"}
        steps = [one if isinstance(one, str) else {renamed.get(k, k): v for k, v in one.items()} for one in calls]
        plan = {"steps": [one if isinstance(one, str) else {"type": "tool", **one} for one in steps]}

    found = api.http.post("/plans/validate", json={"plan": plan}).json()
    problem = problem_of(api.http.post("/jobs", json={"input": "a", "plan": plan}), 422, "plan_invalid")

    told = [(error["tool_index"], error["error"]["type"]) for error in found["errors"]]
    assert told == [
        (0, "invalid_plan"),
        (0, "unknown_tool"),
        (1, "invalid_plan"),
        (2, "invalid_plan"),
        (3, "forward_reference"),
        (4, "field_not_found"),
    ]
    assert [(error["tool_index"], error["error"]["type"]) for error in problem["errors"]] == told


def test_a_plan_may_only_use_the_tools_that_the_request_allows(api: Api) -> None:
    body = {"plan": {"calls": [search()]}, "tools": ["report_write"]}

    (error,) = problem_of(api.http.post("/jobs", json=body), 422, "plan_invalid")["errors"]

    assert error["error"] == {"type": "unknown_tool", "tool_name": "text_search", "available_tools": ["report_write"]}


@pytest.mark.parametrize("size", [10_001, 20_001])
def test_a_plan_of_too_many_steps_is_refused(api: Api, size: int) -> None:
    response = api.http.post("/jobs", json={"plan": {"calls": [CALL] * size}})

    (error,) = problem_of(response, 422, "plan_invalid")["errors"]
    assert error["error"] == {"type": "too_many_steps", "limit": 10_000, "actual": size}


def test_a_lowered_limit_counts_for_the_plan_of_the_same_request(api: Api) -> None:
    body = {"plan": {"calls": [CALL] * 3}, "limits": {"max_plan_steps": 2}}

    (error,) = problem_of(api.http.post("/jobs", json=body), 422, "plan_invalid")["errors"]

    assert error["error"] == {"type": "too_many_steps", "limit": 2, "actual": 3}


def test_the_largest_plan_is_accepted_while_others_are_answered(api: Api) -> None:
    with ThreadPoolExecutor(1) as pool:
        large = pool.submit(lambda: api.http.post("/jobs", json={"plan": {"calls": [CALL] * 10_000}}))
        eventually(lambda: api.http.get("/healthz").status_code == 200)
        response = large.result()

    assert response.status_code == 202
    assert len(response.json()["plan"]["calls"]) == 10_000


def test_agents_of_a_plan_in_an_argument_are_looked_up_before_anything_runs(make_api: MakeApi) -> None:
    # Pins: the unsafe call before it ran, and then its step failed.
    api = make_api()
    control.publish(api, [*control.TOOLS, Orchestrate.definition])
    document = {"name": "clerk", "actions": {"sum": {"prompt": "Sum.", "input_schema": _NUMBERS}}}
    api.http.put("/agents/clerk", json=document).raise_for_status()

    def plan(agent_id: str, action_id: str, with_: Any, **given: Any) -> dict[str, Any]:
        agent = {"agent_id": agent_id, "action_id": action_id, "with": with_}
        inner = {"steps": [{"id": "a", "type": "agent", "status": "pending", "agent": agent}]}
        orchestrate = {"tool_name": "cp__agent_orchestrate", "arguments": {"plan": inner, **given}}
        return {"calls": [control.call("mail", "x"), control.call("look", "y"), orchestrate]}

    at = "/plan/steps/0/agent"
    for raw, place in (
        (plan("nobody", "sum", {"n": 1}), f"{at}/agent_id"),
        (plan("clerk", "fly", {}), f"{at}/action_id"),
        (plan("clerk", "sum", {"n": "one"}), f"{at}/with/n"),
        (plan("clerk", "sum", {"n": "{{ bindings.n }}"}, bindings={"n": "one"}), f"{at}/with/n"),
    ):
        problem = problem_of(api.http.post("/jobs", json={"plan": raw}), 422, "plan_invalid")
        assert [(one["tool_index"], one["argument"]) for one in problem["errors"]] == [(2, place)]
        found = api.http.post("/plans/validate", json={"plan": raw}).json()
        assert [one["place"] for one in found["errors"]] == [f"/calls/2/arguments{place}"]
    for right in (
        plan("clerk", "sum", {"n": 1}),
        plan("clerk", "sum", {"n": "{{ bindings.n }}"}, bindings={"n": "$1.output.n"}),
    ):
        assert api.http.post("/plans/validate", json={"plan": right}).json()["errors"] == []
        assert api.submit({"plan": right})["status"] == "queued"


_NUMBERS = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def test_a_reference_in_a_text_without_braces_is_warned_of(api: Api) -> None:
    # Pins: the tool was sent the letters "$0.output.text", and nothing said so.
    def plan(query: str) -> dict[str, Any]:
        return {"calls": [search(), search(query)]}

    for query, found in (
        ("Read $0.output.text now", ["$0.output.text"]),
        ("See $step[0].output.text.", ["$step[0].output.text"]),
        ("Read {{ $0.output.text }} now", []),
        ("$0.output.text", []),
        ("It costs $0.50", []),
        ("keep \\$0.output.text as it is", []),
    ):
        checked = api.http.post("/plans/validate", json={"plan": plan(query)}).json()
        made = api.submit({"plan": plan(query)})
        for warnings in (checked["warnings"], made["warnings"]):
            assert [one["details"]["reference"] for one in warnings] == found
            assert all(one["details"]["place"] == "/calls/1/arguments/query" for one in warnings)
            assert all(f"{{{{ {one['details']['reference']} }}}}" in one["message"] for one in warnings)
        assert checked["valid"]


def test_a_job_may_say_what_becomes_of_an_answer_that_was_cut_off(api: Api) -> None:
    made = api.submit({"input": "Say hello", "on_incomplete": "fail"})
    with psycopg.connect(api.settings.database_url) as connection:
        stored = connection.execute("SELECT on_incomplete FROM jobs WHERE id = %s", (made["id"],)).fetchone()
    assert stored == ("fail",)

    refused = api.http.post("/jobs", json={"input": "Say hello", "on_incomplete": "perhaps"})
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "on_incomplete")


def test_a_job_has_settings_of_its_model_calls(api: Api) -> None:
    settings = {
        "temperature": 0.2,
        "stop": ["\n"],
        "thinking": "low",
        "extra_body": {"top_k": None, "a\u0000": "\u0000"},
    }

    made = api.submit({"input": "Say hello", "model_settings": settings})

    assert made["model_settings"] == settings
    assert api.http.get(f"/jobs/{made['id']}").json()["model_settings"] == settings
    assert api.submit({"input": "Say hello", "model_settings": {}})["model_settings"] is None


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"extra_headers": {"Authorization": "Bearer x"}}, "model_settings.extra_headers"),
        ({"extra_headers": {"X-A": "v" * 5_000}}, "model_settings.extra_headers"),
        ({"extra_body": {"model": "gpt-5"}}, "model_settings.extra_body"),
        ({"service_tier": "priority"}, "model_settings.service_tier"),
        ({"temperatur": 1}, "model_settings.temperatur"),
    ],
)
def test_a_jobs_settings_are_bound_as_an_agents_are(api: Api, given: dict[str, Any], field: str) -> None:
    refused = api.http.post("/jobs", json={"input": "Say hello", "model_settings": given})

    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, field)
