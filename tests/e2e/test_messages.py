"""A message over HTTP while its model's provider misbehaves: what the caller is told, and what not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import httpx
import psycopg
import pytest

from tests.integration.llm.dialects import KEY, OPENAI_CHAT
from tests.integration.llm.wire import Reply, WireServer
from tests.support.stack import Stack

TOLD = "organisation org-4711 with key sk-4711"
ANSWERS = Reply(OPENAI_CHAT.reply("Twelve.", None))
BREAKS = Reply(OPENAI_CHAT.reply("Twelve is three times four, and " * 20, None), count=4, then="break")


def refused(status: int, **headers: str) -> Reply:
    return Reply({"error": {"message": TOLD, "type": "x", "code": "x"}}, status=status, headers=headers)


@pytest.fixture
def model() -> Iterator[WireServer]:
    running = WireServer()
    yield running
    running.close()


def ask(stack: Stack) -> httpx.Response:
    message: dict[str, Any] = {"tenant_id": "default", "channel": "api", "from": {"external_id": "ann"}}
    message |= {"thread": str(uuid4()), "content": {"text": "What is 3 * 4?"}}
    return httpx.post(f"{stack.url}/messages/inbound", json=message, timeout=60)


def test_what_a_provider_does_is_told_in_plain_words_and_by_a_status(
    make_stack: Callable[..., Stack], database_url: str, valkey_url: str, model: WireServer
) -> None:
    with psycopg.connect(database_url) as connection:
        turns_alone = json.dumps({"planning_enabled": False})
        connection.execute("UPDATE tenants SET config = %s WHERE id = 'default'", [turns_alone])
    settings = {
        "PLANQ_MODEL": OPENAI_CHAT.model,
        "PLANQ_MODEL_BASE_URL": f"{model.url}/v1",
        "OPENAI_API_KEY": KEY,
        "PLANQ_MODEL_ATTEMPTS": "1",
        "PLANQ_MODEL_RETRY_SECONDS": "0",
        "PLANQ_MODEL_SETTINGS": '{"*": {"first_token_seconds": 3}}',
    }
    stack = make_stack(database_url, valkey_url, env=settings)
    stack.start()
    model.script(ANSWERS)
    answered = ask(stack)
    assert (answered.status_code, answered.json()["message"]["content"]["text"]) == (200, "Twelve.")

    found = {}
    for name, reply in {
        "refuses the key": refused(401),
        "is asked too often": refused(429, **{"retry-after": "3600"}),
        "fails": refused(500),
        "says nothing": Reply(hang=True),
        "breaks off": BREAKS,
    }.items():
        model.script(reply)
        answer = ask(stack)
        problem = answer.json()
        found[name] = (answer.status_code, problem["code"], answer.headers.get("retry-after"))
        assert "4711" not in answer.text
        assert problem["instance"] == f"urn:uuid:{problem['job_id']}"
        assert httpx.get(f"{stack.url}/jobs/{problem['job_id']}", timeout=60).json()["status"] == "failed"

    assert found == {
        "refuses the key": (502, "auth", None),
        "is asked too often": (429, "rate_limited", "30"),
        "fails": (503, "transient", "2"),
        "says nothing": (504, "first_token_timeout", None),
        "breaks off": (503, "transient", "2"),
    }
