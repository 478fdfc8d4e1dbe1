"""What HTTP itself asks of an API: HEAD, Allow, queries, codings, and bodies that nobody wants."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from planq.api.openapi import _first_sentence
from tests.integration.api.conftest import Api, MakeApi, problem_of

GETS = ["/healthz", "/jobs", "/tools", "/agents", "/schedules", "/openapi.json", "/docs", "/nothing"]


@pytest.mark.parametrize("path", [*GETS, "/jobs/{id}", "/jobs/{id}?wait=0.01", "/docs/assets/swagger-ui.css"])
def test_head_is_get_without_the_body(api: Api, path: str) -> None:
    place = path.replace("{id}", api.submit()["id"])

    got, head = api.http.get(place), api.http.head(place)

    assert head.status_code == got.status_code
    assert head.content == b""
    assert {**head.headers, "date": ""} == {**got.headers, "date": ""}
    assert int(head.headers["content-length"]) > 0


def test_nothing_of_the_body_of_a_head_is_sent(api: Api) -> None:
    with socket.create_connection(("127.0.0.1", api.port), timeout=30) as connection:
        connection.sendall(b"HEAD /jobs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = b"".join(iter(lambda: connection.recv(65_536), b""))

    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/jobs", "GET, HEAD, POST, OPTIONS"),
        ("PATCH", "/agents/x", "GET, HEAD, PUT, DELETE, OPTIONS"),
        ("POST", "/healthz", "GET, HEAD, OPTIONS"),
        ("HEAD", "/messages/inbound", "POST, OPTIONS"),
        ("PUT", "/jobs/{id}", "GET, HEAD, OPTIONS"),
    ],
)
def test_a_method_that_is_not_known_is_told_all_that_are(api: Api, method: str, path: str, allowed: str) -> None:
    response = api.http.request(method, path.replace("{id}", api.submit()["id"]))

    assert response.status_code == 405
    assert response.headers["allow"] == allowed
    if method != "HEAD":
        assert allowed in problem_of(response, 405, "method_not_allowed")["detail"]


def test_options_are_those_that_there_are(api: Api) -> None:
    found = api.http.options(f"/jobs/{api.submit()['id']}/cancel")

    assert (found.status_code, found.headers["allow"], found.content) == (204, "POST, OPTIONS", b"")
    problem_of(api.http.options("/nowhere"), 404, "not_found")


@pytest.mark.parametrize(
    "path",
    [
        *("/jobs", "/plans", "/tasks", "/agents", "/skills", "/schedules", "/conversations", "/elicitations"),
        *("/batches", "/tenants", "/tenants/default/keys", "/deliveries", "/events"),
    ],
)
def test_what_is_no_cursor_is_said_everywhere(api: Api, path: str) -> None:
    told = problem_of(
        api.http.get(path, params={"cursor": "!no cursor", "after": "!no cursor"}), 422, "invalid_request"
    )

    assert "cursor" in told["detail"]


@pytest.mark.parametrize(
    ("method", "path", "field", "told"),
    [
        ("GET", "/jobs?limt=1", "limt", "known parameters are status, strategy, limit, cursor, roots"),
        ("GET", "/jobs?limit=1&limit=2", "limit", "more than once"),
        ("GET", "/jobs/{id}?wiat=1", "wiat", "known parameters are wait"),
        ("GET", "/jobs/{id}?wait=0&x=", "x", "known parameters are wait"),
        ("POST", "/jobs?dry_run=true", "dry_run", "known parameters are wait"),
        ("POST", "/jobs/{id}/cancel?now", "now", "this takes none"),
        ("GET", "/healthz?x=1", "x", "this takes none"),
    ],
)
def test_a_parameter_that_nothing_reads_is_refused(api: Api, method: str, path: str, field: str, told: str) -> None:
    body = {"input": "a"} if path.startswith("/jobs?dry") else None

    response = api.http.request(method, path.replace("{id}", api.submit()["id"]), json=body)

    (defect,) = problem_of(response, 422, "invalid_request")["errors"]
    assert (defect["in"], defect["field"]) == ("query", field)
    assert told in defect["message"]


@pytest.mark.parametrize("path", ["/jobs", "/agents/nobody/executions"])
def test_several_idempotency_keys_are_refused(api: Api, path: str) -> None:
    headers = [("Idempotency-Key", "one"), ("idempotency-key", "two")]

    response = api.http.post(path, json={"input": "a"}, headers=headers)

    assert "several" in problem_of(response, 400, "invalid_idempotency_key")["detail"]


@pytest.mark.parametrize("coding", ["gzip", "br", "identity, gzip"])
def test_a_body_that_is_encoded_is_refused(api: Api, coding: str) -> None:
    body = gzip.compress(b'{"input": "a"}')

    for path in ("/jobs", "/plans/validate"):
        headers = {"Content-Type": "application/json", "Content-Encoding": coding}
        response = api.http.post(path, content=body, headers=headers)
        assert "Content-Encoding" in problem_of(response, 415, "unsupported_media_type")["detail"]
        assert response.headers["accept-encoding"] == "identity"
    assert api.http.post("/jobs", json={"input": "a"}, headers={"Content-Encoding": "identity"}).status_code == 202


def pieces() -> Iterator[bytes]:
    for _ in range(64):
        yield b"x" * 262_144


@pytest.mark.parametrize("path", ["/jobs", "/plans/validate", "/nothing"])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_plain_client_that_sends_too_much_gets_to_read_why(api: Api, path: str, *, chunked: bool) -> None:
    data = pieces() if chunked else b"x" * 16_777_216
    # `Connection: close`, as urllib has it: the server ends the connection as soon as it has answered.
    request = urllib.request.Request(f"{api.url}{path}", data, {"Content-Type": "application/json"}, method="POST")

    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=60)

    with refused.value as answer:
        expected = 404 if path == "/nothing" and chunked else 413
        assert (answer.code, json.load(answer)["status"]) == (expected, expected)


def test_a_connection_goes_on_after_a_body_that_was_too_long(api: Api) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=60)
    for method, path, data, expected in (("POST", "/jobs", b"x" * 4_000_000, 413), ("GET", "/healthz", None, 200)):
        connection.request(method, path, data, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        assert answer.status == expected
    connection.close()


def test_a_client_that_waits_to_be_told_to_go_on_is_answered_at_once(api: Api) -> None:
    with socket.create_connection(("127.0.0.1", api.port), timeout=30) as connection:
        connection.sendall(
            b"POST /jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 99999999\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"
        )
        assert b"".join(iter(lambda: connection.recv(65_536), b"")).startswith(b"HTTP/1.1 413 ")


def test_with_keys_a_browser_sees_the_description_and_where_to_put_its_key(make_api: MakeApi) -> None:
    api = make_api(api_keys="one-key")

    page, description = api.http.get("/docs"), api.http.get("/openapi.json")

    assert page.headers["content-type"].startswith("text/html")
    assert api.http.get("/docs/assets/swagger-ui-bundle.js").status_code == 200
    document = description.json()
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    assert document["security"] == [{"key": []}]
    open_ones = [path for path, one in document["paths"].items() if one.get("get", {}).get("security") == []]
    assert open_ones == ["/healthz", "/readyz", "/statusz"]
    problem_of(api.http.get("/docsx"), 401, "unauthorized")


def test_every_summary_says_what_its_operation_does(api: Api) -> None:
    operations = [one for path in api.http.get("/openapi.json").json()["paths"].values() for one in path.values()]

    assert len(operations) > 20
    for operation in operations:
        assert operation["summary"] == _first_sentence(operation["description"])
        assert len(operation["summary"].split()) >= 3 or operation["summary"] in ("Return an agent", "Submit a job")
