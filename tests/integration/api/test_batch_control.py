"""Batches under way over HTTP: held, taken up, cancelled, tried again; and the results of their lines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from planq.shared.kernel.store.worker_registry import WorkerRegistry
from planq.shared.platform.database import Database
from tests.integration.api.conftest import Api, problem_of
from tests.support.batches import admitted, end_jobs, item, settled, stored_batch


class Running:
    """A batch whose lines the test runs, by the transitions of the sweeper."""

    def __init__(self, api: Api, connection: psycopg.Connection[Any], lines: int, **columns: Any) -> None:
        self.connection = connection
        self.id = stored_batch(connection, [item(f"say {n}") for n in range(1, lines + 1)], **columns)
        self._http = api.http

    def ask(self, what: str, **body: Any) -> Any:
        return self._http.post(f"/batches/{self.id}/{what}", **({"json": body} if body else {}))

    def results(self, **params: str) -> str:
        answer = self._http.get(f"/batches/{self.id}/results", params=params)
        assert answer.headers["content-type"] == "application/jsonl"
        return answer.text

    def shown(self, **params: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.results(**params).splitlines()]

    def end(self, jobs: list[UUID], status: str = "completed") -> None:
        end_jobs(self.connection, jobs, status)
        settled(self.connection)


@pytest.fixture
def connection(api: Api) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(api.settings.require_database(), autocommit=True) as opened:
        yield opened
        opened.execute("DELETE FROM batches")
        opened.execute("UPDATE jobs SET batch_id = NULL, batch_line = NULL WHERE batch_id IS NOT NULL")


def test_results_come_in_the_order_of_the_file_or_of_their_ends(
    api: Api, connection: psycopg.Connection[Any]
) -> None:
    batch = Running(api, connection, 5)
    assert batch.results() == "", "nothing has ended"
    jobs = admitted(connection)
    batch.end(jobs[3:4])
    batch.end(jobs[1:2], "failed")

    partial = batch.shown()
    assert [line["custom_id"] for line in partial] == ["line-2", "line-4"]
    assert [line["custom_id"] for line in batch.shown(order="completion")] == ["line-4", "line-2"]
    failed, completed = partial
    assert completed["id"] == f"{batch.id}-4"
    assert completed["error"] is None
    assert completed["response"]["status_code"] == 200
    assert completed["response"]["body"] == api.http.get(f"/jobs/{jobs[3]}").json()
    assert failed["response"]["body"]["status"] == "failed"
    assert failed["error"]["code"] == "tool_error"
    assert [line["custom_id"] for line in batch.shown(status="failed")] == ["line-2"]

    batch.end(jobs[:1] + jobs[2:3] + jobs[4:])
    whole = batch.results()
    assert [json.loads(line)["custom_id"] for line in whole.splitlines()] == [f"line-{n}" for n in range(1, 6)]
    assert batch.results() == whole
    assert [line["custom_id"] for line in batch.shown(order="completion")][:2] == ["line-4", "line-2"]
    assert {line["custom_id"] for line in batch.shown(status="completed")} == {
        "line-1", "line-3", "line-4", "line-5",
    }  # fmt: skip


def test_a_job_of_a_batch_names_its_line(api: Api, connection: psycopg.Connection[Any]) -> None:
    batch = Running(api, connection, 2)
    job = admitted(connection)[1]
    line = {"batch_id": str(batch.id), "batch_line": 2, "custom_id": "line-2"}
    shown = api.http.get(f"/jobs/{job}").json()
    assert {name: shown[name] for name in line} == line
    listed = {one["id"]: one for one in api.http.get("/jobs").json()["items"]}
    assert {name: listed[str(job)][name] for name in line} == line
    alone = api.http.post("/jobs", json={"input": "alone"}).json()
    assert {name: alone[name] for name in line} == dict.fromkeys(line)
    assert api.http.get(f"/jobs/{alone['id']}").json() == alone


def test_a_line_whose_job_was_deleted_by_hand_fails_and_can_be_tried_again(
    api: Api, connection: psycopg.Connection[Any]
) -> None:
    batch = Running(api, connection, 2)
    jobs = admitted(connection)
    connection.execute("DELETE FROM jobs WHERE id = %s", (jobs[0],))
    batch.end(jobs[1:])

    async def tidy() -> None:
        settings = api.settings
        url, functions = settings.require_database(), settings.functions_schema
        async with Database(url, functions=functions, max_connections=2) as database:
            await WorkerRegistry(database, timedelta(seconds=15)).tidy()

    asyncio.run(tidy())
    assert api.http.get(f"/batches/{batch.id}").json()["status"] == "completed"
    [lost, _] = batch.shown()
    assert (lost["custom_id"], lost["response"], lost["error"]["code"]) == ("line-1", None, "job_deleted")
    [told] = [json.loads(line) for line in api.http.get(f"/batches/{batch.id}/errors").text.splitlines()]
    assert (told["line"], told["job_id"]) == (1, str(jobs[0]))
    assert "retry the batch" in told["error"]["message"]
    assert batch.ask("retry").status_code == 200
    assert len(admitted(connection)) == 1


def test_a_partial_line_is_told_among_the_errors_and_tried_again(
    api: Api, connection: psycopg.Connection[Any]
) -> None:
    batch = Running(api, connection, 3)
    jobs = admitted(connection)
    batch.end(jobs[:1], "partial")
    batch.end(jobs[1:2], "failed")
    batch.end(jobs[2:])

    shown = api.http.get(f"/batches/{batch.id}").json()
    assert shown["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
    assert [shown["counts"][name] for name in ("completed", "partial", "failed")] == [2, 1, 1]
    told = [json.loads(line) for line in api.http.get(f"/batches/{batch.id}/errors").text.splitlines()]
    assert [(one["line"], one["status"]) for one in told] == [(1, "completed"), (2, "failed")]
    assert batch.shown()[0]["response"]["body"]["outcome"] == "partial"

    retried = batch.ask("retry").json()
    assert [retried["counts"][name] for name in ("waiting", "completed", "partial", "failed")] == [2, 1, 0, 0]
    batch.end(admitted(connection))
    assert api.http.get(f"/batches/{batch.id}/errors").text == ""
    assert batch.ask("retry").json()["status"] == "completed", "nothing is left to try again"


def test_more_results_than_a_page_holds_come_whole(api: Api, connection: psycopg.Connection[Any]) -> None:
    batch = Running(api, connection, 230)
    batch.end(admitted(connection, 250))
    assert [line["id"] for line in batch.shown()] == [f"{batch.id}-{n}" for n in range(1, 231)]
    assert {line["id"] for line in batch.shown(order="completion")} == {f"{batch.id}-{n}" for n in range(1, 231)}


def test_a_cancelled_batch_begins_nothing_and_keeps_its_results(
    api: Api, connection: psycopg.Connection[Any]
) -> None:
    batch = Running(api, connection, 6)
    jobs = admitted(connection, 3)
    batch.end(jobs[:1])
    before = batch.shown()

    answer = batch.ask("cancel")
    assert answer.status_code == 200
    assert answer.json()["counts"]["running"] == 0
    assert {api.http.get(f"/jobs/{job}").json()["status"] for job in jobs[1:]} == {"cancelled"}
    assert admitted(connection) == []

    shown = api.http.get(f"/batches/{batch.id}").json()
    assert shown["status"] == "cancelled"
    assert (shown["counts"]["completed"], shown["counts"]["cancelled"]) == (1, 5)
    after = batch.shown()
    assert after[:1] == before
    assert [line["error"]["code"] for line in after[1:]] == ["cancelled"] * 5
    assert [line["response"] is None for line in after] == [False] * 3 + [True] * 3
    assert batch.ask("cancel").status_code == 200, "again it changes nothing"
    for what in ("pause", "resume", "retry"):
        assert problem_of(batch.ask(what), 409, "conflict")["batch_status"] == "cancelled"


def test_a_batch_is_held_and_goes_on(api: Api, connection: psycopg.Connection[Any]) -> None:
    batch = Running(api, connection, 3, budget_usd=Decimal("0.5"))
    assert batch.ask("pause").json()["pause_reason"] == "asked"
    assert batch.ask("pause").status_code == 200
    assert admitted(connection) == []

    going = batch.ask("resume", max_cost_usd=2.5, max_tokens=1000).json()
    assert (going["paused_at"], going["pause_reason"]) == (None, None)
    assert (going["budget"]["max_cost_usd"], going["budget"]["max_tokens"]) == (2.5, 1000)
    assert batch.ask("resume").status_code == 200, "it goes on anyway"
    batch.end(admitted(connection), "failed")
    assert problem_of(batch.ask("cancel"), 409, "conflict")["batch_status"] == "completed"
    assert problem_of(batch.ask("pause"), 409, "conflict")["batch_status"] == "completed"

    again = batch.ask("retry").json()
    assert (again["status"], again["counts"]["waiting"], again["finished_at"]) == ("in_progress", 3, None)
    assert batch.results() == "", "what is tried again has not ended"
    batch.end(admitted(connection))
    assert batch.ask("retry").json()["status"] == "completed", "nothing has failed"
    assert len(batch.shown(status="completed")) == 3


@pytest.mark.parametrize("body", [{"max_cost_usd": 0}, {"max_tokens": 1.5}, {"colour": "red"}, {"max_cost_usd": "1"}])
def test_a_limit_that_is_none_is_refused(api: Api, connection: psycopg.Connection[Any], body: dict[str, Any]) -> None:
    assert Running(api, connection, 1).ask("resume", **body).status_code in (400, 422)


def test_what_names_no_batch_is_not_found(api: Api) -> None:
    for name in (str(uuid4()), "x"):
        assert api.http.get(f"/batches/{name}/results").status_code == 404
        for what in ("cancel", "pause", "resume", "retry"):
            problem_of(api.http.post(f"/batches/{name}/{what}"), 404, "not_found")


def test_an_unknown_order_is_refused(api: Api, connection: psycopg.Connection[Any]) -> None:
    batch = Running(api, connection, 1)
    for params in ({"order": "random"}, {"status": "valid"}):
        answer = api.http.get(f"/batches/{batch.id}/results", params=params)
        assert answer.status_code == 422
