"""`planq conversations`: what it asks for and prints."""

from __future__ import annotations

import json
from collections.abc import Callable

from typer.testing import Result

from tests.support.recorder import Recorder

ID = "01a1fc26-aa7a-7082-9f4d-2dd23711ed45"
Planq = Callable[..., Result]


def test_conversations_are_listed(planq: Planq, server: Recorder) -> None:
    one = {
        "id": ID,
        "channel": "web",
        "thread": "t\x1b[1m",
        "messages_in": 3,
        "messages_out": 2,
        "is_closed": False,
        "active_job_id": ID,
    }
    server.answer(200, {"items": [one], "next_cursor": None})

    told = planq("conversations", "list", "--channel", "web")
    data = planq("conversations", "list", "--json")

    assert [word in told.stdout for word in (ID, "web", "3 in, 2 out", "active")] == [True] * 4
    assert "\x1b" not in told.stdout
    assert json.loads(data.stdout)["items"] == [one]
    assert [path for _, path, _, _ in server.asked] == [
        "/conversations?channel=web&limit=100",
        "/conversations?limit=100",
    ]


def test_a_conversation_is_shown_oldest_first(planq: Planq, server: Recorder) -> None:
    words = {"kind": "message", "status": "done", "turn": 1, "content": None}
    call = {"kind": "tool_call", "direction": "internal", "status": "done", "turn": 1, "text": ""}
    rows = [
        {**words, "direction": "outbound", "text": "it is sunny"},
        {**call, "content": {"id": "c", "name": "weather", "arguments": {}}},
        {**words, "direction": "inbound", "text": "how is\nthe weather?"},
    ]
    server.answer(200, {"items": rows, "next_cursor": None})

    told = planq("conversations", "show", ID).stdout

    assert [told.index(text) for text in ("how is", '"weather"', "sunny")] == sorted(
        told.index(text) for text in ("how is", '"weather"', "sunny")
    )
    assert len(told.splitlines()) == 3
    assert server.asked[-1][1] == f"/conversations/{ID}/messages?limit=100"


def test_no_conversations_say_so(planq: Planq, server: Recorder) -> None:
    server.answer(200, {"items": [], "next_cursor": None})

    told = planq("conversations", "list")

    assert (told.exit_code, told.stdout) == (0, "")
    assert "there are no conversations" in told.stderr
