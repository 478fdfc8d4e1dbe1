"""Long polls: woken by NOTIFY, by the poll where a notification is lost, and freed when the client leaves."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import Future, ThreadPoolExecutor
from time import monotonic

import httpx
import pytest

from planq.shared.kernel.questions import StepQuestion
from planq.shared.kernel.states import QuestionKind
from tests.integration.api import control
from tests.integration.api.conftest import Api, MakeApi, a_key, end_key, problem_of
from tests.support.waiting import eventually

NEVER = 3_600.0
"""A poll interval that plays no part within a test."""


def wait_in_background(api: Api, job_id: str, pool: ThreadPoolExecutor) -> Future[httpx.Response]:
    """Begin a long poll and return once the API waits."""
    before = api.waiting()
    response = pool.submit(lambda: httpx.get(f"{api.url}/jobs/{job_id}?wait=30", timeout=60, trust_env=False))
    eventually(lambda: api.waiting() == before + 1, what="the API waits")
    return response


@pytest.mark.parametrize(("ends", "status"), [("revoked", 401), ("disabled", 403)])
def test_a_wait_ends_when_its_key_does(make_api: MakeApi, ends: str, status: int) -> None:
    api = make_api(wait_poll_seconds=NEVER)
    key, text = a_key(api)
    headers = {"Authorization": f"Bearer {text}"}
    job = api.submit(**headers)
    with ThreadPoolExecutor() as pool:
        response = pool.submit(
            lambda: httpx.get(f"{api.url}/jobs/{job['id']}?wait=50", headers=headers, timeout=60, trust_env=False)
        )
        eventually(lambda: api.waiting() == 1, what="the API waits")
        end_key(api, key, ends)
        assert response.result(timeout=60).status_code == status, "the old key was given the job"


def listeners(api: Api) -> list[int]:
    """Return the server processes that listen for this application."""
    rows = api.jobs.execute(
        "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'planq-listen%%'"
        " AND datname = current_database() AND state = 'idle' AND query LIKE 'LISTEN%%'"
    )
    return [row["pid"] for row in rows]


def test_a_notification_ends_the_wait(make_api: MakeApi) -> None:
    api = make_api(wait_poll_seconds=NEVER)
    job = api.submit()
    eventually(lambda: listeners(api))
    with ThreadPoolExecutor() as pool:
        response = wait_in_background(api, job["id"], pool)

        api.jobs.complete(job["id"], notify=True)

        assert response.result(timeout=60).json()["status"] == "completed"
    assert api.waiting() == 0


def test_a_question_ends_the_wait_for_its_job_and_the_jobs_above(make_api: MakeApi) -> None:
    api = make_api(wait_poll_seconds=NEVER)
    control.publish(api, control.TOOLS)
    root, child = (control.begun(api, control.call("look")) for _ in range(2))
    api.jobs.execute(
        "UPDATE jobs SET parent_job_id = %s, root_job_id = %s WHERE id = %s RETURNING id", root.id, root.id, child.id
    )
    eventually(lambda: listeners(api))
    begun = monotonic()
    with ThreadPoolExecutor() as pool:
        waiting = [wait_in_background(api, job.id, pool) for job in (root, child)]

        child.ask(0, StepQuestion(QuestionKind.FORM, "Where to?"))

        found = [response.result(timeout=60).json() for response in waiting]
    assert [(job["status"], len(job["open_questions"])) for job in found] == [("input_required", 1)] * 2
    assert monotonic() - begun < 15, "not the time of the poll, which is 20 s at the most"


def test_an_ending_whose_notification_is_lost_is_found_by_the_poll(make_api: MakeApi) -> None:
    api = make_api(wait_poll_seconds=0.1)
    job = api.submit()
    with ThreadPoolExecutor() as pool:
        response = wait_in_background(api, job["id"], pool)

        api.jobs.complete(job["id"], notify=False)

        assert response.result(timeout=60).json()["status"] == "completed"


def test_after_the_listening_connection_is_lost_everything_is_looked_at_and_heard_again(make_api: MakeApi) -> None:
    api = make_api(wait_poll_seconds=NEVER)
    first, second = api.submit(), api.submit()
    (listener,) = eventually(lambda: listeners(api))
    with ThreadPoolExecutor() as pool:
        missed = wait_in_background(api, first["id"], pool)
        heard = wait_in_background(api, second["id"], pool)

        api.jobs.execute("SELECT pg_terminate_backend(%s)", listener)
        api.jobs.complete(first["id"], notify=False)

        assert missed.result(timeout=60).json()["status"] == "completed"
        assert eventually(lambda: listeners(api)) != [listener]
        api.jobs.complete(second["id"], notify=True)
        assert heard.result(timeout=60).json()["status"] == "completed"


def test_an_end_that_is_heard_before_anybody_waits_is_seen_at_once(make_api: MakeApi) -> None:
    api = make_api(wait_poll_seconds=NEVER)
    eventually(lambda: listeners(api))
    job, unheard = api.submit(), api.submit()
    with ThreadPoolExecutor() as pool:
        # Who waits for the other job hears the second notification, so the first one has been heard too.
        beside = wait_in_background(api, unheard["id"], pool)
        api.jobs.complete(job["id"], notify=True)
        api.jobs.complete(unheard["id"], notify=True)
        beside.result(timeout=60)

    begun = monotonic()
    assert api.http.get(f"/jobs/{job['id']}?wait=30").json()["status"] == "completed"
    assert monotonic() - begun < 25, "it waited for nothing"


def test_cancelling_ends_the_wait(make_api: MakeApi) -> None:
    api = make_api(wait_poll_seconds=NEVER)
    job = api.submit()
    with ThreadPoolExecutor() as pool:
        response = wait_in_background(api, job["id"], pool)

        api.http.post(f"/jobs/{job['id']}/cancel")

        assert response.result(timeout=60).json()["status"] == "cancelled"


def test_a_finished_job_is_answered_without_a_wait(api: Api) -> None:
    job = api.submit()
    api.jobs.complete(job["id"])

    begun = monotonic()
    response = api.http.get(f"/jobs/{job['id']}?wait=30")

    assert response.json()["status"] == "completed"
    assert monotonic() - begun < 25, "it waited for nothing"


def test_when_the_time_is_over_the_job_is_shown_as_it_stands(api: Api) -> None:
    job = api.submit()

    begun = monotonic()
    response = api.http.get(f"/jobs/{job['id']}?wait=0.2")

    assert response.json()["status"] == "queued"
    assert monotonic() - begun >= 0.2


def test_the_server_caps_the_wait(make_api: MakeApi) -> None:
    api = make_api(max_wait_seconds=0.1)
    job = api.submit()

    assert api.http.get(f"/jobs/{job['id']}?wait=86400", timeout=10).json()["status"] == "queued"


@pytest.mark.parametrize("wait", ["-1", "-0.001", "nan", "inf", "1e999", "soon", "", "1,5"])
def test_a_wait_that_is_no_time_is_refused(api: Api, wait: str) -> None:
    job = api.submit()

    problem = problem_of(api.http.get(f"/jobs/{job['id']}", params={"wait": wait}), 422, "invalid_request")

    assert problem["errors"][0]["field"] == "wait"


def test_a_client_that_leaves_frees_its_place(api: Api) -> None:
    job = api.submit()
    before = api.waiting()
    with socket.create_connection(("127.0.0.1", api.port)) as connection:
        connection.sendall(f"GET /jobs/{job['id']}?wait=30 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        eventually(lambda: api.waiting() == before + 1)

    eventually(lambda: api.waiting() == before, what="the place is free")


def test_hundreds_wait_without_a_database_connection_each(make_api: MakeApi) -> None:
    api = make_api(database_connections=3, wait_poll_seconds=0.2)
    job = api.submit()

    async def wait_together(count: int) -> list[httpx.Response]:
        limits = httpx.Limits(max_connections=count)
        async with httpx.AsyncClient(base_url=api.url, timeout=60, limits=limits, trust_env=False) as client:
            waiting = [asyncio.ensure_future(client.get(f"/jobs/{job['id']}?wait=30")) for _ in range(count)]
            await asyncio.to_thread(lambda: eventually(lambda: api.waiting() == count, 60))
            await asyncio.to_thread(lambda: api.jobs.complete(job["id"]))
            return await asyncio.gather(*waiting)

    responses = asyncio.run(wait_together(200))

    assert {response.json()["status"] for response in responses} == {"completed"}
    assert api.waiting() == 0


def submit_and_wait(
    api: Api, pool: ThreadPoolExecutor, query: str = "?wait=50", **headers: str
) -> Future[httpx.Response]:
    """Submit a job and wait for it in one request; returns once the API waits."""
    before = api.waiting()
    body = {"input": "x"}
    sent = pool.submit(
        lambda: httpx.post(f"{api.url}/jobs{query}", json=body, headers=headers, timeout=90, trust_env=False)
    )
    eventually(lambda: api.waiting() == before + 1, what="the API waits")
    return sent


@pytest.mark.parametrize(
    ("query", "headers"),
    [("?wait=50", {}), ("", {"Prefer": "respond-async, wait=50"}), ("", {"prefer": 'Wait="50"'})],
)
def test_a_job_is_submitted_and_waited_for_in_one_request(
    make_api: MakeApi, query: str, headers: dict[str, str]
) -> None:
    api = make_api(wait_poll_seconds=NEVER)
    with ThreadPoolExecutor() as pool:
        sent = submit_and_wait(api, pool, query, **headers)
        (job,) = api.http.get("/jobs").json()["items"]
        assert api.http.post(f"/jobs/{job['id']}/cancel").status_code == 200
        answer = sent.result(timeout=60)

    assert (answer.status_code, answer.json()["id"], answer.json()["status"]) == (200, job["id"], "cancelled")
    assert answer.headers["location"] == f"/jobs/{job['id']}"
    assert answer.headers.get("preference-applied") == ("wait=50" if headers else None)


def test_a_job_that_has_not_ended_in_time_is_answered_as_it_stands(make_api: MakeApi) -> None:
    api = make_api()

    answer = api.http.post("/jobs?wait=0.01", json={"input": "x"}, headers={"Idempotency-Key": "one"})
    again = api.http.post("/jobs?wait=0.01", json={"input": "x"}, headers={"Idempotency-Key": "one"})

    assert (answer.status_code, answer.json()["status"], "idempotency-replayed" in answer.headers) == (
        202,
        "queued",
        False,
    )
    assert (again.status_code, again.json()["id"]) == (202, answer.json()["id"])
    assert again.headers["idempotency-replayed"] == "true"


@pytest.mark.parametrize("preferred", ["wait", "wait=", "wait=soon", "waiting=9", "wait=-1", "x=wait=3"])
def test_a_preference_that_says_nothing_is_passed_over(make_api: MakeApi, preferred: str) -> None:
    answer = make_api().http.post("/jobs", json={"input": "x"}, headers={"Prefer": preferred})

    assert (answer.status_code, answer.headers.get("preference-applied")) == (202, None)


def test_a_task_is_waited_for_in_one_request(make_api: MakeApi) -> None:
    api = make_api()

    answer = api.http.post("/tasks?wait=0.01", json={"goal": "x"})

    assert (answer.status_code, answer.headers["location"]) == (201, f"/tasks/{answer.json()['task_id']}")
