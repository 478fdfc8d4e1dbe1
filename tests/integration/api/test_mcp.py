"""`POST /mcp` without workers: who is let in, hostile bodies, tenancy, rates, and keys that end during a call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from planq.shared.subjects.tenants.api_keys import ApiKeyStore
from planq.shared.subjects.tenants.keys import KeyScope
from tests.integration.api.conftest import Api, MakeApi, a_key, end_key, problem_of
from tests.support.mcp_callers import ERAS, job_of, mcp_client, text_of
from tests.support.outage import closed
from tests.support.waiting import eventually

HEADERS = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
MODERN = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/list"}
LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}


def post(api: Api, body: Any, **headers: str) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return api.http.post("/mcp", content=content, headers={**HEADERS, **headers})


def called(api: Api, headers: dict[str, str] | None = None, **arguments: Any) -> Any:
    async def work() -> Any:
        async with mcp_client(api.url, headers) as client:
            return await client.call_tool("text_search", arguments)

    return asyncio.run(work())


def test_a_request_is_let_in_as_everywhere(make_api: MakeApi) -> None:
    api = make_api(require_keys=True)
    refused = post(api, LIST)
    problem_of(refused, 401, "unauthorized")
    assert refused.headers["www-authenticate"].startswith("Bearer")
    problem_of(post(api, LIST, Authorization="Bearer planq_wrong"), 401, "unauthorized")
    scopes = frozenset({KeyScope.MESSAGES})
    _, text = api.jobs.run(lambda database: ApiKeyStore(database).create("default", "chat", scopes, None))
    problem_of(post(api, LIST, Authorization=f"Bearer {text}"), 403, "insufficient_scope")
    _, text = a_key(api)
    key = {"Authorization": f"Bearer {text}"}
    assert post(api, LIST, **key).status_code == 200
    problem_of(post(api, LIST, **key, Origin="https://evil.example"), 403, "foreign_origin")
    assert api.http.get("/mcp", headers=key).status_code == 405
    assert api.http.delete("/mcp", headers=key).status_code == 405


def test_a_foreign_host_and_a_form_are_refused(api: Api) -> None:
    problem_of(post(api, LIST, Host="evil.example"), 421, "misdirected")
    problem_of(api.http.post("/mcp", data={"jsonrpc": "2.0"}), 415, "unsupported_media_type")


HOSTILE: dict[str, Callable[[], bytes]] = {
    "no JSON": lambda: b'{"jsonrpc": ',
    "nothing": lambda: b"",
    "a batch": lambda: json.dumps([LIST, LIST]).encode(),
    "a text": lambda: b'"tools/list"',
    "NaN": lambda: b'{"jsonrpc": "2.0", "id": NaN, "method": "tools/list"}',
    "a key twice": lambda: b'{"jsonrpc": "2.0", "id": 1, "id": 2, "method": "tools/list"}',
    "a long integer": lambda: b'{"jsonrpc": "2.0", "id": ' + b"9" * 5_000 + b', "method": "tools/list"}',
    "deep lists": lambda: (
        b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"a":' + b"[" * 900 + b"]" * 900 + b"}}"
    ),
    "deeper lists": lambda: b"[" * 100_000,
    "no method": lambda: b'{"jsonrpc": "2.0", "id": 1}',
    "many values": lambda: b"[" + b"0," * 300_000 + b"0]",
}


@pytest.mark.parametrize("headers", [{}, MODERN], ids=["legacy", "modern"])
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_body_that_is_no_message_is_an_error_of_the_protocol(api: Api, kind: str, headers: dict[str, str]) -> None:
    answer = post(api, HOSTILE[kind](), **headers)

    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["code"] in (-32700, -32600, -32602)
    assert len(answer.content) < 3_000


def test_a_long_body_is_refused_by_its_size(make_api: MakeApi) -> None:
    api = make_api(max_body_bytes=2_000)
    long = {**LIST, "params": {"text": "x" * 3_000}}
    problem_of(post(api, long), 413, "too_large")

    def pieces() -> Any:
        yield json.dumps(long).encode()

    problem_of(api.http.post("/mcp", content=pieces(), headers=HEADERS), 413, "too_large")


def test_deep_arguments_and_keys_that_are_none_are_told_to_the_model(api: Api) -> None:
    deep: Any = "x"
    for _ in range(100):
        deep = [deep]
    assert text_of(called(api, query=deep)).startswith("invalid_arguments: arguments: expected at most")

    async def keyed(key: Any) -> Any:
        async with mcp_client(api.url) as client:
            meta: Any = {"dev.planq/idempotencyKey": key}
            return await client.call_tool("text_search", {"query": "a"}, meta=meta)

    assert text_of(asyncio.run(keyed(7))).startswith("invalid_arguments: _meta/")
    assert text_of(asyncio.run(keyed(" "))).startswith("invalid_idempotency_key: ")


@pytest.mark.parametrize("era", ERAS)
def test_a_call_waits_no_longer_than_it_may_and_is_a_job_of_its_tenant(make_api: MakeApi, era: str) -> None:
    api = make_api(max_wait_seconds=0.2, require_keys=True)
    api.jobs.publish_tools()
    api.jobs.execute("UPDATE tools SET definition = jsonb_set(definition::jsonb, '{timeout_seconds}', '0.1')::json")
    _, text = a_key(api)
    key = {"Authorization": f"Bearer {text}"}

    async def work() -> Any:
        async with mcp_client(api.url, key, era) as client:
            return await client.call_tool("text_search", {"query": "$0.output.x"})

    result = asyncio.run(work())
    assert result.is_error
    assert "has not ended" in text_of(result)
    job = api.http.get(f"/jobs/{job_of(result)}", headers=key).json()
    assert job["plan"]["calls"][0]["arguments"] == {"query": "\\$0.output.x"}
    (row,) = api.jobs.execute("SELECT tenant_id FROM jobs")
    assert row["tenant_id"] == "acme"


def test_rates_are_those_of_jobs(make_api: MakeApi) -> None:
    api = make_api(max_wait_seconds=0.1)
    api.jobs.publish_tools()
    api.jobs.configure(max_unfinished_jobs=1)
    api.submit()
    eventually(lambda: "too_many_unfinished_jobs: " in text_of(called(api, query="a")), what="the limit is known")


@pytest.mark.parametrize("ends", ["revoked", "disabled"])
def test_a_call_ends_when_its_key_does(make_api: MakeApi, ends: str) -> None:
    api = make_api()
    api.jobs.publish_tools()
    key, text = a_key(api)
    with ThreadPoolExecutor() as pool:
        result = pool.submit(called, api, {"Authorization": f"Bearer {text}"}, query="a")
        eventually(lambda: api.waiting() == 1, what="the API waits")
        end_key(api, key, ends)
        told = result.result(timeout=100)
    assert told.is_error
    assert text_of(told).startswith("unauthorized" if ends == "revoked" else "tenant_disabled")
    assert job_of(told)


def test_a_lost_database_is_an_error_and_no_fault(make_api: MakeApi) -> None:
    api = make_api(database_timeout_seconds=0.5)
    api.jobs.publish_tools()
    with closed(api.settings.database_url):
        answer = post(api, LIST)
    assert "database_unavailable" in answer.text
