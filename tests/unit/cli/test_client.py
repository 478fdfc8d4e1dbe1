"""The HTTP client: what it sends, and which error a refusal becomes."""

from __future__ import annotations

import pytest

from planq.api.cli.client import CommandClient
from planq.shared.platform.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    PlanInvalid,
    PlanqError,
    TooLarge,
    Unauthorized,
    Unavailable,
)
from tests.support.ports import free_port
from tests.support.recorder import Recorder


def test_it_sends_what_the_api_expects(server: Recorder) -> None:
    server.answer(200, {"id": "1", "items": [{"name": "now"}]})

    with CommandClient(server.url + "/", "key") as client:
        client.submit({"input": "hi"}, idempotency_key="once")
        client.job("1")
        client.job("1", wait=2.5)
        client.pages("jobs", most=3, status="failed", agent=None)
        client.ask("POST", "jobs", "a/b", "cancel")
        tools = client.ask("GET", "tools")["items"]
        client.ask("POST", "plans", "validate", body={"plan": {"calls": []}})

    assert tools == [{"name": "now"}]
    assert [(method, path, body) for method, path, _, body in server.asked] == [
        ("POST", "/jobs", {"input": "hi"}),
        ("GET", "/jobs/1", None),
        ("GET", "/jobs/1?wait=2.5", None),
        ("GET", "/jobs?status=failed&limit=3", None),
        ("POST", "/jobs/a%2Fb/cancel", None),
        ("GET", "/tools", None),
        ("POST", "/plans/validate", {"plan": {"calls": []}}),
    ]
    assert all(headers["authorization"] == "Bearer key" for _, _, headers, _ in server.asked)
    assert server.asked[0][2]["idempotency-key"] == "once"


def test_an_empty_key_is_sent_for_the_api_to_refuse_and_another_is_made_for_each_job(server: Recorder) -> None:
    server.answer(202, {"id": "1"})

    with CommandClient(server.url) as client:
        client.submit({"input": "hi"}, idempotency_key="")
        client.submit({"input": "hi"})
        client.submit({"input": "hi"})

    empty, one, other = [headers["idempotency-key"] for _, _, headers, _ in server.asked]
    assert empty == ""
    assert one != other


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, Unauthorized),
        (404, NotFound),
        (409, Conflict),
        (413, TooLarge),
        (422, InvalidRequest),
        (400, InvalidRequest),
        (503, Unavailable),
    ],
)
def test_a_problem_becomes_our_error_with_the_apis_message(
    server: Recorder, status: int, kind: type[PlanqError]
) -> None:
    server.answer(status, {"title": "short", "detail": "the whole story", "status": status})

    with CommandClient(server.url) as client, pytest.raises(kind, match=r"^the whole story$"):
        client.job("1")


def test_an_invalid_plan_keeps_its_errors(server: Recorder) -> None:
    errors = [{"tool_index": 0, "error": {"type": "unknown_tool"}}]
    server.answer(422, {"code": "plan_invalid", "detail": "1 defect", "errors": errors})

    with CommandClient(server.url) as client, pytest.raises(PlanInvalid) as caught:
        client.submit({"input": "x"})

    assert caught.value.errors == errors


@pytest.mark.parametrize("body", [b"<html>", b"[1]", b""])
def test_an_answer_that_is_no_planq_says_so(server: Recorder, body: bytes) -> None:
    server.answer(200, body)

    with CommandClient(server.url) as client, pytest.raises(Unavailable, match="expected JSON from a planq API"):
        client.job("1")


def test_no_answer_names_the_url_and_what_to_do() -> None:
    url = f"http://127.0.0.1:{free_port()}"

    with (
        CommandClient(url) as client,
        pytest.raises(Unavailable, match=rf"no planq API answers at {url} .*planq up.*--url"),
    ):
        client.job("1")
