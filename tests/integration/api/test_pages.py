"""The pages over HTTP: who may see them, what they refuse, and that they ask nothing but the API."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import time
from typing import Any

import httpx
import psycopg
import pytest

from planq.api.http.bounds import PAGE_SESSION_SECONDS
from tests.integration.api.conftest import Api, MakeApi, a_key, end_key, search
from tests.support.insights import ended, learned
from tests.support.waiting import eventually

KEY = "a-key-of-the-settings"


@pytest.fixture
def locked_api(make_api: MakeApi) -> Api:
    """An application that asks for keys."""
    return make_api(api_keys=KEY)


def token_in(page: httpx.Response) -> str:
    found = re.search(r'name="token" value="([0-9a-f]{64})"', page.text)
    assert found is not None, page.text
    return found[1]


def visit(api: Api) -> httpx.Client:
    """A browser without scripts."""
    return httpx.Client(base_url=api.url, timeout=30, trust_env=False, follow_redirects=True)


def post(browser: httpx.Client, path: str, form: dict[str, Any], **headers: str) -> httpx.Response:
    """Send the form of a page: with its token, as of its origin."""
    token = token_in(browser.get("/ui/jobs"))
    own = {"Origin": str(browser.base_url).rstrip("/"), **headers}
    return browser.post(path, data={"token": token, **form}, headers=own)


@contextmanager
def log_in(api: Api, key: str) -> Iterator[httpx.Client]:
    with visit(api) as browser:
        page = browser.get("/ui/jobs")
        assert page.url.path == "/ui/login"
        browser.post("/ui/login", data={"token": token_in(page), "key": key, "next": "/ui/jobs"})
        yield browser


def test_a_job_is_submitted_seen_and_cancelled_without_scripts(make_api: MakeApi) -> None:
    api = make_api()  # of its own: workers that other tests have registered may live
    with visit(api) as browser:
        page = post(browser, "/ui/jobs", {"input": "Say <hello>"})
        assert page.status_code == 200
        job_id = page.url.path.rpartition("/")[2]
        assert "Say &lt;hello&gt;" in page.text
        assert "It waits to be planned, but no worker of the pool io is alive" in page.text
        post(browser, f"/ui/jobs/{job_id}/cancel", {})
        assert "There is no plan yet." in page.text
        assert api.http.get(f"/jobs/{job_id}").json()["status"] == "cancelled"
        assert "There is no plan yet." not in browser.get(f"/ui/jobs/{job_id}").text
        again = post(browser, f"/ui/jobs/{job_id}/again", {})
        assert again.url.path != page.url.path
        assert "Say &lt;hello&gt;" in again.text
        refused = post(browser, f"/ui/jobs/{job_id}/pause", {})
        assert refused.status_code == 409
        assert "only an unfinished job can be paused" in refused.text


def test_an_empty_installation_says_what_to_do_first(make_api: MakeApi) -> None:
    with visit(make_api()) as browser:
        page = browser.get("/").text
        assert "Run the sample job" in page
        assert (
            page.index("What else there is") < page.index("talk with the assistant") < page.index("Ask for something")
        )
        post(browser, "/ui/jobs", {"sample": "1"})
        assert "What else there is" not in browser.get("/").text


def test_a_form_without_its_token_or_of_another_site_is_refused(api: Api) -> None:
    with visit(api) as browser:
        token = token_in(browser.get("/ui/jobs"))
        own = {"Origin": api.url}
        assert browser.post("/ui/jobs", data={"input": "a"}, headers=own).status_code == 403
        assert browser.post("/ui/jobs", data={"input": "a", "token": "0" * 64}, headers=own).status_code == 403
        foreign = {"Origin": "https://evil.example"}
        sent = browser.post("/ui/jobs", data={"input": "a", "token": token}, headers=foreign)
        assert (sent.status_code, "another origin" in sent.text) == (403, True)
        rebound = browser.get("/ui/jobs", headers={"Host": "evil.example"})
        assert rebound.status_code == 421
        json_body = browser.post("/ui/jobs", json={"input": "a"}, headers=own)
        assert json_body.status_code == 415
    with visit(api) as stranger:
        assert stranger.post("/ui/jobs", data={"input": "a", "token": token}, headers=own).status_code == 403


def test_files_of_a_page_are_kept_and_a_page_is_not(api: Api) -> None:
    with visit(api) as browser:
        page = browser.get("/")
        names = re.findall(r'"(/ui/assets/[^"]+)"', page.text)
        assert len(names) >= 3
        for name in names:
            file = browser.get(name)
            assert (file.status_code, "immutable" in file.headers["cache-control"]) == (200, True)
        assert browser.get("/ui/assets/planq.css").status_code == 404
        assert (page.headers["cache-control"], page.headers["content-encoding"]) == ("no-store", "gzip")
        assert browser.get("/", headers={"Accept-Encoding": "identity"}).text.count("<nav") == page.text.count("<nav")
        assert "'unsafe-inline'" not in page.headers["content-security-policy"]
        assert page.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'; style-src")
        for word in ("HttpOnly", "SameSite=strict", "Path=/"):
            assert word in page.headers["set-cookie"]
        assert not re.search(r"<script(?![^>]*src=)|<style|\sstyle=|\son[a-z]+=", page.text)


def test_a_key_opens_the_pages_and_its_end_closes_them(locked_api: Api) -> None:
    with visit(locked_api) as browser:
        page = browser.get("/ui/jobs?status=failed")
        assert page.url.path == "/ui/login"
        wrong = browser.post("/ui/login", data={"token": token_in(page), "key": "nonsense"})
        assert (wrong.status_code, "is not known" in wrong.text) == (403, True)
        right = {"token": token_in(wrong), "key": KEY, "next": "/ui/jobs?status=failed"}
        assert str(browser.post("/ui/login", data=right).url).endswith("/ui/jobs?status=failed")
        elsewhere = {**right, "token": token_in(browser.get("/ui/jobs")), "next": "//evil.example/ui/"}
        assert browser.post("/ui/login", data=elsewhere).url.path == "/ui/jobs"
        assert browser.get("/jobs").status_code == 401, "a session opens pages, and nothing else"
        post(browser, "/ui/logout", {})
        assert browser.get("/ui/jobs").url.path == "/ui/login"

    key, text = a_key(locked_api)
    with log_in(locked_api, text) as browser:
        assert "acme" in browser.get("/ui/jobs").text
        end_key(locked_api, key, "revoked")
        eventually(lambda: browser.get("/ui/jobs").url.path == "/ui/login", what="the session has ended")


def test_a_stream_of_a_session_ends_with_its_key(locked_api: Api) -> None:
    key, text = a_key(locked_api)
    with log_in(locked_api, text) as browser:
        headers = {"Accept": "text/event-stream"}
        with browser.stream("GET", "/ui/events", headers=headers) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            end_key(locked_api, key, "revoked")
            assert b"retry" in b"".join(stream.iter_raw()), "it ends, for the key has"
        eventually(lambda: browser.get("/ui/events", headers=headers).status_code == 401, what="the key has ended")


@pytest.mark.parametrize(
    ("scope", "home", "led_to"),
    [
        ("messages", "/ui/chat", {"/elicitations", "/chat", "/conversations", "/manual"}),
        ("approve", "/ui/elicitations", {"/elicitations", "/manual"}),
        ("admin", "/ui/tenants", {"/elicitations", "/costs", "/tenants", "/manual"}),
    ],
)
def test_a_key_begins_on_what_its_scopes_open_and_is_led_nowhere_else(
    locked_api: Api, scope: str, home: str, led_to: set[str]
) -> None:
    locked_api.jobs.execute("INSERT INTO tenants (id, name) VALUES ('acme', '') ON CONFLICT DO NOTHING")
    made = locked_api.http.post(
        "/tenants/acme/keys", json={"name": "m", "scopes": [scope]}, headers={"Authorization": f"Bearer {KEY}"}
    )
    with log_in(locked_api, made.json()["key"]) as browser:
        for path in ("/", "/ui", "/ui/login"):
            page = browser.get(path)
            assert (page.status_code, page.url.path) == (200, home if path != "/ui/login" else path)
        for path in (home, *(f"/ui{one}" for one in led_to)):
            page = browser.get(path)
            assert page.status_code == 200, path
            links = set(re.findall(r'<a href="/ui(/[a-z]+)"', page.text))
            assert links <= led_to, path
        assert led_to <= links
        assert "/ui/events" not in browser.get("/ui/elicitations").text, "the key opens no stream of all jobs"
        refused = browser.get("/ui/jobs")
        assert (refused.status_code, f'href="{home}"' in refused.text) == (403, True)
        assert "needs a key with the scope jobs" in refused.text


def test_a_chat_client_sees_its_talks_and_no_agents_or_jobs(locked_api: Api) -> None:
    locked_api.jobs.execute("INSERT INTO tenants (id, name) VALUES ('acme', '') ON CONFLICT DO NOTHING")
    asked = {"name": "chat", "scopes": ["messages"]}
    made = locked_api.http.post("/tenants/acme/keys", json=asked, headers={"Authorization": f"Bearer {KEY}"})
    with log_in(locked_api, made.json()["key"]) as browser:
        page = browser.get("/ui/chat")
        assert 'name="agent"' not in page.text
        assert "/ui/agents" not in page.text
        own = {"Origin": locked_api.url}
        sent = {"token": token_in(page), "text": "Say <hello>", "person": "ann"}
        talk = browser.post("/ui/chat", data=sent, headers=own)
        assert talk.status_code == 200
        assert "Say &lt;hello&gt;" in talk.text
        assert "/ui/jobs/" not in talk.text.replace('data-stream="/ui/jobs/', "")
        refused = browser.post(talk.url.path, data={**sent, "model": "offline"}, headers=own)
        assert (refused.status_code, "needs a key with the scope jobs" in refused.text) == (403, True)
        empty = browser.post(talk.url.path, data={**sent, "text": " "}, headers=own)
        assert (empty.status_code, "expected a message that says something" in empty.text) == (422, True)


def test_what_is_not_there_is_told_on_a_page(api: Api) -> None:
    with visit(api) as browser:
        for path, status in (("/ui/jobs/x", 404), ("/ui/jobs?cursor=x", 422), ("/ui/jobs?q=" + "a" * 201, 422)):
            page = browser.get(path)
            assert (page.status_code, page.headers["content-type"]) == (status, "text/html; charset=utf-8")


def test_jobs_are_counted_searched_and_explained(make_api: MakeApi) -> None:
    api = make_api()
    api.jobs.publish_tools()
    found = api.submit({"input": "Count the Crocodiles"})["id"]
    other = api.submit({"plan": {"calls": [search()]}})["id"]
    api.jobs.complete(other)

    counts = api.http.get("/job-counts").json()["counts"]
    assert (counts["queued"], counts["completed"], counts["failed"]) == (1, 1, 0)
    assert [job["id"] for job in api.http.get("/jobs", params={"words": "croco"}).json()["items"]] == [found]
    assert api.http.get("/jobs", params={"words": "100%"}).json()["items"] == []
    assert api.http.get("/jobs", params={"words": "croco", "status": "failed"}).json()["items"] == []
    why = api.http.get(f"/jobs/{found}/why").json()
    assert (why["waits_for"], why["status"]) == ("worker", "queued")
    assert api.http.get(f"/jobs/{other}/why").json()["sentence"] == "It has completed."
    api.jobs.register_worker("io", "cpu")
    assert api.http.get(f"/jobs/{found}/why").json()["waits_for"] == "slot"
    queued = api.submit({"input": "Count the cranes", "metadata": {"n": 5, "team": "blue"}})["id"]
    api.http.post(f"/jobs/{found}/pause")
    assert api.http.get(f"/jobs/{found}/why").json()["waits_for"] == "pause"
    with visit(api) as browser:
        page = browser.get("/ui/jobs").text
        sentence = api.http.get(f"/jobs/{queued}/why").json()["sentence"]
        assert f'<span class="why">{sentence}</span>' in page
        assert page.count('<span class="why">It has been paused for') == 1, "each has its own"
        assert page.count('<span class="why">') == 2
        for given in ("n=5", "team=blue, n=5.0", '{"n": 5}'):
            page = browser.get("/ui/jobs", params={"metadata": given}).text
            assert page.count('<tr id="job-') == 1, given
            assert f'id="job-{queued}"' in page
        assert browser.get("/ui/jobs?metadata=n").status_code == 422


def test_workers_and_what_waits_for_them_are_told(make_api: MakeApi) -> None:
    api = make_api()
    api.jobs.publish_tools()
    api.submit({"input": "Count the Crocodiles"})
    api.submit({"input": "Count them slowly", "priority": "bulk"})
    paused = api.submit({"input": "Count them never"})["id"]
    assert api.http.post(f"/jobs/{paused}/pause").status_code == 200

    told = api.http.get("/workers").json()
    assert told["workers"] == []
    waiting = {(one["pool"], one["priority"]): one["waiting"] for one in told["backlog"]}
    nothing = {("cpu", "interactive"): 0, ("cpu", "bulk"): 0}
    assert waiting == {("io", "interactive"): 1, ("io", "bulk"): 1, **nothing}
    assert [one["oldest_at"] is None for one in told["backlog"]] == [not one["waiting"] for one in told["backlog"]]
    with visit(api) as browser:
        assert "No worker of this pool is alive" in browser.get("/ui/workers").text
        api.jobs.register_worker("io", "gpu")
        page = browser.get("/ui/workers").text
        assert page.count("No worker of this pool is alive") == 1
        assert "<code>gpu</code>" in page
    (worker,) = api.http.get("/workers").json()["workers"]
    assert (worker["pools"], worker["running"]) == (["io", "gpu"], [])


def test_pages_below_a_prefix_lead_to_one_another(make_api: MakeApi) -> None:
    api = make_api(root_path="/planq")
    with visit(api) as browser:
        assert browser.get("/", follow_redirects=False).headers["location"] == "/planq/ui/jobs"
        page = browser.get("/planq/ui/jobs")
        assert 'action="/planq/ui/jobs"' in page.text
        for name in re.findall(r'"(/planq/ui/assets/[^"]+)"', page.text):
            assert browser.get(name).status_code == 200


def test_insights_are_shown_as_text_and_their_report_says_too_few(make_api: MakeApi) -> None:
    api = make_api()
    with visit(api) as browser:
        assert "Nothing was learned yet" in browser.get("/ui/insights").text
        assert "Too few jobs to say anything" in browser.get("/ui/insights/report").text
        (insight,) = learned(api.jobs.execute, "<script>alert(1)</script> \u202e")
        ended(api.jobs.execute, "offered", [insight], [True] * 3)
        for path in ("/ui/insights", f"/ui/insights/{insight}", "/ui/insights/report?days=7"):
            page = browser.get(path).text
            assert "&lt;script&gt;alert(1)&lt;/script&gt; \\u202e" in page
            assert "<script>alert" not in page
        assert "No insight fits" in browser.get("/ui/insights?tool=%3Cb%3E%00").text
        assert browser.get("/ui/insights/nothing").status_code == 404
        assert browser.get("/ui/insights/report?days=0").status_code == 422
        own = {"Origin": api.url}
        assert browser.post(f"/ui/insights/{insight}/retire", headers=own).status_code == 403
        refused = post(browser, f"/ui/insights/{insight}/change", {"is_loved": "yes"})
        assert (refused.status_code, "is_loved" in refused.text) == (422, True)


def test_a_batch_is_sent_as_a_file_without_scripts(api: Api) -> None:
    hostile = "\u202e<script>alert(1)</script>.jsonl"
    lines = "".join(f'{{"custom_id": "<b>{n}\u202e", "body": {{}}}}\n' for n in range(51))
    with visit(api) as browser:
        form = {"token": token_in(browser.get("/ui/batches")), "max_cost_usd": "2.5"}
        own = {"Origin": api.url}

        def send(content: str, **fields: str) -> httpx.Response:
            file = {"file": (hostile, content.encode())}
            return browser.post("/ui/batches", data={**form, **fields}, files=file, headers=own)

        assert send(lines, token="0" * 64).status_code == 403
        assert browser.post("/ui/batches", data=form, headers=own).status_code == 422
        for wrong in ({"canary": "0"}, {"defaults": "[1]"}, {"priority": "first"}, {"max_tokens": "1e3"}):
            assert send(lines, **wrong).status_code == 422, wrong
        assert api.http.get("/batches").json()["items"] == []

        page = send(lines, discount="provider")
        path = page.url.path
        assert api.http.get(path.removeprefix("/ui")).json()["discount"] == "provider"
        eventually(lambda: "51" in browser.get(path).text, what="it is validated")
        eventually(lambda: api.http.get(path.removeprefix("/ui")).json()["finished_at"], what="no line is valid")
        page = browser.get(path)
        assert "\\u202e&lt;script&gt;" in page.text
        assert "<script>" not in page.text
        assert "&lt;b&gt;0\\u202e" in page.text
        assert "More errors" in page.text
        second = browser.get(f"{path}?after=50").text
        assert ("&lt;b&gt;50" in second, "&lt;b&gt;49" in second, "More errors" in second) == (True, False, False)
        saved = browser.get(f"{path}/errors")
        assert (len(saved.text.splitlines()), saved.headers["content-disposition"][:11]) == (51, "attachment;")
        assert browser.get(f"{path}/results").text == ""
    api.jobs.execute("DELETE FROM batches")


def _places_of_json(api: Api, browser: httpx.Client) -> dict[str, tuple[str, str, dict[str, Any]]]:
    """Every page with a field of JSON: its path, the field, and what else its form has."""
    job_id = api.http.post("/jobs", json={"plan": {"calls": [search()]}}).json()["id"]
    seen = api.http.get("/tenants/default").json()["updated_at"]
    return {
        "fork": (f"/ui/jobs/{job_id}/fork", "plan", {"act": "fork"}),
        "check of a fork": (f"/ui/jobs/{job_id}/fork/check", "plan", {}),
        "settle": (f"/ui/jobs/{job_id}/steps/0/settle", "output", {"outcome": "succeeded"}),
        "a tool's call": ("/ui/tools/text_search", "field.query", {}),
        "configuration": ("/ui/tenants/default/config", "field.limits", {"seen": seen}),
        "resumption of a batch": (f"/ui/batches/{job_id}/resume", "max_tokens", {}),
        "filter": ("/ui/job-actions", "metadata", {"act": "cancel"}),
    }


@pytest.mark.parametrize(
    "name",
    ["fork", "check of a fork", "settle", "a tool's call", "configuration", "resumption of a batch", "filter"],
)
def test_json_in_a_form_has_the_bounds_of_a_body(make_api: MakeApi, name: str) -> None:
    api = make_api()
    api.jobs.publish_tools()
    hostile = ["[" * 400_000, "[" + "1," * 400_000 + "1]", "9" * 900_000, '{"a":1,"a":2}', '"\x00"', '"\\ud800"']
    with visit(api) as browser:
        path, field, more = _places_of_json(api, browser)[name]
        for text in hostile:
            answer = post(browser, path, {field: text, **more})
            assert answer.status_code < 500, (answer.status_code, text[:20], answer.text[-500:])
            if name in ("fork", "settle", "configuration") and len(text) > 20:
                assert answer.status_code in (400, 413, 422), (answer.status_code, text[:20])


def test_a_form_is_short_plain_and_in_utf_8(api: Api) -> None:
    with visit(api) as browser:
        many = post(browser, "/ui/jobs", {f"f{one}": "" for one in range(300)} | {"input": "x"})
        assert (many.status_code, "at most 200 fields" in many.text) == (413, True)
        own = {"Origin": api.url}
        files = {"input": (None, "x")}
        assert browser.post("/ui/jobs", files=files, headers=own).status_code == 415
        token = token_in(browser.get("/ui/jobs"))
        kind = {"Content-Type": "multipart/form-data; boundary=b; charset=punycode"}
        part = f'--b\r\nContent-Disposition: form-data; name="token"\r\n\r\n{token}\r\n--b--\r\n'
        assert browser.post("/ui/batches", content=part, headers={**own, **kind}).status_code == 415
        kind = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-16"}
        assert browser.post("/ui/jobs", content=f"token={token}", headers={**own, **kind}).status_code == 415


def test_a_copied_cookie_is_worth_nothing_after_the_logout(locked_api: Api) -> None:
    with log_in(locked_api, KEY) as browser, visit(locked_api) as thief:
        thief.cookies.update(browser.cookies)
        assert thief.get("/ui/jobs").url.path == "/ui/jobs"
        post(browser, "/ui/logout", {})
        assert browser.get("/ui/jobs").url.path == "/ui/login"
        assert thief.get("/ui/jobs").url.path == "/ui/login"
        assert thief.get("/ui/events", headers={"Accept": "text/event-stream"}).status_code == 401
    with log_in(locked_api, KEY) as browser, visit(locked_api) as thief:
        thief.cookies.update(browser.cookies)
        token = token_in(browser.get("/ui/jobs"))
        browser.post("/ui/login", data={"token": token, "key": KEY}, headers={"Origin": locked_api.url})
        assert browser.get("/ui/jobs").url.path == "/ui/jobs"
        assert thief.get("/ui/jobs").url.path == "/ui/login", "a new login ends what was before it"


def streamed(browser: httpx.Client, path: str, meanwhile: Callable[[], object]) -> str:
    """Return what an open stream of events sends until it is ended by what happens meanwhile."""
    headers = {"Accept": "text/event-stream"}
    with browser.stream("GET", path, headers=headers, timeout=30) as stream:
        assert stream.status_code == 200
        pieces = stream.iter_text()
        first = next(pieces)
        meanwhile()
        return first + "".join(pieces)


def test_a_stream_ends_with_the_session_that_opened_it(locked_api: Api, make_api: MakeApi) -> None:
    with log_in(locked_api, KEY) as browser, visit(locked_api) as tab:
        tab.cookies.update(browser.cookies)
        assert streamed(tab, "/ui/events", lambda: post(browser, "/ui/logout", {})).startswith("retry:")
    short = make_api(api_keys=KEY, page_session_seconds=60)
    sessions = short.app.state.services.sessions
    with log_in(short, KEY) as browser:
        (cookie,) = browser.cookies.jar
        near = sessions.read(cookie.value, time())._replace(begun_at=int(time()) - 58)
        browser.cookies.clear()
        browser.cookies.set(cookie.name, sessions.text(near))
        assert streamed(browser, "/ui/events", lambda: None).startswith("retry:")
        assert sessions.last_end(near) <= time()


def test_unknown_parameters_of_pages_are_refused(api: Api) -> None:
    job = api.submit()
    with visit(api) as browser:
        for path in ("/", "/ui/jobs", "/ui/costs", f"/ui/jobs/{job['id']}", "/ui/job-actions", "/ui/events"):
            answer = browser.get(f"{path}?sttaus=failed")
            assert answer.status_code == 422, path
            assert "sttaus: unknown parameter" in answer.text, path
        for path in (
            "/ui/jobs?status=failed&children=yes",
            f"/ui/jobs/{job['id']}?finished=fold",
            "/ui/job-actions?act=",
        ):
            assert browser.get(path).status_code == 200, path
        assert browser.get("/ui/jobs?status=failed&status=failed").status_code == 422


def test_a_session_ends_hours_after_its_login_although_it_is_renewed(locked_api: Api) -> None:
    sessions = locked_api.app.state.services.sessions
    most = PAGE_SESSION_SECONDS
    with log_in(locked_api, KEY) as browser:
        (cookie,) = browser.cookies.jar
        session = sessions.read(cookie.value, time())
        for age, place in ((most - 60, "/ui/jobs"), (most + 1, "/ui/login")):
            old = session._replace(begun_at=int(time() - age), ends_at=int(time()) + 3_600)
            browser.cookies.clear()
            browser.cookies.set(cookie.name, sessions.text(old))
            assert browser.get("/ui/jobs").url.path == place


@pytest.mark.parametrize(
    "told",
    [{"X-Forwarded-Proto": "https"}, {"Forwarded": 'for=192.0.2.60;proto=https;host=planq.example, for="10.0.0.1"'}],
)
def test_behind_tls_of_a_trusted_proxy_the_cookie_is_sent_over_tls_alone(make_api: MakeApi, told: Any) -> None:
    api = make_api(api_keys=KEY, trusted_proxies="127.0.0.1")
    with httpx.Client(base_url=api.url, trust_env=False) as browser:
        begun = browser.get("/ui/login", headers=told)
        cookie = begun.headers["set-cookie"]
        assert cookie.startswith("__Host-planq_session_")
        assert ("; Secure" in cookie, "; Path=/;" in cookie, "Domain" in cookie) == (True, True, False)
        sent = {"Cookie": cookie.partition(";")[0], "Origin": api.url, **told}
        form = {"token": token_in(begun), "key": KEY}
        opened = browser.post("/ui/login", data=form, headers=sent).headers["set-cookie"].partition(";")[0]
        assert browser.get("/ui/jobs", headers={**told, "Cookie": opened}).status_code == 200
        plain = opened.removeprefix("__Host-")
        for cookie, more in ((plain, told), (opened, {}), (plain, {})):
            opens = browser.get("/ui/jobs", headers={**more, "Cookie": cookie}).status_code == 200
            assert opens == (cookie == plain and not more), "a cookie of another name is none"
        prefixed = browser.get("/ui/login", headers={**told, "X-Forwarded-Prefix": "/desk"}).headers["set-cookie"]
        assert (prefixed.startswith("__Secure-planq_session_"), "; Path=/desk/;" in prefixed) == (True, True)


def test_who_is_no_trusted_proxy_does_not_say_that_a_client_came_over_tls(make_api: MakeApi) -> None:
    told = {"X-Forwarded-Proto": "https", "Forwarded": "proto=https"}
    for settings in ({}, {"trusted_proxies": "10.0.0.0/8"}):
        cookie = make_api(**settings).http.get("/ui/jobs", headers=told).headers["set-cookie"]
        assert cookie.startswith("planq_session_")
        assert "Secure" not in cookie


def test_two_installations_on_one_host_keep_their_sessions_apart(make_api: MakeApi, locked_api: Api) -> None:
    other = make_api(api_keys="another-key")
    with log_in(locked_api, KEY) as browser:
        browser.base_url = other.url
        page = browser.get("/ui/login")
        browser.post("/ui/login", data={"token": token_in(page), "key": "another-key"})
        assert browser.get("/ui/jobs").url.path == "/ui/jobs"
        browser.base_url = locked_api.url
        assert browser.get("/ui/jobs").url.path == "/ui/jobs"


def test_the_thoughts_of_a_model_are_folded_on_the_page_of_its_job(api: Api) -> None:
    job_id = api.submit()["id"]
    exchange = {"request": None, "reply": {"text": "It is 4.", "thoughts": "Add <b>two</b>."}}
    with psycopg.connect(api.settings.database_url) as connection:
        insert = (
            "INSERT INTO model_calls (tenant_id, purpose, model, job_id, exchange) VALUES (%s, 'plan', 'm', %s, %s)"
        )
        connection.execute(insert, ("default", job_id, json.dumps(exchange)))
        connection.execute("UPDATE jobs SET model_calls = 1 WHERE id = %s", (job_id,))
    with visit(api) as browser:
        page = browser.get(f"/ui/jobs/{job_id}").text
    thoughts = page[page.index('id="thoughts-1"') :]
    assert thoughts.index("Add &lt;b&gt;two&lt;/b&gt;.") < thoughts.index("</details>")
    assert page.count("two") == 1
