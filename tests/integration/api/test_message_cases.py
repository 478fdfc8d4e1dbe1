"""Conformance of the message flow over HTTP (`inbound_flow`, operations `http` and `openapi`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from planq.shared.agentic.references.resolution import as_called
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import JobStatus
from planq.shared.kernel.store.transitions import PostgresJobStore
from planq.shared.platform import errors
from planq.shared.platform.database import Database
from planq.shared.platform.errors import ErrorRecord
from tests.conformance.cases import Case, load, mismatches, params
from tests.conformance.overrides import expectation
from tests.integration.api.conftest import Api, MakeApi
from tests.support.claiming import claim_stage

NOT_THERE_YET = {"/webhooks/telegram": "the channel telegram"}
CASES = [
    case
    for case in load("inbound_flow")
    if case.op in ("http", "openapi") and case.input.get("path") not in NOT_THERE_YET
]

FAILURES: Mapping[str, errors.PlanqError] = {
    "auth": errors.AuthFailed("401 of the provider"),
    "weird": errors.ModelRefused("something that nobody foresaw"),
}
"""How a job fails whose model call went wrong, as `llm_error` of a case names it."""


def message(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the message of a case: of the key's tenant, unless it names another than the key."""
    is_foreign = given.get("message_tenant") != given.get("key_tenant")
    raw = {"tenant_id": "other" if is_foreign else "default", "channel": "web", "content": {"text": "Hello"}}
    return {**raw, "from": {"type": "user", "external_id": "user-123"}, "thread": str(uuid4())}


def failing(api: Api, job_id: str, error: errors.PlanqError) -> None:
    """Let a job fail as a worker does whose model call has."""

    async def work(database: Database) -> None:
        store = PostgresJobStore(database, new_id(), as_called)
        claim = await claim_stage(store, UUID(job_id), [JobStatus.QUEUED])
        assert claim is not None
        assert await store.end_job(claim, JobStatus.FAILED, None, ErrorRecord.of(error), [])

    api.jobs.run(work)


def described(api: Api, expected: Mapping[str, Any]) -> dict[str, Any]:
    """Return which of the paths that a case expects are described."""
    known = api.http.get("/openapi.json").json()["paths"]
    return {"paths": [path for path in expected["paths"] if path in known]}


def asked(api: Api, given: Mapping[str, Any]) -> httpx.Response:
    """Send the request of a case."""
    path, method = given["path"], given["method"]
    if path != "/messages/inbound":
        body = given.get("body", {"current_step": 1, "execution_results": []} if path.endswith("/refine") else None)
        return api.http.request(method, path, **({} if body is None else {"json": body}))
    error = errors.Unreached("the breaker is open") if given.get("circuit") == "open" else None
    error = FAILURES.get(given.get("llm_error", ""), error)
    if given.get("rate_limited"):
        api.jobs.configure(rate_limit=1)
        api.http.post(path, json=message(given), params={"async_processing": True})
    if error is None:
        return api.http.post(path, json=message(given), params={"async_processing": True})
    queued = api.http.post(path, json=message(given), params={"async_processing": True})
    failing(api, queued.json()["job_id"], error)
    return api.http.get(queued.headers["location"])


def answer(found: httpx.Response, expected: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer in the words of the cases; of headers and of a part of the body what is asked for."""
    body = found.json()
    seen: dict[str, Any] = {"status": found.status_code, "body": body, "detail": body.get("detail")}
    seen["headers"] = [name for name in expected.get("headers", ()) if name in found.headers]
    seen["part"] = {name: body.get(name) for name in expected.get("part", ())}
    return seen


@pytest.mark.parametrize("case", params(CASES))
def test_case(case: Case, make_api: MakeApi, api: Api) -> None:
    expected, used = expectation(case)
    expected = {("part" if name == "body_contains" else name): value for name, value in expected.items()}
    used_api = api
    if case.input.get("api_key", "") is None:
        used_api = make_api(api_keys="a-key-that-nobody-sends")
    elif case.input.get("path") == "/messages/inbound":
        used_api = make_api()
        used_api.jobs.configure()

    actual = described(api, expected) if case.op == "openapi" else answer(asked(used_api, case.input), expected)

    by = "; ".join(f"D{rule.decision}: {rule.name}" for rule in used) or "the case itself"
    assert mismatches(expected, actual) == [], f"expected by {by}"
