"""What a body may hold: counted before anything is built of it, and few of its defects told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from planq.api.http.exchange import MAX_BODY_PARTS, MAX_DEFECT_CHARS, MAX_DEFECTS
from tests.integration.api.conftest import Api, problem_of

JSON = {"Content-Type": "application/json"}
PLAN = b'{"plan":{"type":"tool_calls","calls":['

TOO_MANY: dict[str, tuple[str, bytes]] = {
    "lists": ("/plans/validate", PLAN + b"[]," * MAX_BODY_PARTS + b"[]]}}"),
    "fields": ("/jobs", b'{"input":"x",' + b",".join(b'"%x":0' % one for one in range(MAX_BODY_PARTS // 2)) + b"}"),
    "nested": ("/jobs", b'{"input":"x","metadata":{"a":' + b"[" * MAX_BODY_PARTS + b"]" * MAX_BODY_PARTS + b"}}"),
}


@pytest.mark.parametrize("kind", TOO_MANY)
def test_a_body_with_too_many_values_is_refused_by_their_number(api: Api, kind: str) -> None:
    path, body = TOO_MANY[kind]

    refused = problem_of(api.http.post(path, content=body, headers=JSON), 413, "too_large")

    assert refused["limit"] == MAX_BODY_PARTS
    assert "values and keys" in refused["detail"]


def test_a_text_of_commas_is_no_body_of_many_values(api: Api) -> None:
    text = ',:[{"\\' * 50_000
    body = {"plan": {"calls": [{"tool_name": "text_search", "arguments": {"query": text}}]}}

    response = api.http.post("/jobs", json=body)

    assert response.status_code == 202, response.text


def _many(count: int, value: Any = 0) -> dict[str, Any]:
    return {"input": "x", **{f"unknown_{one}": value for one in range(count)}}


@pytest.mark.parametrize("count", [100, 90_000])
def test_few_of_many_defects_are_told_and_how_many_are_not(api: Api, count: int) -> None:
    refused = problem_of(api.http.post("/jobs", json=_many(count)), 422, "invalid_request")

    assert len(refused["errors"]) == MAX_DEFECTS
    assert refused["errors"][0]["field"] == "unknown_0"
    assert len(json.dumps(refused)) < 10_000
    assert refused.get("errors_left_out") == count - MAX_DEFECTS or str(count) in refused["detail"]


def test_one_defect_more_than_are_told_is_said_to_be_left_out(api: Api) -> None:
    told = problem_of(api.http.post("/jobs", json=_many(MAX_DEFECTS)), 422, "invalid_request")
    more = problem_of(api.http.post("/jobs", json=_many(MAX_DEFECTS + 1)), 422, "invalid_request")

    assert "errors_left_out" not in told
    assert more["errors_left_out"] == 1


@pytest.mark.parametrize("count", [MAX_DEFECTS, 3_000])
def test_defects_of_a_plan_are_told_in_part(api: Api, count: int) -> None:
    plan = {"calls": [{"tool_name": f"nothing_{one}" + "x" * 200, "arguments": {}} for one in range(count + 1)]}

    refused = problem_of(api.http.post("/jobs", json={"plan": plan}), 422, "plan_invalid")
    checked = api.http.post("/plans/validate", json={"plan": plan}).json()

    for found in (refused, checked):
        assert len(found["errors"]) == MAX_DEFECTS
        assert found["errors_left_out"] == count + 1 - MAX_DEFECTS
        assert all(len(str(value)) <= 2 * MAX_DEFECT_CHARS for one in found["errors"] for value in one.values())


@pytest.mark.parametrize("unit", ["{{", "{{a}}", "{{ query[", "{{vars.a"])
def test_a_loop_of_hostile_templates_is_refused_with_few_defects(api: Api, unit: str) -> None:
    rule = {"tool": "search", "with": {"query": unit * (31_000 // len(unit)) * 2}}

    body = {"input": "go", "strategy": "loop", "loop": {"after": [rule]}}
    refused = problem_of(api.http.post("/jobs", json=body), 422, "invalid_request")

    assert 1 <= len(refused["errors"]) <= MAX_DEFECTS


def test_only_what_holds_a_plan_may_be_long(make_api: Any) -> None:
    api = make_api()
    text = "x" * 1_500_000

    long = api.http.post(
        "/jobs", json={"plan": {"calls": [{"tool_name": "text_search", "arguments": {"query": text}}]}}
    )
    refused = api.http.put("/tenants/one", json={"name": text})

    assert long.status_code != 413, long.text
    assert problem_of(refused, 413, "too_large")["limit"] == 1024 * 1024
