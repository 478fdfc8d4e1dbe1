"""The frequent requests answer alike whether their route serves them directly or FastAPI does, and refuse alike."""

from __future__ import annotations

import socket
from typing import Any

import httpx
import pytest

from planq.shared.domain.tools.definition import ToolDefinition
from planq.shared.store.jobs.worker_registry import WorkerRegistry
from tests.integration.api.conftest import JSON, TOOLS, Api, MakeApi, problem_of, search
from tests.support.stored import documents
from tests.support.waiting import eventually

BY_ROUTE = {"Content-Type": "application/json; charset=utf-8"}
"""A body whose type says more than that it is JSON is not served directly."""

OWN = ("id", "created_at", "expires_at")
PASSING = ("date", "content-length", "x-ratelimit-remaining", "x-ratelimit-reset")

BODIES = [
    b'{"input": "say hello"}',
    '{"input": "Grüße 🙂", "metadata": {"a": [1.5, null, "\\u0000"]}, "limits": {"max_tool_steps": 3}}'.encode(),
    b'{"plan": {"calls": [{"tool_name": "text_search", "arguments": {"query": "\\u00e9"}}]}, "metadata": {}}',
    b'{"plan": {"calls": [{"tool_name": "nobody", "arguments": {}}]}}',
    b'{"plan": {"calls": []}}',
    b'{"plan": 1}',
    b'{"input": "a", "tools": ["nobody"]}',
    b'{"input": "a", "strategy": "guess"}',
    b'{"input": " "}',
    b'{"input": 1}',
    b'{"input": "a", "wrong": 1, "limits": {"max_tool_steps": 0}}',
    b'{"input": "a",',
    b'{"input": "\\ud800"}',
    b'{"input": "a", "metadata": {"x": 18446744073709551616}}',
    b"[]",
    b"null",
    b"",
    b"\xff",
    b"[" * 5_000,
]


def told(response: httpx.Response) -> tuple[int, dict[str, str], Any]:
    """Return what a response says, without what is a job's own."""
    headers = {name: value for name, value in response.headers.items() if name not in PASSING}
    body = response.json()
    if "location" in headers:
        assert headers.pop("location") == f"/jobs/{body['id']}"
    return response.status_code, headers, {name: value for name, value in body.items() if name not in OWN}


@pytest.mark.parametrize("body", BODIES)
def test_a_submission_is_answered_alike_either_way(api: Api, body: bytes) -> None:
    short = api.http.post("/jobs", content=body, headers=JSON)
    long = api.http.post("/jobs", content=body, headers=BY_ROUTE)

    assert told(short) == told(long)


@pytest.mark.parametrize(
    "headers", [{"Idempotency-Key": "two words"}, {"Origin": "http://evil.example"}, {"Host": "x"}]
)
def test_headers_are_refused_alike_either_way(api: Api, headers: dict[str, str]) -> None:
    short = api.http.post("/jobs", content=BODIES[0], headers={**JSON, **headers})
    long = api.http.post("/jobs", content=BODIES[0], headers={**BY_ROUTE, **headers})

    assert short.status_code >= 400
    assert told(short) == told(long)


@pytest.mark.parametrize("job", [None, "0190a1b2-0000-7000-8000-000000000000"])
def test_a_look_is_answered_alike_either_way(api: Api, job: str | None) -> None:
    found = job or api.submit({"plan": {"calls": [search()]}})["id"]

    for query in ("", "?wait=0.01"):
        short = api.http.get(f"/jobs/{found}{query}")
        long = api.http.get(f"/jobs/{found.upper()}{query or '?wait=0.0e0'}")
        assert short.json() == long.json() | ({"detail": short.json()["detail"]} if job else {})
        assert (short.status_code, short.headers["content-type"]) == (long.status_code, long.headers["content-type"])


@pytest.mark.parametrize("headers", [JSON, BY_ROUTE])
def test_a_body_without_a_length_is_refused_once_it_is_too_long(make_api: MakeApi, headers: dict[str, str]) -> None:
    api = make_api(max_plan_bytes=1_024)

    def pieces() -> Any:
        yield b'{"input": "'
        yield b"a" * 2_000
        yield b'"}'

    problem_of(api.http.post("/jobs", content=pieces(), headers=headers), 413, "too_large")
    assert api.jobs.execute("SELECT 1 FROM jobs") == []


def test_a_body_that_comes_in_pieces_is_taken(api: Api) -> None:
    response = api.http.post("/jobs", content=iter([b'{"inp', b'ut": "in pieces"', b"}"]), headers=JSON)

    assert (response.status_code, response.json()["input"]) == (202, "in pieces")


def test_a_client_that_leaves_within_its_body_leaves_no_job(make_api: MakeApi) -> None:
    api = make_api()
    head = b"POST /jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", api.port), timeout=60) as connection:
        # A whole value, but not the whole body.
        connection.sendall(head + b'Transfer-Encoding: chunked\r\n\r\nf\r\n{"input": "no"}\r\n')

    def is_counted() -> bool:
        lines = api.http.get("/metrics").text.splitlines()
        return any(line.startswith('planq_http_requests_total{method="POST",route="/jobs"') for line in lines)

    eventually(is_counted, what="the request is over")
    assert api.jobs.execute("SELECT 1 FROM jobs") == []


def test_a_tool_that_was_published_a_moment_ago_is_known(make_api: MakeApi) -> None:
    api = make_api()
    api.jobs.publish_tools()
    api.submit({"plan": {"calls": [search()]}})  # now the catalogue is kept
    new = ToolDefinition.model_validate({**TOOLS[0].model_dump(), "name": "brand_new"})
    call = {"tool_name": "brand_new", "arguments": {"query": "x"}}
    problem_of(api.http.post("/jobs", json={"plan": {"calls": [call]}}), 422, "plan_invalid")
    problem_of(api.http.post("/jobs", json={"input": "a", "tools": ["brand_new"]}), 422, "invalid_request")

    api.jobs.run(
        lambda database: WorkerRegistry(database, api.settings.lease).publish_tools(documents([*TOOLS, new]))
    )

    api.submit({"plan": {"calls": [call]}})
    api.submit({"input": "a", "tools": ["brand_new"]})
