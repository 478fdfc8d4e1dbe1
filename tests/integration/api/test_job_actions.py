"""Job actions over HTTP, carried out by the sweep's own call: each job once, whoever else is at it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from planq.shared.kernel.sweep import SweepResult
from planq.shared.platform.database import Database
from planq.shared.subjects.actions.sweep import ActionSweep
from tests.integration.api.conftest import Api, a_key, problem_of
from tests.integration.api.control import JobDriver, begun, call


@pytest.fixture
def api(control_api: Api) -> Iterator[Api]:
    yield control_api
    control_api.jobs.execute("DELETE FROM job_actions")


class Mark:
    """Jobs that a test finds again among those of others, by their metadata."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.filter = {"metadata": {"test": uuid4().hex}}

    def submit(self, count: int, **fields: Any) -> list[str]:
        body = {"input": "say hello", **self.filter, **fields}
        return [self._api.submit(body)["id"] for _ in range(count)]

    def ask(self, act: str, headers: dict[str, str] | None = None, **more: Any) -> httpx.Response:
        body = {"act": act, "filter": self.filter, **more}
        return self._api.http.post("/job-actions", json=body, headers=headers)

    def begin(self, act: str, **more: Any) -> str:
        answer = self.ask(act, **more)
        assert answer.status_code == 202, answer.text
        assert answer.headers["location"] == f"/job-actions/{answer.json()['id']}"
        return str(answer.json()["id"])

    def statuses(self, ids: list[str]) -> list[str]:
        return [self._api.http.get(f"/jobs/{one}").json()["status"] for one in ids]


@pytest.fixture
def mark(api: Api) -> Mark:
    return Mark(api)


def swept(api: Api, limit: int) -> SweepResult:
    """Carry out a part of what was asked for, as a worker's process that has just started does."""

    async def work(database: Database) -> SweepResult:
        return await ActionSweep(database).act(limit)

    found: SweepResult = api.jobs.run(work)
    return found


def released(api: Api) -> None:
    """Let the time pass for which a process that has died holds its action."""
    api.jobs.execute("UPDATE job_actions SET held_until = now() - interval '1 second'")


def taken_by(api: Api, holder: UUID) -> UUID:
    """Take an action, and return the job behind which it stands."""
    row = api.jobs.run(lambda database: database.fetch_one("take_action", holder=holder, seconds=15.0))
    assert row is not None
    return row["after_job"]  # type: ignore[no-any-return]


def swept_to_its_end(api: Api, action: str) -> dict[str, Any]:
    for _ in range(100):
        released(api)
        if not swept(api, 50).goes_on:
            break
    return shown(api, action)


def shown(api: Api, action: str) -> dict[str, Any]:
    document: dict[str, Any] = api.http.get(f"/job-actions/{action}").json()
    return document


def test_all_jobs_of_a_filter_are_cancelled_in_parts_and_no_others(api: Api, mark: Mark) -> None:
    other = api.submit()["id"]
    ids = mark.submit(5)
    assert mark.ask("cancel", dry_run=True).json() == {"count": 5, "or_more": False}
    action = mark.begin("cancel")
    later = mark.submit(1)
    assert shown(api, action)["left"] == 5, "a job that came later is not meant"

    first = swept(api, 2)
    assert [str(one) for one in first.ended] == ids[:2]
    assert swept(api, 2) == SweepResult(), "another process leaves it to the one that holds it"
    assert (shown(api, action)["done"], shown(api, action)["left"]) == (2, 3)
    assert mark.statuses(ids) == ["cancelled"] * 2 + ["queued"] * 3

    ended = swept_to_its_end(api, action)
    counts = {name: ended[name] for name in ("status", "done", "unchanged", "refused", "left")}
    assert counts == {"status": "completed", "done": 5, "unchanged": 0, "refused": 0, "left": None}
    assert mark.statuses(ids) == ["cancelled"] * 5
    assert mark.statuses([other, *later]) == ["queued"] * 2


def test_a_job_is_changed_by_one_of_two_that_saw_it(api: Api, mark: Mark) -> None:
    """A process that hung goes on where it was, after another one has taken the action over."""
    (job_id,) = mark.submit(1)
    action = mark.begin("cancel")
    slow, fast = uuid4(), uuid4()
    seen = taken_by(api, slow)
    released(api)
    assert taken_by(api, fast) == seen
    act = "SELECT planq_act_on_job(%s, %s, %s, %s, NULL, '{}', NULL, 15) AS did"
    (did,) = api.jobs.execute(act, action, fast, seen, job_id)
    assert did["did"]["applied"]
    for holder in (slow, fast):
        (did,) = api.jobs.execute(act, action, holder, seen, job_id)
        assert did["did"] == {"is_held": False}
    assert shown(api, action)["done"] == 1


def failed(api: Api, mark: Mark, tool: str) -> JobDriver:
    story = begun(api, call(tool), **mark.filter)
    story.fail(0, "timeout")
    story.answer(None)
    return story


def test_failed_jobs_are_tried_again_but_for_what_may_have_happened(api: Api, mark: Mark) -> None:
    fine, doubtful = failed(api, mark, "look"), failed(api, mark, "mail")
    partial = begun(api, call("look"), input="x", **mark.filter)
    partial.fail(0, "tool_error")
    partial.answer("it did not work")

    action = mark.begin("retry")
    acted = swept(api, 10)
    ended = swept_to_its_end(api, action)

    assert [wake.ref.index for wake in acted.wakes if hasattr(wake, "ref")] == [0]
    assert (ended["done"], ended["refused"]) == (1, 1)
    (problem,) = ended["problems"]
    assert (problem["job_id"], problem["code"]) == (doubtful.id, "outcome_unknown")
    assert fine.statuses() == ["ready"]
    assert doubtful.statuses() == ["failed"]

    again = mark.begin("retry", repeat_unsafe=True)
    assert swept_to_its_end(api, again)["done"] == 1
    assert doubtful.statuses() == ["ready"]
    assert partial.statuses() == ["failed"], "it has completed, and nobody has asked for that"
    mark.filter |= {"status": "completed"}
    assert swept_to_its_end(api, mark.begin("retry"))["done"] == 1
    assert partial.statuses() == ["ready"]


def test_jobs_are_paused_and_go_on(api: Api, mark: Mark) -> None:
    ids = mark.submit(2)
    assert swept_to_its_end(api, mark.begin("resume"))["done"] == 0
    assert swept_to_its_end(api, mark.begin("pause"))["done"] == 2
    assert all(api.http.get(f"/jobs/{one}").json()["paused_at"] for one in ids)
    assert mark.ask("pause", dry_run=True).json()["count"] == 0
    assert swept_to_its_end(api, mark.begin("resume"))["done"] == 2
    assert not any(api.http.get(f"/jobs/{one}").json()["paused_at"] for one in ids)


def test_the_same_request_is_one_action_and_a_stopped_one_does_no_more(api: Api, mark: Mark) -> None:
    ids = mark.submit(2)
    key = {"Idempotency-Key": uuid4().hex}
    first, again = mark.ask("cancel", key), mark.ask("cancel", key)
    assert again.headers["idempotency-replayed"] == "true"
    assert first.json()["id"] == again.json()["id"]
    problem_of(mark.ask("pause", key), 409, "conflict")
    action = first.json()["id"]
    swept(api, 1)

    for _ in range(2):
        stopped = api.http.post(f"/job-actions/{action}/cancel")
        assert (stopped.status_code, stopped.json()["status"]) == (200, "cancelled")
    assert swept_to_its_end(api, action)["done"] == 1
    assert mark.statuses(ids) == ["cancelled", "queued"]
    over = mark.begin("cancel")
    swept_to_its_end(api, over)
    problem_of(api.http.post(f"/job-actions/{over}/cancel"), 409, "conflict")
    listed = api.http.get("/job-actions", params={"limit": 1}).json()
    assert [one["id"] for one in listed["items"]] == [over]
    following = api.http.get("/job-actions", params={"cursor": listed["next_cursor"]}).json()
    assert [one["id"] for one in following["items"]] == [action]


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        ({"words": "ALBATROSS"}, 1),
        ({"priority": "bulk"}, 1),
        ({"status": "queued"}, 3),
        ({"status": "executing"}, 1),
        ({"strategy": "loop"}, 1),
        ({"agent": "nobody"}, 0),
        ({"batch_id": "0198c0de-0000-7000-8000-000000000000"}, 0),
        ({"older_than_seconds": 3600}, 0),
        ({"newer_than_seconds": 3600}, 4),
        ({"created_before": "2026-01-01T00:00:00Z"}, 0),
        ({"created_after": "2026-01-01T00:00:00+01:00"}, 4),
        ({"min_cost_usd": 1}, 0),
        ({"metadata": {"other": 1}}, 0),
    ],
    ids=str,
)
def test_a_filter_means_jobs_for_which_all_of_it_holds(
    api: Api, mark: Mark, wanted: dict[str, Any], count: int
) -> None:
    mark.submit(1, input="say albatross")
    mark.submit(1, priority="bulk")
    mark.submit(1, strategy="loop")
    begun(api, call("look"), **mark.filter)
    mark.filter = {**mark.filter, **wanted}
    assert mark.ask("cancel", dry_run=True).json()["count"] == count
    listed = api.http.get(
        "/jobs", params={**mark.filter, "metadata": json.dumps(mark.filter["metadata"]), "roots": True}
    )
    assert (len(listed.json()["items"]), listed.json()["next_cursor"]) == (count, None), (
        "the list means the same jobs"
    )


def test_what_cannot_be_meant_is_refused_and_others_see_nothing(api: Api, mark: Mark) -> None:
    mark.filter = {"status": "completed"}
    assert "queued" in problem_of(mark.ask("cancel"), 422, "invalid_request")["detail"]
    mark.filter = {"statos": "completed"}
    assert mark.ask("cancel").status_code == 422
    assert api.http.post("/job-actions", json={"act": "cancel"}).status_code == 422, "all jobs are asked for by {}"
    mark.filter = {}
    action = mark.begin("resume")
    _, key = a_key(api)
    theirs = {"Authorization": f"Bearer {key}"}
    for method, path in (("GET", action), ("POST", f"{action}/cancel"), ("GET", "none"), ("GET", str(uuid4()))):
        problem_of(api.http.request(method, f"/job-actions/{path}", headers=theirs), 404, "not_found")
    assert api.http.get("/job-actions", headers=theirs).json()["items"] == []
    mark.submit(1)
    assert api.http.get("/jobs", params={"tenant": "acme"}, headers=theirs).json()["items"] == []
    refused = api.http.get("/jobs", params={"tenant": "default"}, headers=theirs)
    problem_of(refused, 403, "insufficient_scope")
    assert api.http.get("/jobs", params={"tenant": "acme"}).json()["items"] == [], "whoever has the scope admin"


def test_a_job_that_has_ended_by_itself_is_left_as_it_is(api: Api, mark: Mark) -> None:
    story = JobDriver(api, mark.submit(1)[0])
    action = mark.begin("cancel")
    api.jobs.complete(story.id)
    assert swept_to_its_end(api, action)["done"] == 0
    assert mark.statuses([story.id]) == ["completed"]
