"""`planq endpoints` and `planq deliveries`: what they send and print."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from typer.testing import Result

from tests.support.recorder import Recorder

ID = "01a1fc26-aa7a-7082-9f4d-2dd23711ed45"
ENDPOINT = {
    "id": ID,
    "url": "https://example.com/\x1b[1mhook",
    "events": ["job.*"],
    "description": "mine",
    "is_disabled": True,
    "disabled_reason": "it answered 410 Gone",
}
DELIVERY = {
    "id": ID,
    "status": "pending",
    "event": "job.failed",
    "attempt": 3,
    "url": "https://example.com/",
    "error": {"code": "receiver_failed", "message": "the receiver answered 500"},
}

Planq = Callable[..., Result]


def last(server: Recorder) -> tuple[str, str, Any]:
    method, path, _, body = server.asked[-1]
    return method, path, body


def test_an_endpoint_is_added_and_its_secret_alone_goes_to_standard_output(planq: Planq, server: Recorder) -> None:
    server.answer(201, {**ENDPOINT, "secret": "whsec_x"})

    told = planq("endpoints", "add", "https://example.com/", "--event", "job.failed", "--event", "batch.*")

    assert (told.exit_code, told.stdout) == (0, "whsec_x\n")
    body = {"url": "https://example.com/", "events": ["job.failed", "batch.*"], "description": ""}
    assert last(server) == ("POST", "/endpoints", body)


def test_endpoints_are_listed_with_why_they_are_disabled(planq: Planq, server: Recorder) -> None:
    server.answer(200, {"items": [ENDPOINT], "next_cursor": None})

    told = planq("endpoints", "list")

    assert [word in told.stdout for word in (ID, "410 Gone", "job.*", "mine")] == [True] * 4
    assert "\x1b" not in told.stdout


def test_an_endpoint_is_changed_rotated_tried_and_removed(planq: Planq, server: Recorder) -> None:
    server.answer(200, ENDPOINT)
    assert planq("endpoints", "update", ID, "--enable").exit_code == 0
    assert last(server) == ("PATCH", f"/endpoints/{ID}", {"is_disabled": False})
    assert planq("endpoints", "update", ID).exit_code == 2
    server.answer(200, {"secret": "whsec_y"})
    assert planq("endpoints", "rotate", ID).stdout == "whsec_y\n"
    assert planq("endpoints", "callback-secret").stdout == "whsec_y\n"
    assert last(server)[:2] == ("GET", "/webhook-secret")
    planq("endpoints", "callback-secret", "--rotate")
    assert last(server)[:2] == ("POST", "/webhook-secret/rotate")
    assert planq("endpoints", "inbound-secret").stdout == "whsec_y\n"
    assert last(server)[:2] == ("GET", "/webhook-secret/inbound")
    planq("endpoints", "inbound-secret", "--rotate")
    assert last(server)[:2] == ("POST", "/webhook-secret/inbound/rotate")
    server.answer(202, DELIVERY)
    assert "job.failed" in planq("endpoints", "test", ID).stdout
    server.answer(204, "")
    assert planq("endpoints", "remove", ID).exit_code == 0
    assert last(server)[:2] == ("DELETE", f"/endpoints/{ID}")


def test_deliveries_are_listed_with_their_error_and_sent_again(planq: Planq, server: Recorder) -> None:
    server.answer(200, {"items": [DELIVERY], "next_cursor": None})

    told = planq("deliveries", "list", "--status", "pending", "--job", ID)
    data = planq("deliveries", "list", "--json")

    assert [word in told.stdout for word in ("pending", "attempt 3", "receiver_failed: the receiver")] == [True] * 3
    assert json.loads(data.stdout)["items"] == [DELIVERY]
    assert "status=pending" in server.asked[0][1]
    server.answer(202, DELIVERY)
    assert planq("deliveries", "retry", ID, ID).exit_code == 0
    assert [path for _, path, _, _ in server.asked[-2:]] == [f"/deliveries/{ID}/redeliver"] * 2
