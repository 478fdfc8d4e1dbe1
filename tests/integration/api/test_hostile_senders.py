"""What comes from outside with a wrong value in any place is refused or means nothing: it is no fault of planq."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import httpx
import pytest
from standardwebhooks import Webhook

from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.agentic.turns.channel_kinds import ChannelKind
from planq.shared.kernel.states import Effect
from planq.shared.kernel.store.worker_registry import WorkerRegistry
from planq.shared.settings.settings import Settings
from planq.shared.subjects.channels.store import ChannelStore
from tests.integration.api.conftest import SECRET_KEY, Api
from tests.support.servers import TestPostgres
from tests.support.stored import documents
from tests.support.tiers import some
from tests.support.wrong_values import WRONG, spoilt, text_of

SECRET = "s3cret-token_of-the-webhook"

UPDATES: list[dict[str, Any]] = [
    {
        "update_id": 1,
        "message": {
            "message_id": 11,
            "message_thread_id": 3,
            "is_topic_message": True,
            "date": 1,
            "chat": {"id": -7, "type": "supergroup", "title": "x"},
            "from": {"id": 7, "is_bot": False, "first_name": "Ada", "last_name": "L"},
            "text": "@planq_bot hello",
            "entities": [
                {"type": "mention", "offset": 0, "length": 10},
                {"type": "text_mention", "offset": 0, "length": 1, "user": {"id": 42}},
            ],
            "reply_to_message": {"message_id": 3, "from": {"id": 42}},
            "photo": [{"file_id": "x", "file_size": 3}],
            "document": {"file_id": "x", "file_name": "n", "mime_type": "text/plain", "file_size": 3},
            "location": {"latitude": 1.5, "longitude": 2},
            "contact": {"first_name": "x", "phone_number": "1"},
        },
    },
    {"update_id": 2, "edited_message": {"chat": {"id": 7, "type": "private"}, "from": {"id": 7}, "caption": "x"}},
    {"update_id": 3, "message": {"chat": {"id": -7, "type": "group"}, "migrate_to_chat_id": -8}},
    {
        "update_id": 4,
        "callback_query": {
            "id": "cb",
            "from": {"id": 7},
            "data": f"q:{uuid4().hex}:0",
            "message": {"chat": {"id": 7}, "message_thread_id": 3, "is_topic_message": True},
        },
    },
]

MESSAGE: dict[str, Any] = {
    "thread": "t1",
    "source_message_id": "m1",
    "id": "m2",
    "from": {"type": "user", "external_id": "ada", "display_name": "Ada"},
    "to": {"type": "bot", "external_id": "b", "display_name": "B"},
    "content": {"type": "text", "text": "hello"},
    "agent": "nobody",
    "conversation_id": str(uuid4()),
    "timestamp": "2026-11-27T06:00:00Z",
    "metadata": {"agent": "x", "external_thread_id": "y", "more": {"a": [1]}},
}
ANSWER: dict[str, Any] = {
    "question_id": str(uuid4()),
    "action": "accept",
    "content": {"city": "Oslo"},
    "reason": "because",
    "from": {"external_id": "ada"},
}
CALL: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {
        "name": "quick",
        "arguments": {"query": "rust"},
        "_meta": {"dev.planq/idempotencyKey": "KEY", "progressToken": "p"},
    },
}
QUICK = ToolDefinition(
    name="quick",
    description="Nobody waits for it.",
    input_schema={"type": "object", "properties": {"query": {"type": "string"}}},
    effect=Effect.READ,
    timeout_seconds=0.05,
)
MCP = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}


@pytest.fixture(scope="module")
def api(postgres: TestPostgres, api_valkey: str) -> Iterator[Api]:
    """An application whose tenant has a bot and a channel of its own system."""
    url = postgres.create_migrated()
    api = Api(Settings(database_url=url, broker_url=api_valkey, secret_keys=SECRET_KEY, max_wait_seconds=0.01))
    api.start()
    api.jobs.configure(channels=["api", "webhook", "telegram"], channel_rate_limit=100_000, rate_limit=100_000)
    registry = lambda database: WorkerRegistry(database, timedelta(seconds=15))  # noqa: E731
    api.jobs.run(lambda database: registry(database).publish_tools(documents([QUICK])))
    digest = hashlib.sha256(SECRET.encode()).hexdigest()
    bot = {"bot_id": 42, "username": "planq_bot"}
    connect = lambda database: ChannelStore(database).connect(  # noqa: E731
        "default", "telegram", ChannelKind.TELEGRAM, bot, digest
    )
    api.jobs.run(connect)
    connect_webhook = lambda database: ChannelStore(database).connect(  # noqa: E731
        "default", "webhook", ChannelKind.WEBHOOK, {"url": "http://127.0.0.1:9/"}
    )
    api.jobs.run(connect_webhook)
    yield api
    api.stop()
    postgres.drop(url)


def faults(answers: Iterator[tuple[str, httpx.Response]]) -> list[str]:
    return [
        f"{place}: {answer.status_code} {answer.text[:200]}" for place, answer in answers if answer.is_server_error
    ]


@pytest.mark.parametrize("kind", some(WRONG, "NUL", "list of lists", "5000 levels"))
def test_updates_of_telegram_with_a_wrong_value_are_no_fault(api: Api, kind: str) -> None:
    headers = {"X-Telegram-Bot-Api-Secret-Token": SECRET, "content-type": "application/json"}

    def posted() -> Iterator[tuple[str, httpx.Response]]:
        for update in UPDATES:
            for place, changed in spoilt(update, WRONG[kind]):
                content = text_of(changed)
                yield place, api.http.post("/webhooks/telegram", content=content, headers=headers)

    assert faults(posted()) == []


@pytest.mark.parametrize("kind", some(WRONG, "NUL", "list of lists", "5000 levels"))
def test_posts_to_a_channel_with_a_wrong_value_are_no_fault(api: Api, kind: str) -> None:
    secret = Webhook(api.http.get("/webhook-secret/inbound").json()["secret"])

    def posted() -> Iterator[tuple[str, httpx.Response]]:
        for document in (MESSAGE, {**MESSAGE, "conversation_id": None}, ANSWER):
            for place, changed in spoilt(document, WRONG[kind]):
                body, id, now = text_of(changed), str(uuid4()), datetime.now(UTC)
                headers = {
                    "content-type": "application/json",
                    "webhook-id": id,
                    "webhook-timestamp": str(int(now.timestamp())),
                    "webhook-signature": secret.sign(id, now, body),
                }
                yield place, api.http.post("/webhooks/channels/default/webhook", content=body, headers=headers)

    assert faults(posted()) == []


@pytest.mark.parametrize("kind", some(WRONG, "NUL", "list of lists", "5000 levels"))
def test_messages_of_mcp_with_a_wrong_value_are_no_fault(api: Api, kind: str) -> None:
    def posted() -> Iterator[tuple[str, httpx.Response]]:
        for place, changed in spoilt(CALL, WRONG[kind]):
            answer = api.http.post("/mcp", content=text_of(changed), headers=MCP)
            assert "planq failed on this call" not in answer.text, (place, answer.text)
            yield place, answer

    assert faults(posted()) == []


USERS = ("a%00b", "%00", "%ed%a0%80", "%ff", "x" * 5_000, "%0a", "%F0%9F%98%80")


@pytest.mark.parametrize("user", some(USERS, "a%00b", "%ed%a0%80"))
def test_any_user_in_the_header_of_mcp_is_no_fault(api: Api, user: str) -> None:
    answer = api.http.post("/mcp", content=text_of(CALL), headers={**MCP, "X-User-External-Id": user})
    assert not answer.is_server_error, answer.text
    assert "unknown tool" not in answer.text
    assert "planq failed on this call" not in answer.text


HEADERS = ("Idempotency-Key", "traceparent", "Last-Event-ID", "Accept", "Range", "If-None-Match", "Authorization")


def _operations(api: Api) -> list[tuple[str, str, list[str]]]:
    described = api.http.get("/openapi.json").json()
    return [
        (method, path, [one["name"] for one in operation.get("parameters", []) if one["in"] == "query"])
        for path, operations in described["paths"].items()
        for method, operation in operations.items()
    ]


TEXTS = ("%00", "a%00b", "%ed%a0%80", "%ff", "%F0%9F%98%80", "9" * 400, "%2e%2e%2f")


@pytest.mark.parametrize("text", some(TEXTS, "a%00b"))
def test_any_text_in_an_address_is_no_fault(api: Api, text: str) -> None:
    def asked() -> Iterator[tuple[str, httpx.Response]]:
        for method, path, names in _operations(api):
            parts = [text if part.startswith("{") else part for part in path.split("/")]
            address = "/".join(parts)
            body = {"json": {}} if method in ("post", "put", "patch") else {}
            if parts != path.split("/"):
                yield f"{method} {address}", api.http.request(method, address, **body)
            known = path.replace("{", "").replace("}", "")
            for job in (known, "/".join("default" if part.startswith("{") else part for part in path.split("/"))):
                for name in names:
                    where = f"{job}?{name}={text}"
                    if name not in ("follow",) and not path.endswith("/events"):
                        yield f"{method} {where}", api.http.request(method, where, **body)

    assert faults(asked()) == []


FIELDS = ("a\x7fb", "\xff", "\xed\xa0\x80", "9" * 400, "%00", ",")


@pytest.mark.parametrize("text", some(FIELDS, "\xff", ","))
def test_any_text_in_a_header_is_no_fault(api: Api, text: str) -> None:
    def asked() -> Iterator[tuple[str, httpx.Response]]:
        for name in HEADERS:
            headers = [(name.encode(), text.encode("latin-1"))]
            job = {"plan": {"calls": [{"tool_name": "quick", "arguments": {"query": "x"}}]}}
            yield f"POST {name}", api.http.post("/jobs", json=job, headers=headers)
            if name != "Accept":
                yield f"GET {name}", api.http.get("/jobs", headers=headers)
            yield f"events {name}", api.http.get(f"/jobs/{uuid4()}/events?follow=false", headers=headers)
            yield f"artifact {name}", api.http.get("/artifacts/x", headers=headers)

    assert faults(asked()) == []
