"""The API below a path of a web server: what it tells of its own paths leads there."""

from __future__ import annotations

from urllib.parse import urljoin

import pytest

from planq.shared.settings.settings import Settings
from tests.integration.api.conftest import MakeApi


@pytest.mark.parametrize("is_taken_off", [True, False])
def test_what_tells_of_a_path_leads_below_the_prefix(make_api: MakeApi, is_taken_off: bool) -> None:
    """Some proxies take the prefix off before they send a request on, and some do not."""
    api = make_api(root_path="/planq")
    sent = "" if is_taken_off else "/planq"

    made = api.http.post(f"{sent}/jobs", json={"input": "x"})
    page = api.http.get(f"{sent}/docs")
    description = api.http.get(f"{sent}/openapi.json").json()

    assert (made.status_code, made.headers["location"]) == (202, f"/planq/jobs/{made.json()['id']}")
    assert api.http.get(f"{sent}/jobs/{made.json()['id']}").status_code == 200
    assert description["servers"] == [{"url": "/planq"}]
    script = page.text.partition('<script src="')[2].partition('"')[0]
    seen_at = urljoin("http://shop.example/planq/docs", script)
    assert seen_at == "http://shop.example/planq/docs/assets/swagger-ui-bundle.js"
    assert api.http.get(f"{sent}{seen_at.partition('/planq')[2]}").status_code == 200


def test_without_one_nothing_is_said_of_servers(make_api: MakeApi) -> None:
    api = make_api()

    assert "servers" not in api.http.get("/openapi.json").json()
    assert api.http.post("/jobs", json={"input": "x"}).headers["location"].startswith("/jobs/")
    assert api.http.get("/planq/jobs").status_code == 404


def test_only_a_proxy_that_is_trusted_names_a_prefix(make_api: MakeApi) -> None:
    named = {"X-Forwarded-Prefix": "/desk/"}

    def located(**settings: str) -> str:
        answer = make_api(**settings).http.post("/jobs", json={"input": "x"}, headers=named)
        return str(answer.headers["location"].partition("/jobs/")[0])

    assert located() == ""
    assert located(root_path="/own") == "/own"
    assert located(trusted_proxies="10.0.0.0/8", root_path="/own") == "/own"
    assert located(trusted_proxies="127.0.0.0/8", root_path="/own") == "/desk"


@pytest.mark.parametrize(
    "forged", ["//evil.example", "/a b", "/a\\b", "javascript:x", "/a/../b/<i>", "/" + "a" * 300]
)
def test_what_is_no_path_is_no_prefix(make_api: MakeApi, forged: str) -> None:
    api = make_api(trusted_proxies="127.0.0.1")

    made = api.http.post("/jobs", json={"input": "x"}, headers={"X-Forwarded-Prefix": forged})

    assert made.headers["location"] == f"/jobs/{made.json()['id']}"


@pytest.mark.parametrize(
    ("name", "value"), [("root_path", "planq"), ("root_path", "/a/"), ("trusted_proxies", "shop")]
)
def test_a_setting_that_is_none_is_refused(name: str, value: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        Settings(**{name: value})  # type: ignore[arg-type]
