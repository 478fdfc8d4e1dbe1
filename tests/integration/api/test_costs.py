"""What models have cost, over HTTP: of one tenant or of all, and still once the jobs are gone."""

from __future__ import annotations

from typing import Any

import pytest

from planq.shared.subjects.metrics.store import TallyStore
from tests.integration.api.conftest import Api, MakeApi, problem_of
from tests.integration.api.test_pages import visit
from tests.integration.api.test_tenants import WHOLE, bearer, made_key

CALL = """
    INSERT INTO model_calls (tenant_id, job_id, purpose, model, input_tokens, output_tokens, cache_read_tokens,
                             cache_write_tokens, cost_usd, created_at)
    SELECT tenant_id, id, 'plan', %s, 100, 10, 60, 5, %s, %s FROM jobs WHERE id = %s"""
GPT, OWN = "openai:gpt-5", "local:own"


def rows(api: Api, headers: dict[str, str] | None = None, **asked: str) -> list[tuple[Any, Any, int]]:
    """Return names, costs and calls from 10 to 12 November, unless other days are asked for."""
    params = {"from": "2026-11-10", "to": "2026-11-12", **asked}
    answer = api.http.get("/costs", params=params, headers=headers)
    assert answer.status_code == 200, answer.text
    return [(one["name"], one["cost_usd"], one["calls"]) for one in answer.json()["items"]]


@pytest.fixture
def spent(make_api: MakeApi) -> Api:
    """An application whose tenants have spent: `default` on three days, with an agent and without; `acme` on one."""
    api = make_api()
    api.http.put("/tenants/acme", json=WHOLE)
    acme = bearer(made_key(api, "acme")["key"])
    api.http.put("/agents/clerk", json={"name": "clerk"})
    plain, clerks = api.submit()["id"], api.submit({"input": "a", "agent": "clerk"})["id"]
    theirs = api.submit({"input": "b"}, **acme)["id"]
    for job, model, cost, moment in (
        (plain, GPT, "0.1", "2026-11-10T00:00:00Z"),
        (clerks, GPT, "0.2", "2026-11-10T23:59:59Z"),
        (clerks, OWN, None, "2026-11-11T12:00:00Z"),
        (plain, GPT, "0.000001", "2026-11-12T12:00:00Z"),
        (plain, GPT, "7", "2026-11-13T00:00:00Z"),
        (theirs, GPT, "5", "2026-11-11T12:00:00Z"),
    ):
        api.jobs.execute(CALL, model, cost, moment, job)
    api.jobs.run(lambda database: TallyStore(database).add_up())
    api.jobs.execute("DELETE FROM jobs")
    return api


def test_costs_are_told_by_day_agent_and_model_when_the_jobs_are_gone(spent: Api) -> None:
    days = [("2026-11-10", 0.3, 2), ("2026-11-11", None, 1), ("2026-11-12", 0.000001, 1)]
    assert rows(spent) == days
    assert rows(spent, by="agent") == [("clerk", 0.2, 2), (None, 0.100001, 2)]
    assert rows(spent, by="model") == [(GPT, 0.300001, 3), (OWN, None, 1)]
    assert rows(spent, by="model", agent="clerk") == [(GPT, 0.2, 1), (OWN, None, 1)]
    assert rows(spent, model=GPT) == [days[0], days[2]]
    assert rows(spent, **{"from": "2026-11-12"}) == [days[2]]
    whole = spent.http.get("/costs", params={"from": "2026-11-10", "to": "2026-11-12"}).json()
    sums = {"calls": 4, "unpriced_calls": 1, "input_tokens": 400, "output_tokens": 40, "cost_usd": 0.300001}
    sums |= {"cache_read_tokens": 240, "cache_write_tokens": 20}
    assert (whole["total"], whole["by"], whole["tenant"]) == (sums, "day", "default")
    assert (whole["from"], whole["to"]) == ("2026-11-10", "2026-11-12")
    nothing = spent.http.get("/costs", params={"to": "2020-01-30"}).json()
    assert (nothing["from"], nothing["items"], nothing["total"]["cost_usd"]) == ("2020-01-01", [], 0)


def test_other_tenants_costs_need_the_scope_admin(spent: Api) -> None:
    acme = bearer(made_key(spent, "acme")["key"])
    admin = bearer(made_key(spent, "acme", scopes=["admin"])["key"])
    chat = bearer(made_key(spent, "acme", scopes=["messages"])["key"])

    assert rows(spent, acme) == rows(spent, acme, tenant="acme") == [("2026-11-11", 5, 1)]
    for asked in ({"by": "tenant"}, {"by": "tenant", "tenant": "acme"}, {"tenant": "default"}, {"tenant": "*"}):
        problem_of(spent.http.get("/costs", params=asked, headers=acme), 403, "insufficient_scope")
    problem_of(spent.http.get("/costs", headers=chat), 403, "insufficient_scope")
    assert rows(spent, admin) == [("2026-11-11", 5, 1)]
    assert rows(spent, admin, by="tenant") == [("acme", 5, 1), ("default", 0.300001, 4)]
    assert rows(spent, admin, by="model", tenant="*") == [(GPT, 5.300001, 4), (OWN, None, 1)]
    assert rows(spent, admin, tenant="default", by="agent")[0] == ("clerk", 0.2, 2)
    assert rows(spent, admin, tenant="nobody") == []


def test_the_page_of_costs_shows_them_and_leads_into_them(spent: Api) -> None:
    with visit(spent) as browser:
        page = browser.get("/ui/costs", params={"from": "2026-11-10", "to": "2026-11-12"}).text
        assert page.count('<rect class="is-run"') == 3
        assert 'title="$0.300001">$0.30<' in page
        assert "The price of 1 call is not known" in page
        assert "/ui/costs?by=agent&amp;from=2026-11-10&amp;to=2026-11-10&amp;measure=cost" in page
        page = browser.get("/ui/costs", params={"from": "2026-11-11", "to": "2026-11-11", "by": "model"}).text
        assert f"by=day&amp;from=2026-11-11&amp;to=2026-11-11&amp;model={OWN.replace(':', '%3A')}" in page
        assert '<option value="tokens" selected>' in page, "what has no price is shown by its tokens"
        page = browser.get("/ui/costs", params={"from": "2026-11-11", "to": "2026-11-11", "measure": "cost"}).text
        assert ("$0.00" in page, "most on one day: –" in page) == (False, True)
        assert "No model was called" in browser.get("/ui/costs?to=2020-01-01&by=fame&measure=fame").text
        assert browser.get("/ui/costs?from=yesterday").status_code == 422


@pytest.mark.parametrize(
    "asked",
    [
        {"by": "fame"},
        {"from": "yesterday"},
        {"from": "2026-11-12", "to": "2026-11-11"},
        {"from": "2025-01-01", "to": "2026-11-11"},
        {"tenant": "No body"},
        {"agent": "a\x00"},
        {"fame": "1"},
    ],
)
def test_what_is_no_range_is_refused(api: Api, asked: dict[str, str]) -> None:
    problem_of(api.http.get("/costs", params=asked), 422, "invalid_request")
