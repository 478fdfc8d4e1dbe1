"""The pages of tenants over HTTP: for the scope `admin` alone, and what their forms change."""

from __future__ import annotations

import re
from html import unescape

import httpx

from planq.api.tenants.page import config_change, config_groups
from planq.shared.agentic.turns.channel_kinds import ChannelKind
from planq.shared.subjects.channels.store import ChannelStore
from tests.integration.api.conftest import Api, MakeApi
from tests.integration.api.test_pages import KEY, log_in, post, visit
from tests.integration.api.test_tenants import WHOLE, bearer
from tests.support.waiting import eventually


def form_of(page: httpx.Response) -> dict[str, str]:
    """What stands in the form of a tenant's configuration."""
    (form,) = re.findall(r'<form class="ask" id="config".*?</form>', page.text, re.DOTALL)
    fields = dict(re.findall(r'<input [^>]*name="([^"]+)"[^>]* value="([^"]*)"', form))
    fields |= dict(re.findall(r'<textarea [^>]*name="([^"]+)"[^>]*>(.*?)</textarea>', form, re.DOTALL))
    return {name: unescape(value) for name, value in fields.items() if name != "token"}


def test_a_configuration_comes_back_from_its_form_as_it_was() -> None:
    given = {
        "model": "openai:gpt-5",
        "planning_enabled": False,
        "prompt": "Be brief.\nAlways.",
        "tools": [],
        "limits": {"max_rounds": 3, "max_tool_steps": 2},
        "answers_from": ["ann"],
        "approvals_from": "anyone",
        "rate_limit": 7,
    }
    sent = {one.name: one.value.replace("\n", "\r\n") for group in config_groups(given) for one in group.fields}
    assert config_change(given, sent) == {}
    changed = {"field.model": "", "field.limits": '{"max_rounds": 4}', "field.answers_from": "anyone"}
    assert config_change(given, {**sent, **changed, "field.tools": '["web_*"]'}) == {
        "model": None,
        "limits": {"max_rounds": 4, "max_tool_steps": None},
        "answers_from": "anyone",
        "tools": ["web_*"],
    }
    assert [(group.name, group.set_here) for group in config_groups({"rate_limit": 7}) if group.set_here] == [
        ("How much at once", 1)
    ]


def test_a_tenant_is_made_changed_and_switched_off_by_forms(make_api: MakeApi) -> None:
    api = make_api()
    with visit(api) as browser:
        made = post(browser, "/ui/tenants", {"id": "acme", "name": "<b>Acme</b>"})
        assert made.url.path == "/ui/tenants/acme"
        assert "&lt;b&gt;Acme&lt;/b&gt;" in made.text
        assert post(browser, "/ui/tenants", {"id": "acme", "name": ""}).status_code == 409
        assert post(browser, "/ui/tenants", {"id": "No body", "name": ""}).status_code == 422

        sent = {**form_of(made), "field.rate_limit": "7", "field.limits": '{"max_rounds": 4}', "name": "Acme"}
        changed = post(browser, "/ui/tenants/acme/config", sent)
        assert changed.url.path == "/ui/tenants/acme"
        stored = api.http.get("/tenants/acme").json()
        assert (stored["name"], stored["config"]) == ("Acme", {"rate_limit": 7, "limits": {"max_rounds": 4}})
        assert re.search(r"max_rounds</td><td class=\"num\">4</td><td>set here", changed.text)
        stale = post(browser, "/ui/tenants/acme/config", {**sent, "field.rate_limit": "8"})
        assert (stale.status_code, "was changed by somebody else" in stale.text) == (409, True)
        wrong = post(browser, "/ui/tenants/acme/config", {**form_of(changed), "field.rate_limit": "0"})
        assert (wrong.status_code, "rate_limit" in wrong.text) == (422, True)
        assert post(browser, "/ui/tenants/acme/config", form_of(changed)).status_code == 200
        assert api.http.get("/tenants/acme").json()["config"] == stored["config"]

        refused = post(browser, "/ui/tenants/acme/switch", {"confirm": "acne"})
        assert (refused.status_code, "nothing was changed" in refused.text) == (422, True)
        assert "It is disabled" in post(browser, "/ui/tenants/acme/switch", {"confirm": "acme"}).text
        assert "It is disabled" not in post(browser, "/ui/tenants/acme/switch", {"on": "1"}).text
        assert 'name="confirm"' not in browser.get("/ui/tenants/default").text
        assert browser.get("/ui/tenants/nobody").status_code == 404


def test_a_key_is_shown_once_and_revoked(make_api: MakeApi) -> None:
    api = make_api()
    api.http.put("/tenants/acme", json=WHOLE)
    with visit(api) as browser:
        made = post(browser, "/ui/tenants/acme/keys", {"name": "ci", "scope.jobs": "1", "days": "30"})
        (text,) = re.findall(r"planq_[0-9A-Za-z]{49}", made.text)
        assert made.headers["cache-control"] == "no-store"
        assert api.http.get("/jobs", headers=bearer(text)).status_code == 200
        again = browser.get("/ui/tenants/acme").text
        assert text not in again
        assert text[:10] in again
        (revoke,) = re.findall(r'action="(/ui/tenants/acme/keys/[^"]+/revoke)"', again)
        assert "Revoked" in post(browser, revoke, {}).text
        eventually(lambda: api.http.get("/jobs", headers=bearer(text)).status_code == 401, what="it is refused")
        for form in ({"name": "none"}, {"scope.root": "1"}, {"scope.jobs": "1", "days": "soon"}):
            assert post(browser, "/ui/tenants/acme/keys", form).status_code == 422


def test_limits_and_channels_are_told_with_their_sources_and_problems(make_api: MakeApi) -> None:
    api = make_api()
    for name, config in (("acme", {"limits": {"max_tool_steps": 3}}), ("house", {})):
        api.http.put(f"/tenants/{name}", json={**WHOLE, "config": config})

    def limits(tenant: str) -> dict[str, tuple[float, str]]:
        items = api.http.get(f"/tenants/{tenant}/limits").json()["items"]
        return {one["name"]: (one["value"], one["source"]) for one in items}

    assert (limits("acme")["max_tool_steps"], limits("acme")["max_rounds"]) == ((3, "tenant"), (20, "server"))
    assert (limits("house")["max_rounds"], limits("house")["max_tool_steps"]) == ((20, "server"), (10, "server"))

    assert api.http.get("/tenants/acme/channels").json() == {"items": []}
    sent_to = {"url": "https://example.com/hook"}
    api.jobs.run(lambda database: ChannelStore(database).connect("acme", "web", ChannelKind.WEBHOOK, sent_to))
    api.jobs.execute("UPDATE channels SET problem = 'it answers 410'")
    (channel,) = api.http.get("/tenants/acme/channels").json()["items"]
    assert (channel["name"], channel["kind"], channel["problem"]) == ("web", "webhook", "it answers 410")
    with visit(api) as browser:
        page = browser.get("/ui/tenants/acme").text
        assert "is not sent to</b>: it answers 410" in page
    for path in ("limits", "channels"):
        assert api.http.get(f"/tenants/nobody/{path}").status_code == 404


def test_pages_of_tenants_are_hidden_and_refused_without_the_scope_admin(make_api: MakeApi) -> None:
    api: Api = make_api(api_keys=KEY)
    settings = bearer(KEY)
    api.http.put("/tenants/acme", json=WHOLE, headers=settings)
    key = api.http.post("/tenants/acme/keys", json={"scopes": ["jobs"]}, headers=settings).json()["key"]
    with log_in(api, key) as browser:
        assert "/ui/tenants" not in browser.get("/ui/jobs").text
        assert "<option>tenant" not in browser.get("/ui/costs").text
        for path in ("/ui/tenants", "/ui/tenants/acme", "/ui/costs?by=tenant", "/ui/costs?tenant=default"):
            assert browser.get(path).status_code == 403
        forms = {"/keys": {"scope.admin": "1"}, "/config": {"seen": ""}, "/switch": {"confirm": "acme"}}
        for path, form in {"": {"id": "x"}, **{f"/acme{path}": form for path, form in forms.items()}}.items():
            assert post(browser, f"/ui/tenants{path}", form).status_code == 403
    with log_in(api, KEY) as browser:
        assert "/ui/tenants" in browser.get("/ui/jobs").text
        assert browser.get("/ui/tenants/acme").status_code == 200
