"""Schedules over HTTP and on the command line: a page of them, those that are over, removal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from uuid import UUID, uuid4

import pytest
from typer.testing import CliRunner

from planq.deploy.cli.main import create_app
from tests.integration.api.conftest import Api, problem_of

INSERT = (
    "INSERT INTO schedules (id, tenant_id, user_id, name, agent, input, cron, timezone, model, next_at, is_active, "
    "error) VALUES (%s, 'default', 'ada', %s, %s, 'water the plants', %s, 'Europe/Berlin', 'offline', "
    "now() + interval '1 hour' * %s, %s, %s)"
)
ENDED = (
    "INSERT INTO jobs (id, root_job_id, tenant_id, strategy, status, model, input, limits, error, finished_at) "
    "SELECT id, id, %s, 'plan', 'completed', 'offline', 'x', '{}', %s, now() FROM (SELECT %s::uuid AS id) AS new"
)
FIELDS = {
    "id",
    "name",
    "user_id",
    "agent",
    "input",
    "cron",
    "timezone",
    "conversation_id",
    "is_active",
    "next_at",
    "last_job_id",
    "last_outcome",
    "error",
    "created_at",
}


@pytest.fixture
def stored(api: Api) -> Iterator[list[UUID]]:
    """Five schedules, oldest first; the second is over, the third was switched off."""
    ids = [uuid4() for _ in range(5)]
    for n, id_ in enumerate(ids):
        api.jobs.execute(
            INSERT,
            id_,
            f"number {n}",
            "gardener" if n == 2 else None,
            "0 9 * * 1" if n >= 2 else None,
            1 if n not in (1, 2) else None,
            n not in (1, 2),
            "agent 'gardener' is retired" if n == 2 else None,
        )
    yield ids
    api.jobs.execute("DELETE FROM schedules")


def test_what_is_to_come_is_listed_newest_first(api: Api, stored: list[UUID]) -> None:
    page = api.http.get("/schedules").json()

    assert [item["id"] for item in page["items"]] == [str(stored[n]) for n in (4, 3, 0)]
    assert page["next_cursor"] is None
    assert set(page["items"][0]) == FIELDS
    newest = page["items"][0]
    assert (newest["cron"], newest["timezone"], newest["is_active"], newest["error"]) == (
        "0 9 * * 1",
        "Europe/Berlin",
        True,
        None,
    )
    assert newest["next_at"].endswith("+00:00")


def test_pages_hold_each_once(api: Api, stored: list[UUID]) -> None:
    found, cursor = [], None
    while True:
        params = {"limit": 2, "all": "true"} | ({"cursor": cursor} if cursor else {})
        page = api.http.get("/schedules", params=params).json()
        assert len(page["items"]) <= 2
        found += [item["id"] for item in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break

    assert found == [str(one) for one in reversed(stored)]


def test_one_that_was_switched_off_says_why(api: Api, stored: list[UUID]) -> None:
    items = {item["id"]: item for item in api.http.get("/schedules?all=true").json()["items"]}

    off = items[str(stored[2])]
    assert (off["is_active"], off["next_at"], off["error"]) == (False, None, "agent 'gardener' is retired")


def test_it_tells_what_its_last_job_came_to(api: Api, stored: list[UUID]) -> None:
    ended = [uuid4() for _ in range(3)]
    for n, error in enumerate((None, '{"code": "tool_error"}')):
        api.jobs.execute(ENDED, "default", error, ended[n])
    api.jobs.execute("INSERT INTO tenants (id, name) VALUES ('other', 'other') ON CONFLICT DO NOTHING")
    api.jobs.execute(ENDED, "other", None, ended[2])
    running = UUID(api.http.post("/jobs", json={"input": "a"}).json()["id"])
    last = [*ended, running, uuid4()]
    for schedule, job in zip(stored, last, strict=True):
        api.jobs.execute("UPDATE schedules SET last_job_id = %s WHERE id = %s", job, schedule)

    items = {item["id"]: item for item in api.http.get("/schedules?all=true").json()["items"]}

    told = [items[str(id_)]["last_outcome"] for id_ in stored]
    assert told == ["succeeded", "partial", None, None, None], "nothing of another tenant's, of what runs or is gone"


def test_a_removed_one_is_gone(api: Api, stored: list[UUID]) -> None:
    assert api.http.delete(f"/schedules/{stored[0]}").status_code == 204

    assert str(stored[0]) not in api.http.get("/schedules?all=true").text
    problem_of(api.http.delete(f"/schedules/{stored[0]}"), 404, "not_found")
    problem_of(api.http.delete("/schedules/nonsense"), 404, "not_found")


@pytest.mark.parametrize("cursor", ["", "x", "AAAA", "é", "A" * 32, "_" * 32, "A" * 500])
def test_a_cursor_of_nobodys_is_refused_or_leads_nowhere(api: Api, stored: list[UUID], cursor: str) -> None:
    first = api.http.get("/schedules").json()["items"]
    response = api.http.get("/schedules", params={"cursor": cursor})

    assert first, "there is something to lead to"
    if response.status_code == 422:
        problem_of(response, 422, "invalid_request")
    else:
        assert (response.status_code, [one for one in response.json()["items"] if one in first]) == (200, [])


def test_the_command_line_lists_and_removes_them(
    api: Api, stored: list[UUID], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANQ_URL", str(api.http.base_url))
    run = CliRunner().invoke
    cli = create_app()

    job = uuid4()
    api.jobs.execute(ENDED, "default", '{"code": "tool_error"}', job)
    api.jobs.execute("UPDATE schedules SET last_job_id = %s WHERE id = %s", job, stored[4])
    listed = run(cli, ["schedules", "list"])
    everything = run(cli, ["schedules", "list", "--all", "--json"])
    deleted = run(cli, ["schedules", "delete", str(stored[3]), str(stored[4])])
    again = run(cli, ["schedules", "delete", str(stored[3])])

    assert [line.split()[0] for line in listed.stdout.splitlines()] == [str(stored[n]) for n in (4, 3, 0)]
    assert "0 9 * * 1 Europe/Berlin" in listed.stdout
    assert ["last partial" in line for line in listed.stdout.splitlines()] == [True, False, False]
    assert len(json.loads(everything.stdout)["items"]) == 5
    assert (deleted.exit_code, len(deleted.stdout.splitlines())) == (0, 2)
    assert again.exit_code != 0
    assert "there is no schedule" in again.stderr
    assert len(run(cli, ["schedules", "list"]).stdout.splitlines()) == 1
