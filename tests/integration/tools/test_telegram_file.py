"""`telegram_file` against a server that speaks the Bot API's wire: files, bounds, and a token that stands nowhere."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
from telegram import File

from planq.shared.agentic.schema.schemas import violations
from planq.shared.agentic.tools.contract import BytesArtifact, RichOutput, ToolContext
from planq.shared.platform.errors import (
    AuthFailed,
    ExecutionFailed,
    InvalidArguments,
    PolicyDenied,
    ToolFailed,
    Transient,
)
from planq.worker.egress import Egress
from planq.worker.tools import ToolServices
from planq.worker.tools.registry import load_registry
from tests.support.bot_api import TOKEN, BotServer, bot_server


class OneSecret:
    """The one secret of a tenant."""

    def __init__(self, token: str | None) -> None:
        self.token = token

    async def get(self, name: str) -> str | None:
        assert name == "telegram_token"
        return self.token

    def get_from_thread(self, name: str) -> str | None:
        raise NotImplementedError


@pytest.fixture
def server() -> Iterator[BotServer]:
    with bot_server() as server:
        yield server


def fetch(
    context: ToolContext,
    url: str,
    file_id: str,
    *,
    token: str | None = TOKEN,
    most: int = 2_000_000,
    **arguments: Any,
) -> Any:
    services = ToolServices(telegram_url=url, http_max_bytes=most)
    registry = load_registry(services=services, entry_point_group=None, modules=["planq.worker.tools.builtin"])
    tool = registry.find("telegram_file")
    assert tool is not None
    asks = dataclasses.replace(context, secrets=OneSecret(token))
    said = asyncio.run(tool.call({"file_id": file_id, **arguments}, asks))
    output, artifacts = (said.output, said.artifacts) if isinstance(said, RichOutput) else (said, [])
    assert violations(tool.definition.output_schema, output) == []
    assert TOKEN not in str(said)
    for kept in artifacts:
        assert isinstance(kept, BytesArtifact)
        assert kept.artifact_id == output["artifact_id"] == f"{asks.idempotency_key}/file"
        output = {**output, "kept": (kept.data, kept.media_type)}
    return output


def test_a_text_comes_as_text(context: ToolContext, server: BotServer) -> None:
    server.files = {"documents/file_1.txt": "Grüße".encode()}
    assert fetch(context, server.url, "documents/file_1.txt") == {
        "name": "file_1.txt",
        "media_type": "text/plain",
        "size": 7,
        "text": "Grüße",
        "truncated": False,
    }
    ((method, given),) = server.calls
    assert (method, given) == ("getFile", {"file_id": "documents/file_1.txt"})
    assert File.de_json(server._result(method, given), None).file_size == 7


@pytest.mark.parametrize(
    ("name", "kind"), [("photos/file_2.jpg", "image/jpeg"), ("voice/file_3.oga", "audio/ogg"), ("x/file_4", "")]
)
def test_what_is_no_text_is_kept_as_an_artifact_of_bytes(
    context: ToolContext, server: BotServer, name: str, kind: str
) -> None:
    server.files = {name: bytes(range(256))}
    found = fetch(context, server.url, name)
    assert (found["media_type"], found["size"], found["truncated"]) == (kind, 256, False)
    assert found["kept"] == (bytes(range(256)), kind or "application/octet-stream")
    assert "text" not in found


def test_a_text_is_cut_at_the_limit_and_anything_else_is_only_described(
    context: ToolContext, server: BotServer
) -> None:
    server.files = {"a.txt": b"x" * 500, "b.jpg": bytes(500)}
    text = fetch(context, server.url, "a.txt", most=300, max_bytes=400)
    assert (text["text"], text["truncated"]) == ("x" * 300, True)
    assert fetch(context, server.url, "b.jpg", most=1_000, max_bytes=400) == {
        "name": "b.jpg",
        "media_type": "image/jpeg",
        "size": 500,
        "truncated": True,
    }


@pytest.mark.parametrize(
    ("token", "file_id", "expected", "told"),
    [
        (TOKEN, "nothing", InvalidArguments, "wrong file_id"),
        ("43:AAGrevoked", "a.txt", AuthFailed, "refuses the token"),
        ("no/../token", "a.txt", AuthFailed, "is no token"),
        (None, "a.txt", AuthFailed, "keeps no secret"),
        (TOKEN, "../etc/passwd", ToolFailed, "found none"),
        (TOKEN, "/var/lib/file.jpg", ToolFailed, "found none"),
        (TOKEN, "https://elsewhere.example/x", ToolFailed, "found none"),
    ],
)
def test_what_cannot_be_fetched_is_told_without_the_token(
    context: ToolContext,
    server: BotServer,
    caplog: pytest.LogCaptureFixture,
    token: str | None,
    file_id: str,
    expected: type[ExecutionFailed],
    told: str,
) -> None:
    server.files = {
        "a.txt": b"x",
        "../etc/passwd": b"x",
        "/var/lib/file.jpg": b"x",
        "https://elsewhere.example/x": b"x",
    }
    with caplog.at_level(logging.DEBUG, "planq"), pytest.raises(expected) as caught:
        fetch(context, server.url, file_id, token=token)
    assert told in caught.value.message
    seen = "".join(traceback.format_exception(caught.value))
    logged = str([record.__dict__ for record in caplog.records if record.name.startswith("planq")])
    assert token is None or token not in seen + logged + caught.value.message


def test_nobody_listening_is_told_without_the_token(context: ToolContext) -> None:
    with bot_server() as server:
        url = server.url
    with pytest.raises(Transient) as caught:
        fetch(context, url, "a.txt")
    assert TOKEN not in "".join(traceback.format_exception(caught.value))


def test_only_the_host_of_the_bot_api_may_be_private(context: ToolContext, server: BotServer) -> None:
    """The host that the operator has named, and no other one."""

    async def elsewhere(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    services = ToolServices(telegram_url="https://api.telegram.org", egress=Egress(resolve=elsewhere))
    registry = load_registry(services=services, entry_point_group=None, modules=["planq.worker.tools.builtin"])
    tool = registry.find("telegram_file")
    assert tool is not None
    asks = dataclasses.replace(context, secrets=OneSecret(TOKEN))
    with pytest.raises(PolicyDenied):
        asyncio.run(tool.call({"file_id": "a.txt"}, asks))
