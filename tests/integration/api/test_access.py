"""Who is let in: keys where there are keys, and without them only this machine and no web page."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from planq.api.app import create_api
from planq.shared.platform.errors import Misconfigured
from planq.shared.settings.settings import Settings
from tests.integration.api.conftest import Api, MakeApi, problem_of

PATHS = ["/jobs", "/tools", "/metrics", "/nothing"]
OPEN = ["/healthz", "/readyz", "/statusz", "/docs", "/openapi.json"]


@pytest.mark.parametrize("authorization", [None, "", "Bearer", "Bearer wrong", "Basic one", "one", "Bearer one x"])
def test_without_a_known_key_nothing_is_answered(make_api: MakeApi, authorization: str | None) -> None:
    api = make_api(api_keys="one, two")
    headers = {} if authorization is None else {"Authorization": authorization}

    for path in PATHS:
        response = api.http.get(path, headers=headers)
        problem_of(response, 401, "unauthorized")
        assert response.headers["www-authenticate"] == 'Bearer realm="planq"'


def test_every_key_opens_and_probes_need_none(make_api: MakeApi) -> None:
    api = make_api(api_keys="one, two")

    for key in ("one", "two"):
        assert api.http.get("/jobs", headers={"Authorization": f"bearer {key}"}).status_code == 200
    assert api.http.get("/healthz", headers={"Host": "planq.example"}).status_code == 200
    assert api.http.get("/readyz").status_code == 200
    assert api.http.get("/jobs", headers={"Authorization": "Bearer one", "Host": "planq.example"}).status_code == 200


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:8000", "[::1]", "[::1]:8000"])
def test_without_keys_this_machine_may_ask(api: Api, host: str) -> None:
    assert api.http.get("/jobs", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.nip.io:8000",
        "a@localhost",
        "[::1",
        "localhost:x",
        "::1",
        "localhost#evil.example",
        "localhost?evil.example",
        "localhost/evil.example",
    ],
)
def test_without_keys_other_names_for_this_machine_are_refused(api: Api, host: str) -> None:
    for path in (*PATHS, *OPEN):
        problem_of(api.http.get(path, headers={"Host": host}), 421, "misdirected")


def test_without_keys_a_request_that_names_no_host_is_refused(api: Api) -> None:
    with socket.create_connection(("127.0.0.1", api.port), timeout=60) as connection:
        connection.sendall(b"GET /jobs HTTP/1.0\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 421 ")


@pytest.mark.parametrize("hosts", [("localhost", "evil.example"), ("evil.example", "localhost")])
def test_without_keys_a_second_host_is_refused(api: Api, hosts: tuple[str, str]) -> None:
    lines = "".join(f"Host: {host}\r\n" for host in hosts)
    with socket.create_connection(("127.0.0.1", api.port), timeout=60) as connection:
        connection.sendall(f"GET /jobs HTTP/1.1\r\n{lines}\r\n".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 421 ")


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:3000", "file://", "http://["])
def test_a_web_page_of_another_origin_is_refused(api: Api, origin: str) -> None:
    response = api.http.post("/jobs", json={"input": "a"}, headers={"Origin": origin})

    problem_of(response, 403, "foreign_origin")
    assert not [name for name in response.headers if name.startswith("access-control")]


def test_our_own_pages_may_ask(api: Api) -> None:
    assert api.http.get("/jobs", headers={"Origin": api.url}).status_code == 200


@pytest.mark.parametrize(
    "kind", [None, "text/plain", "application/x-www-form-urlencoded", "application/jsonx", "json"]
)
def test_a_body_that_a_form_could_send_is_refused(api: Api, kind: str | None) -> None:
    headers = {} if kind is None else {"Content-Type": kind}

    for path in ("/jobs", "/plans/validate"):
        response = api.http.post(path, content=b'{"input": "a"}', headers=headers)
        assert "application/json" in problem_of(response, 415, "unsupported_media_type")["detail"]


def test_json_may_name_its_charset(api: Api) -> None:
    headers = {"Content-Type": "Application/JSON; charset=utf-8"}

    assert api.http.post("/jobs", content=b'{"input": "a"}', headers=headers).status_code == 202


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"host": "0.0.0.0"}, "PLANQ_API_KEYS"),
        ({"host": "::"}, "PLANQ_API_KEYS"),
        ({"database_url": ""}, "DATABASE_URL is not set"),
        ({"database_url": "mysql://x"}, "DATABASE_URL: expected postgresql://"),
        ({"database_url": "postgresql://a:b@[::1/x"}, "DATABASE_URL: expected a URL that libpq can read"),
        ({"broker_url": ""}, "BROKER_URL is not set"),
        ({"broker_url": "kafka://x"}, "BROKER_URL: expected redis://"),
        ({"broker_url": "redis://127.0.0.1:port/0"}, "BROKER_URL: expected a URL that Celery can read"),
        ({"broker_url": "amqp://127.0.0.1:port//"}, "BROKER_URL: expected a URL that Celery can read"),
    ],
)
def test_an_application_that_cannot_serve_is_not_made(changed: dict[str, Any], text: str) -> None:
    settings = {"database_url": "postgresql://localhost/x", "broker_url": "redis://localhost/0", **changed}

    with pytest.raises(Misconfigured, match=text.replace("[", r"\[")):
        create_api(Settings(**settings))


def test_an_application_that_others_may_reach_is_made_with_keys() -> None:
    given = {"database_url": "postgresql://localhost/x", "broker_url": "redis://localhost/0"}

    for keys in ({"api_keys": "k" * 16}, {"require_keys": True}):
        assert create_api(Settings(**{**given, "host": "0.0.0.0", **keys})).title == "planq"
