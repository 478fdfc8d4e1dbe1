"""How many jobs and tasks a tenant may send, and how many may be unfinished."""

from __future__ import annotations

from typing import Any

import pytest

from planq.shared.kernel.new_ids import new_id
from planq.shared.platform.database import Database
from planq.shared.subjects.tenants.api_keys import ApiKeyStore
from planq.shared.subjects.tenants.config import TenantConfig
from planq.shared.subjects.tenants.directory import TenantStore
from planq.shared.subjects.tenants.keys import KeyScope
from tests.integration.api.conftest import Api, problem_of
from tests.support.waiting import eventually


@pytest.fixture
def tenant() -> str:
    """Return the id of a tenant whose windows no other test counts in."""
    return f"limits-{new_id()}"[:40]


def key(api: Api, tenant_id: str, **config: Any) -> dict[str, str]:
    """Make a tenant so configured; return the header of a key of it."""

    async def work(database: Database) -> str:
        await TenantStore(database).create(tenant_id, "", TenantConfig(**config))
        scopes = frozenset({KeyScope.JOBS, KeyScope.MESSAGES})
        return (await ApiKeyStore(database).create(tenant_id, "ci", scopes, None))[1]

    return {"Authorization": f"Bearer {api.jobs.run(work)}"}


def submit(api: Api, headers: dict[str, str], **more: str) -> Any:
    return api.http.post("/jobs", json={"input": "x"}, headers={**headers, **more})


def test_a_task_counts_as_a_message(api: Api, tenant: str) -> None:
    headers = key(api, tenant, rate_limit=2)
    raw = {"tenant_id": tenant, "channel": "api", "from": {"external_id": "ann"}, "content": {"text": "hi"}}
    said = api.http.post("/messages/inbound?async_processing=true", json=raw, headers=headers)
    task = api.http.post("/tasks", json={"goal": "g"}, headers=headers)

    assert (said.status_code, task.status_code) == (202, 201)
    assert (task.headers["X-RateLimit-Limit"], task.headers["X-RateLimit-Remaining"]) == ("2", "0")
    refused = api.http.post("/tasks", json={"goal": "g"}, headers=headers)
    problem_of(refused, 429, "too_many_messages")
    assert int(refused.headers["Retry-After"]) > 0


def test_jobs_have_a_rate_of_their_own_and_a_refusal_or_a_repeat_counts_nowhere(api: Api, tenant: str) -> None:
    headers = key(api, tenant, job_rate_limit=2)

    first = submit(api, headers, **{"Idempotency-Key": "one"})
    assert (first.status_code, first.headers["X-RateLimit-Remaining"]) == (202, "1")
    assert submit(api, headers, **{"Idempotency-Key": "one"}).headers["Idempotency-Replayed"] == "true"
    problem_of(api.http.post("/jobs", json={"input": ""}, headers=headers), 422, "invalid_request")
    assert submit(api, headers).headers["X-RateLimit-Remaining"] == "0"
    refused = submit(api, headers)
    problem_of(refused, 429, "too_many_jobs")
    assert refused.headers["X-RateLimit-Limit"] == "2"
    assert int(refused.headers["Retry-After"]) > 0


def test_unfinished_jobs_have_a_limit_that_burns_nothing_of_the_rate(api: Api, tenant: str) -> None:
    headers = key(api, tenant, max_unfinished_jobs=2, job_rate_limit=10)
    first = submit(api, headers).json()["id"]
    assert submit(api, headers).headers["X-RateLimit-Remaining"] == "8"

    refused = submit(api, headers)
    problem_of(refused, 429, "too_many_unfinished_jobs")
    assert (refused.headers["X-RateLimit-Unfinished-Limit"], refused.headers["Retry-After"]) == ("2", "5")

    assert api.http.post(f"/jobs/{first}/cancel", headers=headers).status_code == 200
    again = eventually(lambda: (sent := submit(api, headers)).status_code == 202 and sent, what="one has ended")
    assert again.headers["X-RateLimit-Remaining"] == "7"


def upload(api: Api, headers: dict[str, str], lines: int) -> Any:
    body = "".join(f'{{"custom_id": "{number}", "body": {{"input": "x"}}}}\n' for number in range(lines))
    return api.http.post("/batches", content=body, headers={**headers, "Content-Type": "application/jsonl"})


def test_lines_that_have_not_ended_have_a_limit(api: Api, tenant: str) -> None:
    headers = key(api, tenant, max_waiting_lines=3)
    assert upload(api, headers, 2).status_code == 202

    refused = upload(api, headers, 2)
    problem_of(refused, 429, "too_many_lines")
    assert int(refused.headers["Retry-After"]) > 0
    problem_of(upload(api, headers, 4), 413, "too_large")
    assert len(api.http.get("/batches", headers=headers).json()["items"]) == 1  # nothing is left of the others
    assert upload(api, headers, 1).status_code == 202


def test_uploads_at_once_have_a_limit(api: Api, tenant: str) -> None:
    headers = key(api, tenant, max_uploads=1)
    api.jobs.execute(
        "INSERT INTO batches (id, tenant_id, status, held_by, held_until) "
        "VALUES (%s, %s, 'uploading', %s, now() + interval '1 hour')",
        *(new_id(), tenant, new_id()),
    )
    problem_of(upload(api, headers, 1), 429, "too_many_uploads")
    api.jobs.execute("DELETE FROM batches WHERE tenant_id = %s", tenant)
    assert upload(api, headers, 1).status_code == 202
    assert upload(api, headers, 1).status_code == 202
