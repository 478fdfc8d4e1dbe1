"""Insights over HTTP: listed in pages, shown, pinned, retired, removed, and the report on whether they help."""

from __future__ import annotations

from uuid import UUID, uuid4

from tests.integration.api.conftest import MakeApi, problem_of
from tests.support.insights import chosen, ended, learned


def test_insights_are_listed_in_pages_shown_pinned_and_retired(make_api: MakeApi) -> None:
    api = make_api()
    http, ids = api.http, learned(api.jobs.execute, *(f"lesson {number}" for number in range(3)))
    first = http.get("/insights", params={"limit": 2}).json()
    assert [one["lesson"] for one in first["items"]] == ["lesson 2", "lesson 1"]
    rest = http.get("/insights", params={"limit": 2, "cursor": first["next_cursor"]}).json()
    assert [one["id"] for one in rest["items"]] == [str(ids[0])]
    assert rest["next_cursor"] is None
    problem_of(http.get("/insights", params={"cursor": "nothing"}), 422, "invalid_request")
    for chosen_by, count in (
        ({"kind": "failure"}, 3),
        ({"kind": "course"}, 0),
        ({"tool": "convert"}, 3),
        ({"tool": "\x00"}, 0),
    ):
        assert len(http.get("/insights", params=chosen_by).json()["items"]) == count
    problem_of(http.get("/insights", params={"kind": "rumour"}), 422, "invalid_request")

    pinned = http.patch(f"/insights/{ids[0]}", json={"is_pinned": True}).json()
    assert (pinned["is_pinned"], pinned["sources"], pinned["seen"], pinned["body"]) == (
        True,
        [],
        3,
        {"tool": "convert"},
    )
    assert 0 < pinned["confidence"] < 1
    assert http.patch(f"/insights/{ids[0]}", json={}).json() == pinned

    assert http.delete(f"/insights/{ids[0]}").status_code == 204
    assert http.get(f"/insights/{ids[0]}").json()["retired_at"] is not None
    assert [one["id"] for one in http.get("/insights").json()["items"]] == [str(ids[2]), str(ids[1])]
    assert len(http.get("/insights", params={"retired": "true"}).json()["items"]) == 3
    back = http.patch(f"/insights/{ids[0]}", json={"is_retired": False}).json()
    assert back["retired_at"] is None
    for method in ("GET", "DELETE"):
        problem_of(http.request(method, f"/insights/{uuid4()}"), 404, "not_found")
        problem_of(http.request(method, "/insights/no-uuid"), 404, "not_found")
    assert http.delete("/insights").status_code == 204
    assert http.get("/insights").json()["items"] == []


def test_the_report_says_too_few_and_then_what_helps_and_what_does_not(make_api: MakeApi) -> None:
    api = make_api()
    useful, useless = learned(api.jobs.execute, "useful", "useless")
    ended(api.jobs.execute, "offered", [useful], [True] * 9)
    ended(api.jobs.execute, "held_out", [useful], [False] * 9)
    report = api.http.get("/insights/report").json()
    assert report["verdict"] == "too_few"
    assert report["mode"] == "off"
    assert report["jobs"] == {"offered": 9, "held_out": 9, "shadow": 0}

    ended(api.jobs.execute, "offered", [useful], [True] * 20)
    ended(api.jobs.execute, "held_out", [useful], [False] * 20)
    ended(api.jobs.execute, "offered", [useless], [True, False] * 20)
    ended(api.jobs.execute, "held_out", [useless], [False, True] * 10)
    ended(api.jobs.execute, "shadow", [useless], [True])
    report = api.http.get("/insights/report", params={"days": 1}).json()
    assert report["verdict"] == "helps"
    assert report["measures"]["tool_failures"]["verdict"] == "helps"
    assert report["measures"]["cost_usd"]["verdict"] == "no_difference"
    success = report["measures"]["success"]
    assert success["with"]["low"] < success["with"]["value"] < success["with"]["high"]
    verdicts = {one["id"]: one["success"]["verdict"] for one in report["insights"]}
    assert verdicts == {str(useful): "helps", str(useless): "no_difference"}
    problem_of(api.http.get("/insights/report", params={"days": 0}), 422, "invalid_request")


def test_a_job_says_what_was_chosen_for_it(make_api: MakeApi) -> None:
    api = make_api()
    (insight,) = learned(api.jobs.execute, "lesson")
    job_id = api.submit()["id"]
    assert api.http.get(f"/jobs/{job_id}/insights").json() == {"side": None, "tokens": 0, "insights": []}
    chosen(api.jobs.execute, UUID(job_id), "held_out", [insight, uuid4()], is_success=True)
    told = api.http.get(f"/jobs/{job_id}/insights").json()
    assert told == {"side": "held_out", "tokens": 20, "insights": [{"id": str(insight), "lesson": "lesson"}]}
    problem_of(api.http.get(f"/jobs/{uuid4()}/insights"), 404, "not_found")
