"""Endpoints, their secrets and the log of deliveries over HTTP; callbacks of jobs and batches."""

from __future__ import annotations

import json
from collections.abc import Iterator
from uuid import uuid4

import pytest

from planq.shared.settings.settings import Settings
from tests.integration.api.conftest import SECRET_KEY, Api, MakeApi, problem_of
from tests.integration.api.control import begun, call
from tests.support.servers import TestPostgres

HOOK = "https://example.com/hook"


@pytest.fixture(scope="module")
def signing_api(postgres: TestPostgres, api_valkey: str) -> Iterator[Api]:
    """An application that can sign, and where receivers on this machine are allowed."""
    url = postgres.create_migrated()
    given = {"secret_keys": SECRET_KEY, "webhook_allow_hosts": "127.0.0.1:9"}
    api = Api(Settings(database_url=url, broker_url=api_valkey, **given))
    api.start()
    yield api
    api.stop()
    postgres.drop(url)


def made(api: Api, **given: object) -> dict[str, object]:
    answer = api.http.post("/endpoints", json={"url": HOOK, "events": ["job.*"], **given})
    assert answer.status_code == 201, answer.text
    document: dict[str, object] = answer.json()
    return document


def test_an_endpoint_is_made_shown_changed_and_removed(signing_api: Api) -> None:
    http = signing_api.http
    new = made(signing_api, description="mine", events=["job.failed", "batch.*", "job.failed"])
    secret = new.pop("secret")
    assert isinstance(secret, str)
    assert secret.startswith("whsec_")
    assert (new["url"], new["events"], new["is_disabled"]) == (HOOK, ["job.failed", "batch.*"], False)
    assert http.get(f"/endpoints/{new['id']}").json() == new, "its secret is shown once"
    assert http.get("/endpoints", params={"limit": 1}).json()["items"] == [new]

    changed = http.patch(f"/endpoints/{new['id']}", json={"events": ["job.*"], "is_disabled": True}).json()
    assert (changed["events"], changed["is_disabled"], changed["description"]) == (["job.*"], True, "mine")
    problem_of(http.post(f"/endpoints/{new['id']}/test"), 409, "conflict")
    http.patch(f"/endpoints/{new['id']}", json={"is_disabled": False})
    rotated = http.post(f"/endpoints/{new['id']}/rotate").json()["secret"]
    assert rotated != secret
    assert http.delete(f"/endpoints/{new['id']}").status_code == 204
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/rotate"), ("POST", "/test")):
        problem_of(http.request(method, f"/endpoints/{new['id']}{path}"), 404, "not_found")
    problem_of(http.get("/endpoints/no-uuid"), 404, "not_found")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"url": "http://127.0.0.1/"}, "url: '127.0.0.1' is a loopback address"),
        ({"url": "http://169.254.169.254/"}, "a link-local address"),
        ({"url": "http://localhost:8000/"}, "a loopback address"),
        ({"url": "ftp://example.com/"}, "expected https://host/path"),
        ({"events": ["job.done"]}, "events: expected one or more of job.completed"),
        ({"events": []}, "events: expected one or more of job.completed"),
        ({"description": "a\x00b"}, "description"),
    ],
)
def test_what_an_endpoint_cannot_be_is_told(signing_api: Api, given: dict[str, object], told: str) -> None:
    sent = {"url": HOOK, "events": ["job.*"], **given}
    assert told in problem_of(signing_api.http.post("/endpoints", json=sent), 422, "invalid_request")["detail"]


def test_the_end_of_a_job_is_in_the_log_and_can_be_delivered_anew(signing_api: Api) -> None:
    http = signing_api.http
    job = signing_api.submit({"input": "x", "callback_url": "http://127.0.0.1:9/cb", "metadata": {"order": 7}})
    assert http.get("/deliveries", params={"job": job["id"]}).json()["items"] == []
    assert http.post(f"/jobs/{job['id']}/cancel").status_code == 200
    (listed,) = http.get("/deliveries", params={"job": job["id"], "status": "pending"}).json()["items"]
    assert (listed["event"], listed["url"], listed["endpoint_id"]) == ("job.cancelled", "http://127.0.0.1:9/cb", None)
    found = http.get(f"/deliveries/{listed['id']}").json()
    assert '"order":7' in found.pop("body")
    assert found == listed
    assert http.post(f"/deliveries/{listed['id']}/redeliver").status_code == 202, "at once, while it waits"
    signing_api.jobs.execute("UPDATE deliveries SET status = 'sending'")
    problem_of(http.post(f"/deliveries/{listed['id']}/redeliver"), 409, "conflict")
    signing_api.jobs.execute("UPDATE deliveries SET status = 'failed', finished_at = now()")
    again = http.post(f"/deliveries/{listed['id']}/redeliver")
    assert (again.status_code, again.json()["status"]) == (202, "pending")
    problem_of(http.post(f"/deliveries/{uuid4()}/redeliver"), 404, "not_found")
    problem_of(http.get("/deliveries", params={"status": "lost"}), 422, "invalid_request")


def test_the_secret_of_callbacks_stays_until_it_is_rotated(signing_api: Api) -> None:
    http = signing_api.http
    first = http.get("/webhook-secret").json()["secret"]
    assert http.get("/webhook-secret").json()["secret"] == first
    second = http.post("/webhook-secret/rotate").json()["secret"]
    assert second != first
    assert http.get("/webhook-secret").json()["secret"] == second


def test_a_batch_has_a_callback_of_the_same_kind(signing_api: Api) -> None:
    said = {
        "content": b'{"custom_id": "a", "body": {"input": "x"}}',
        "headers": {"Content-Type": "application/jsonl"},
    }
    refused = signing_api.http.post("/batches", params={"callback_url": "http://10.0.0.1/"}, **said)
    assert "a private address" in problem_of(refused, 422, "invalid_request")["detail"]
    taken = signing_api.http.post("/batches", params={"callback_url": HOOK}, **said)
    assert (taken.status_code, taken.json()["callback_url"]) == (202, HOOK)


def test_without_keys_for_secrets_nothing_is_promised(api: Api) -> None:
    http = api.http
    asked = (
        http.post("/jobs", json={"input": "x", "callback_url": HOOK}),
        http.post("/endpoints", json={"url": HOOK, "events": ["job.*"]}),
        http.get("/webhook-secret"),
        http.post("/webhook-secret/rotate"),
    )
    for answer in asked:
        assert "PLANQ_SECRET_KEYS is not set" in problem_of(answer, 409, "conflict")["detail"]


def test_a_question_to_a_person_is_told_with_its_id(control_api: Api) -> None:
    endpoint_id = uuid4()
    control_api.jobs.execute(
        "INSERT INTO endpoints (id, tenant_id, url, events) VALUES (%s, 'default', %s, '{job.input_required}')",
        endpoint_id,
        HOOK,
    )
    root, asks = (begun(control_api, call("sign", "a"), input="a") for _ in range(2))
    control_api.jobs.execute(
        "UPDATE jobs SET parent_job_id = %s, root_job_id = %s WHERE id = %s RETURNING id", root.id, root.id, asks.id
    )
    asks.ask(0)
    (question,) = control_api.http.get(f"/jobs/{asks.id}/elicitations").json()["items"]
    (listed,) = control_api.http.get("/deliveries", params={"job": root.id}).json()["items"]
    found = json.loads(control_api.http.get(f"/deliveries/{listed['id']}").json()["body"])
    assert found["type"] == "job.input_required"
    assert (found["data"]["id"], found["data"]["elicitation_id"]) == (root.id, question["id"])
    assert found["data"]["asking_job_id"] == asks.id
    assert control_api.http.delete(f"/endpoints/{endpoint_id}").status_code == 204


def test_the_tenants_configuration_bounds_its_endpoints(make_api: MakeApi) -> None:
    make_api().jobs.configure(max_endpoints=2)
    http = make_api(secret_keys=SECRET_KEY).http
    left = []
    for _ in range(2):
        added = http.post("/endpoints", json={"url": HOOK, "events": ["job.*"]})
        left.append(added.headers["x-ratelimit-endpoints-remaining"])
    refused = http.post("/endpoints", json={"url": HOOK, "events": ["job.*"]})
    assert left == ["1", "0"]
    assert "at most 2 endpoints" in problem_of(refused, 429, "too_many_endpoints")["detail"]
    assert (refused.headers["x-ratelimit-endpoints-limit"], refused.headers["x-ratelimit-endpoints-remaining"]) == (
        "2",
        "0",
    )
    assert http.delete(f"/endpoints/{added.json()['id']}").status_code == 204
    assert http.post("/endpoints", json={"url": HOOK, "events": ["job.*"]}).status_code == 201
