"""Bodies of submissions as they come over the wire, and what a submission knows of the catalogue."""

from __future__ import annotations

import socket
from typing import Any

from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.store.worker_registry import WorkerRegistry
from tests.integration.api.conftest import JSON, TOOLS, Api, MakeApi, problem_of, search
from tests.support.stored import documents
from tests.support.waiting import eventually


def test_a_body_without_a_length_is_refused_once_it_is_too_long(make_api: MakeApi) -> None:
    api = make_api(max_plan_bytes=1_024)

    def pieces() -> Any:
        yield b'{"input": "'
        yield b"a" * 2_000
        yield b'"}'

    problem_of(api.http.post("/jobs", content=pieces(), headers=JSON), 413, "too_large")
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
