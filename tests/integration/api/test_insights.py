"""Insights over HTTP: listed in pages, shown, pinned, retired, removed, and the report on whether they help."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID, uuid4

from planq.shared.store.ids import new_id
from tests.integration.api.conftest import Api, MakeApi, problem_of

_INSIGHT = """
INSERT INTO insights (id, tenant_id, kind, digest, tool_name, lesson, body, search, seen, expires_at)
VALUES (%s, 'default', 'failure', %s, 'convert', %s, '{"tool": "convert"}', '', 3, now() + interval '1 day')"""
_OFFER = """
INSERT INTO insight_offers (tenant_id, job_id, origin_id, side, insight_ids, tokens, ended_at, is_success,
                            failed_calls, rounds, seconds, cost_usd, used_tokens)
VALUES ('default', %s, %s, %s, %s, 20, now(), %s, %s, 1, 2, 0.01, 100)"""


def learned(api: Api, count: int) -> list[UUID]:
    """Store so many insights, as rules write them; oldest first."""
    ids = sorted(new_id() for _ in range(count))
    for number, id in enumerate(ids):
        api.jobs.execute(_INSIGHT, id, f"digest {number}", f"lesson {number}")
    return ids


def ended(api: Api, side: str, insights: Sequence[UUID], succeeded: Sequence[bool]) -> None:
    """Store what was chosen for jobs, and what these came to."""
    for is_success in succeeded:
        id = new_id()
        api.jobs.execute(_OFFER, id, id, side, list(insights), is_success, int(not is_success))


def test_insights_are_listed_in_pages_shown_pinned_and_retired(make_api: MakeApi) -> None:
    api = make_api()
    http, ids = api.http, learned(api, 3)
    first = http.get("/insights", params={"limit": 2}).json()
    assert [one["lesson"] for one in first["items"]] == ["lesson 2", "lesson 1"]
    rest = http.get("/insights", params={"limit": 2, "cursor": first["next_cursor"]}).json()
    assert [one["id"] for one in rest["items"]] == [str(ids[0])]
    assert rest["next_cursor"] is None
    problem_of(http.get("/insights", params={"cursor": "nothing"}), 422, "invalid_request")

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
    useful, useless = learned(api, 2)
    ended(api, "offered", [useful], [True] * 9)
    ended(api, "held_out", [useful], [False] * 9)
    report = api.http.get("/insights/report").json()
    assert report["verdict"] == "too_few"
    assert report["mode"] == "off"
    assert report["jobs"] == {"offered": 9, "held_out": 9, "shadow": 0}

    ended(api, "offered", [useful], [True] * 20)
    ended(api, "held_out", [useful], [False] * 20)
    ended(api, "offered", [useless], [True, False] * 20)
    ended(api, "held_out", [useless], [False, True] * 10)
    ended(api, "shadow", [useless], [True])
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
    (insight,) = learned(api, 1)
    job_id = api.submit()["id"]
    assert api.http.get(f"/jobs/{job_id}/insights").json() == {"side": None, "tokens": 0, "insights": []}
    api.jobs.execute(_OFFER, UUID(job_id), UUID(job_id), "held_out", [insight, uuid4()], True, 0)
    chosen = api.http.get(f"/jobs/{job_id}/insights").json()
    assert chosen == {"side": "held_out", "tokens": 20, "insights": [{"id": str(insight), "lesson": "lesson 0"}]}
    problem_of(api.http.get(f"/jobs/{uuid4()}/insights"), 404, "not_found")
