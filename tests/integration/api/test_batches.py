"""Batches over HTTP: a file comes in, and each line is told to be good or bad by its number."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.integration.api.conftest import Api, MakeApi, problem_of
from tests.support.waiting import eventually

JSONL = {"Content-Type": "application/jsonl"}
CALL = {"tool_name": "text_search", "arguments": {"query": "x"}}


def line(custom_id: str, **body: Any) -> str:
    return json.dumps({"custom_id": custom_id, "body": body or {"input": f"say {custom_id}"}})


def post(api: Api, file: str | bytes, headers: Mapping[str, str] = JSONL, **params: Any) -> httpx.Response:
    content = file.encode() if isinstance(file, str) else file
    return api.http.post("/batches", content=content, params=params, headers=headers)


def sent(api: Api, file: str | bytes, headers: Mapping[str, str] = {}, **params: Any) -> dict[str, Any]:
    """Send a file that must be taken, and return the batch once its lines were looked at."""
    answer = post(api, file, {**JSONL, **headers}, start="false", **params)
    assert answer.status_code == 202, answer.text
    path = answer.headers["Location"]
    assert path == f"/batches/{answer.json()['id']}"
    shown: dict[str, Any] = {}

    def is_validated() -> bool:
        shown.update(api.http.get(path).json())
        return shown["status"] not in ("uploading", "validating")

    eventually(is_validated, what="the lines are validated")
    return shown


def errors(api: Api, batch: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    answer = api.http.get(f"/batches/{batch['id']}/errors")
    assert answer.headers["content-type"] == "application/jsonl"
    found = [json.loads(one) for one in answer.text.splitlines()]
    assert [one["line"] for one in found] == sorted(one["line"] for one in found)
    return {one["line"]: one for one in found}


@pytest.fixture
def batches(api: Api) -> Iterator[Api]:
    yield api
    api.jobs.execute("DELETE FROM batches")


def test_each_good_line_becomes_a_job_to_be_and_each_bad_one_is_told(batches: Api) -> None:
    file = [
        "\ufeff" + line("first"),
        "",
        line("planned", plan={"calls": [CALL]}) + "\r",
        json.dumps({"custom_id": "openai", "method": "POST", "url": "/v1/jobs", "body": {"input": "hi"}}),
        "{",
        '{"custom_id": "twice", "body": {"input": "a", "input": "b"}}',
        '{"custom_id": "nul", "body": {"input": "\\u0000"}}',
        line("first", input="again"),
        line("unknown", input="x", colour="red"),
        line("planned wrongly", plan={"calls": [{**CALL, "tool_name": "nope"}]}),
        json.dumps({"body": {"input": "nobody's"}}),
        json.dumps({"custom_id": "get", "method": "GET", "body": {"input": "x"}}),
        "[1, 2]",
        line("orphan", agent="nobody", input="x"),
        line("silent", input=" "),
        line("openai", input="again"),
        line("last"),
    ]

    batch = sent(batches, "\n".join(file))

    assert (batch["status"], batch["pause_reason"]) == ("in_progress", "asked")
    assert batch["counts"] | {"invalid": 12, "waiting": 4, "total": 16} == batch["counts"]
    assert batch["request_counts"] == {"total": 4, "completed": 0, "failed": 0}
    told = errors(batches, batch)
    codes = {number: (one["custom_id"], one["error"]["code"]) for number, one in told.items()}
    assert codes == {
        5: (None, "malformed_json"),
        6: (None, "invalid_request"),
        7: ("nul", "invalid_request"),
        8: ("first", "duplicate_custom_id"),
        9: ("unknown", "invalid_request"),
        10: ("planned wrongly", "plan_invalid"),
        11: (None, "invalid_request"),
        12: ("get", "invalid_request"),
        13: (None, "invalid_request"),
        14: ("orphan", "not_found"),
        15: ("silent", "invalid_request"),
        16: ("openai", "duplicate_custom_id"),
    }
    some = batches.http.get(f"/batches/{batch['id']}/errors", params={"after": 6, "limit": 3}).text.splitlines()
    assert [json.loads(one)["line"] for one in some] == [7, 8, 9]
    assert told[8]["error"]["details"] == {"custom_id": "first", "line": 1}
    assert told[9]["error"]["details"]["errors"][0]["field"] == "body.colour"
    assert "the line is no valid JSON" in told[5]["error"]["message"]


def test_a_valid_line_is_kept_as_jobs_are_submitted(batches: Api) -> None:
    file = "\n".join([line("a"), line("b", plan={"calls": [CALL]}, priority="interactive", user="ann")])

    batch = sent(batches, file, defaults=json.dumps({"user": "bob", "metadata": {"of": "all"}}))

    rows = batches.jobs.execute(
        "SELECT custom_id, status, raw, body, job_id FROM batch_lines WHERE batch_id = %s ORDER BY line", batch["id"]
    )
    first, second = (row["body"] for row in rows)
    assert [(row["custom_id"], row["status"], row["raw"], row["job_id"]) for row in rows] == [
        ("a", "valid", None, None),
        ("b", "valid", None, None),
    ]
    assert (first["input"], first["user_id"], first["priority"]) == ("say a", "bob", "bulk")
    assert (second["user_id"], second["priority"], json.loads(second["metadata"])) == (
        "ann",
        "interactive",
        {"of": "all"},
    )
    made = batches.jobs.execute("SELECT id FROM planq_submit_jobs(%s)", json.dumps([first, second]))
    assert len(made) == 2
    (call,) = batches.http.get(f"/jobs/{made[1]['id']}").json()["plan"]["calls"]
    assert call["tool_name"] == CALL["tool_name"]


def test_a_strict_batch_runs_nothing_if_a_line_is_bad(batches: Api) -> None:
    batch = sent(batches, "\n".join([line("a"), "{", line("b")]), strict="true")

    assert (batch["status"], batch["error"]["code"], batch["paused_at"]) == ("failed", "invalid_lines", None)
    assert batch["finished_at"] is not None
    assert (batch["counts"]["cancelled"], batch["counts"]["invalid"], batch["counts"]["waiting"]) == (2, 1, 0)


def test_a_batch_without_a_good_line_fails(batches: Api) -> None:
    batch = sent(batches, "{\n[]\n\xff".encode("latin-1"))

    assert (batch["status"], batch["error"]["code"], batch["counts"]["invalid"]) == ("failed", "invalid_lines", 3)
    assert "UTF-8" in errors(batches, batch)[3]["error"]["message"]


def test_it_is_told_what_the_lines_may_use(batches: Api) -> None:
    batch = sent(
        batches,
        "\n".join(
            [
                line("free"),
                line("priced", input="x" * 4_000, model="openai:gpt-4o"),
                line("own", input="x", model="openai:gpt-4o", limits={"budget": {"max_cost_usd": 0.5}}),
                line("unpriced", input="x", model="openai:nobody-knows-it", strategy="loop"),
            ]
        ),
        max_cost_usd=7.5,
        max_tokens=1_000_000,
    )

    told = batch["estimate"]
    assert (told["model_calls"], told["unpriced_lines"], told["lines_with_rounds"]) == (8, 1, 1)
    assert 0 < told["least_cost_usd"] < told["most_cost_usd"] < 1
    assert told["input_tokens"] > 2_000
    assert (batch["budget"]["max_cost_usd"], batch["budget"]["max_tokens"]) == (7.5, 1_000_000)
    reserved = {
        row["custom_id"]: (float(row["reserved_usd"]), row["reserved_tokens"])
        for row in batches.jobs.execute("SELECT * FROM batch_lines WHERE batch_id = %s", batch["id"])
    }
    assert reserved["own"][0] == 0.5
    assert reserved["free"][0] == reserved["unpriced"][0] == 0
    assert 0 < reserved["priced"][0] <= told["most_cost_usd"]
    assert all(tokens > 0 for _, tokens in reserved.values())


def test_an_unknown_price_is_null_and_a_dash(batches: Api) -> None:
    batch = sent(batches, line("unpriced", input="x", model="openai:nobody-knows-it"))

    told = batch["estimate"]
    assert (told["unpriced_lines"], told["least_cost_usd"], told["most_cost_usd"]) == (1, None, None)
    assert batch["cost_usd"] == 0
    batches.jobs.execute("UPDATE batches SET spent_tokens = 7 WHERE id = %s", batch["id"])
    assert batches.http.get(f"/batches/{batch['id']}").json()["cost_usd"] is None
    for path in (f"/ui/batches/{batch['id']}", "/ui/batches"):
        page = batches.http.get(path)
        assert (page.status_code, "$0.00" in page.text, "–" in page.text) == (200, False, True)


@pytest.mark.parametrize("file", [b"", b"\n \r\n", b"\xef\xbb\xbf"])
def test_a_file_without_lines_is_refused(batches: Api, file: bytes) -> None:
    assert "found an empty file" in problem_of(post(batches, file), 422, "invalid_request")["detail"]
    assert batches.http.get("/batches").json()["items"] == []


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({"defaults": "{"}, "defaults"),
        ({"defaults": "[]"}, "expected a JSON object"),
        ({"defaults": '{"colour": "red"}'}, "defaults.colour"),
        ({"metadata": '{"a": 1, "a": 2}'}, "metadata"),
        ({"priority": "soon"}, "priority"),
        ({"canary": 0}, "canary"),
        ({"discount": "half"}, "discount"),
        ({"max_cost_usd": "nan"}, "max_cost_usd"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"name": "a\nb"}, "name"),
        ({"colour": "red"}, "unknown parameter"),
    ],
)
def test_parameters_are_checked_before_the_file_is_read(batches: Api, params: dict[str, Any], told: str) -> None:
    assert told in problem_of(post(batches, line("a"), **params), 422, "invalid_request")["detail"]


def test_a_discount_and_where_it_is_had_are_told_in_the_document_and_on_the_page(batches: Api) -> None:
    assert (sent(batches, line("a"))["discount"], sent(batches, line("a"))["provider_batches"]) == (None, [])
    batch = sent(batches, line("a"), discount="provider")
    assert (batch["discount"], batch["provider_batches"], batch["counts"]["deferred"]) == ("provider", [], 0)
    batches.jobs.execute(
        "INSERT INTO provider_batches (id, tenant_id, batch_id, model, scope, status, provider_id, lines, error) "
        "VALUES (%s, 'default', %s, 'openai:gpt-5-mini', '', 'submitted', 'batch_abc', 3, '<b>overloaded')",
        uuid4(),
        batch["id"],
    )

    (told,) = batches.http.get(f"/batches/{batch['id']}").json()["provider_batches"]
    listed = batches.http.get("/batches").json()["items"][0]["provider_batches"]

    names = ("provider_id", "model", "status", "lines", "error", "ended_at")
    expected = ("batch_abc", "openai:gpt-5-mini", "submitted", 3, "<b>overloaded", None)
    assert tuple(told[name] for name in names) == expected
    assert listed == [told]
    page = batches.http.get(f"/ui/batches/{batch['id']}").text
    assert "batch_abc" in page
    assert "submitted: &lt;b&gt;overloaded" in page


def test_only_files_of_lines_are_taken(batches: Api) -> None:
    problem_of(post(batches, line("a"), {"Content-Type": "application/json"}), 415, "unsupported_media_type")
    problem_of(batches.http.post("/jobs", content=line("a"), headers=JSONL), 415, "unsupported_media_type")
    ndjson = post(batches, line("a"), {"Content-Type": "application/x-ndjson; charset=utf-8"}, start="false")
    assert ndjson.status_code == 202


def test_bounds_of_a_file_and_of_a_line(make_api: MakeApi) -> None:
    api = make_api(max_batch_bytes=20_000, max_plan_bytes=1_024, max_batch_lines=3)

    batch = sent(api, "\n".join([line("long", input="x" * 2_000), line("a")]))
    assert errors(api, batch)[1]["error"]["code"] == "too_large"
    refused = problem_of(post(api, "\n".join(line(str(n)) for n in range(4))), 413, "too_large")
    assert "line 4 is one too many: expected at most 3" in refused["detail"]
    problem_of(post(api, "x" * 20_001), 413, "too_large")
    problem_of(api.http.post("/batches", content=iter([b"x" * 10_000] * 3), headers=JSONL), 413, "too_large")
    assert [one["id"] for one in api.http.get("/batches").json()["items"]] == [batch["id"]]


def test_nothing_is_left_of_a_file_that_breaks_off(batches: Api) -> None:
    counted = 'planq_http_requests_total{method="POST",route="/batches",status="499"}'
    head = f"POST /batches HTTP/1.1\r\nHost: 127.0.0.1:{batches.port}\r\nContent-Type: application/jsonl\r\n"

    with socket.create_connection(("127.0.0.1", batches.port)) as client:
        client.sendall(f"{head}Content-Length: 9000\r\n\r\n{line('a')}\n".encode())

    eventually(lambda: counted in batches.http.get("/metrics").text, what="the API sees that its client has gone")
    assert batches.http.get("/batches").json()["items"] == []


def test_the_same_key_and_file_give_the_same_batch(batches: Api) -> None:
    key = {"Idempotency-Key": f"file-{uuid4()}"}
    file = line("a") + "\n" + line("b")

    first = sent(batches, file, key)
    again = post(batches, file, {**JSONL, **key}, start="false")

    assert (again.status_code, again.json()["id"]) == (202, first["id"])
    assert again.headers["Idempotency-Replayed"] == "true"
    problem_of(post(batches, file + "\n" + line("c"), {**JSONL, **key}, start="false"), 409, "conflict")
    problem_of(post(batches, file, {**JSONL, **key}, strict="true"), 409, "conflict")
    problem_of(post(batches, file, {**JSONL, "Idempotency-Key": "ü".encode()}), 400, "invalid_idempotency_key")
    assert len(batches.http.get("/batches").json()["items"]) == 1


def test_batches_are_listed_newest_first_by_pages(batches: Api) -> None:
    made = [sent(batches, line("a"), name=f"number {n}")["id"] for n in range(3)]

    first = batches.http.get("/batches", params={"limit": 2}).json()
    second = batches.http.get("/batches", params={"limit": 2, "cursor": first["next_cursor"]}).json()

    assert [one["id"] for one in first["items"] + second["items"]] == made[::-1]
    assert second["next_cursor"] is None
    exact = batches.http.get("/batches", params={"limit": 3}).json()
    assert (len(exact["items"]), exact["next_cursor"]) == (3, None), "a page that holds the rest has none after it"
    assert [one["name"] for one in second["items"]] == ["number 0"]
    assert batches.http.get("/batches", params={"status": "failed"}).json()["items"] == []
    problem_of(batches.http.get("/batches", params={"cursor": "x"}), 422, "invalid_request")
    for path in ("", "/errors"):
        problem_of(batches.http.get(f"/batches/{uuid4()}{path}"), 404, "not_found")
        problem_of(batches.http.get(f"/batches/nonsense{path}"), 404, "not_found")


def test_another_process_goes_on_with_what_a_lost_one_has_begun(batches: Api) -> None:
    """A batch that nobody validates is taken over with the lines that are left, and an abandoned upload removed."""
    left, abandoned = uuid4(), uuid4()
    for batch, status in ((left, "validating"), (abandoned, "uploading")):
        batches.jobs.execute(
            "INSERT INTO batches (id, tenant_id, status, total, validated_lines, valid, held_by, held_until, "
            "estimate) VALUES (%s, 'default', %s, 2, 1, 1, %s, now() - interval '1 second', %s)",
            batch,
            status,
            uuid4(),
            json.dumps({"model_calls": 40}),
        )
    batches.jobs.execute(
        "INSERT INTO batch_lines (batch_id, tenant_id, line, custom_id, status, raw, body) VALUES "
        "(%s, 'default', 1, 'a', 'valid', NULL, '{}'), (%s, 'default', 2, NULL, 'received', %s, NULL)",
        left,
        left,
        line("b"),
    )
    batches.jobs.execute("UPDATE batches SET paused_at = now(), pause_reason = 'asked'")

    eventually(
        lambda: batches.http.get(f"/batches/{left}").json()["status"] == "in_progress", what="the rest is validated"
    )

    shown = batches.http.get(f"/batches/{left}").json()
    assert (shown["counts"]["waiting"], shown["counts"]["unvalidated"]) == (2, 0)
    assert shown["estimate"]["model_calls"] == 42
    problem_of(batches.http.get(f"/batches/{abandoned}"), 404, "not_found")
