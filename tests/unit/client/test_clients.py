"""The two clients: alike in all that they offer, and what each does with a wire."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from planq import AsyncClient, Client, JobFailed
from planq.shared.client import AsyncBatchHandle, AsyncJobHandle, BatchHandle, JobHandle
from planq.shared.client.requests import MAX_ATTACHED_BYTES
from planq.shared.platform.errors import InvalidRequest, Misconfigured, TooLarge, Unauthorized
from planq.shared.subjects.webhooks.rules import signed_headers, signing_secret
from tests.support.pictures import PNG, base64_of


def offered(kind: type) -> dict[str, str]:
    """Return the public methods of a class, each with its parameters and what it returns, as if it were blocking."""
    found = {
        name: one
        for name, one in vars(kind).items()
        if inspect.isfunction(inspect.unwrap(getattr(one, "__func__", one)))
    }
    shown = {name: str(inspect.signature(getattr(kind, name))) for name in found if not name.startswith("__")}
    return {name: re.sub(r"Async(?=[A-Z])|Awaitable", "", text) for name, text in shown.items()}


TWINS = [(Client, AsyncClient), (JobHandle, AsyncJobHandle), (BatchHandle, AsyncBatchHandle)]


@pytest.mark.parametrize(("blocking", "awaiting"), TWINS)
def test_both_clients_offer_the_same(blocking: type, awaiting: type) -> None:
    assert offered(blocking) == offered(awaiting)


def test_a_key_is_sent_and_a_failed_job_raises() -> None:
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        document = {"id": "1", "status": "failed", "steps": [], "error": {"code": "auth", "message": "no"}}
        return httpx.Response(202, json=document)

    with Client("http://planq/", "secret", transport=httpx.MockTransport(answer)) as client:
        job = client.submit("hi")
        with pytest.raises(JobFailed):
            job.result()

    async def beside() -> None:
        async with AsyncClient("http://planq/", "secret", transport=httpx.MockTransport(answer)) as client:
            job = await client.submit("hi")
            with pytest.raises(JobFailed):
                await job.result()

    asyncio.run(beside())
    assert {request.headers["authorization"] for request in asked} == {"Bearer secret"}
    assert [str(request.url) for request in asked] == ["http://planq/jobs", "http://planq/jobs/1"] * 2


class Sent(Exception):
    """Ends a call of the client after its first request."""


def bodies_of(send: Callable[[Client], object]) -> dict[str, Any]:
    """Return the body of the first request that a call of the client makes."""
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        raise Sent

    with Client("http://planq/", transport=httpx.MockTransport(answer)) as client, pytest.raises(Sent):
        send(client)
    body: dict[str, Any] = json.loads(asked[0].read())
    return body


def test_attachments_are_parts_of_jobs_messages_and_lines(tmp_path: Path) -> None:
    picture, notes = tmp_path / "dot.png", tmp_path / "notes.csv"
    picture.write_bytes(PNG)
    notes.write_bytes(b"a,b")
    by_id = {"type": "image", "artifact_id": "charts/1"}
    given = [picture, str(notes), "https://example.org/a.pdf?x=1", by_id]
    text = {"type": "text", "text": "What is it?"}
    parts = [
        {"type": "image", "data": base64_of(PNG), "filename": "dot.png", "media_type": "image/png"},
        {"type": "file", "data": base64_of(b"a,b"), "filename": "notes.csv", "media_type": "text/csv"},
        {"type": "file", "url": "https://example.org/a.pdf?x=1", "media_type": "application/pdf"},
        by_id,
    ]

    job = bodies_of(lambda client: client.submit("What is it?", attachments=given))
    alone = bodies_of(lambda client: client.submit(attachments=[picture], model="m"))
    said = bodies_of(lambda client: client.send_message("What is it?", attachments=given))
    plain = bodies_of(lambda client: client.send_message("Hello"))
    line = {"custom_id": "a", "body": {"input": "What is it?", "attachments": given, "model": "m"}}
    sent = bodies_of(lambda client: client.submit_batch([line]))

    assert job == {"input": [text, *parts]}
    assert alone == {"input": parts[:1], "model": "m"}
    assert said["content"] == [text, *parts]
    assert plain["content"] == {"type": "text", "text": "Hello"}
    assert sent == {"custom_id": "a", "body": {"input": [text, *parts], "model": "m"}}


def test_an_attachment_that_cannot_be_sent_is_refused_before_any_request(tmp_path: Path) -> None:
    large = tmp_path / "large.bin"
    with large.open("wb") as file:
        file.truncate(MAX_ATTACHED_BYTES + 1)
    with Client("http://planq/") as client:
        with pytest.raises(Misconfigured, match="cannot be read"):
            client.submit("x", attachments=[tmp_path / "nothing.png"])
        with pytest.raises(InvalidRequest, match="does not show what is there"):
            client.submit("x", attachments=["https://example.org/picture"])
        with pytest.raises(TooLarge, match="at most 67108864 bytes, found 67108865"):
            client.submit("x", attachments=[large])


class Breaking(httpx.SyncByteStream, httpx.AsyncByteStream):
    """The beginning of a body whose connection breaks off."""

    def __iter__(self) -> Iterator[bytes]:
        yield b'{"rows": [1, '
        raise httpx.ReadError("gone")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self:
            yield piece


def test_a_large_output_is_loaded_again_where_its_connection_breaks() -> None:
    reference = {"sha256": "", "bytes": 70_000, "href": "/prefix/jobs/1/steps/3/output"}
    document = {"id": "1", "status": "completed", "outcome": "succeeded", "steps": [{"index": 3}], "output": None}
    document |= {"answer": None, "preview": "[1, … [1 more]]", "output_ref": reference}
    came: list[httpx.Response] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/jobs/1":
            return httpx.Response(200, json=document)
        assert request.url.path == "/jobs/1/steps/3/output"
        came.append(httpx.Response(200, json={"rows": [1, 2]}) if came else httpx.Response(200, stream=Breaking()))
        return came[-1]

    with Client("http://planq/", transport=httpx.MockTransport(answer), pause=lambda _: None) as client:
        assert client.job("1").result() == {"rows": [1, 2]}
        with pytest.raises(TooLarge, match="max_bytes=69999 bytes; found 70000"):
            client.job("1").result(max_bytes=69_999)
    assert len(came) == 2
    came.clear()

    async def beside() -> None:
        async def pause(_: float) -> None:
            pass

        async with AsyncClient("http://planq/", transport=httpx.MockTransport(answer), pause=pause) as client:
            assert await (await client.job("1")).result() == {"rows": [1, 2]}

    asyncio.run(beside())
    assert len(came) == 2


def test_where_the_api_is_comes_from_the_environment_unless_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLANQ_URL", raising=False)
    assert Client().url == "http://127.0.0.1:8000"
    monkeypatch.setenv("PLANQ_URL", "http://planq:9/")
    assert (Client().url, Client("http://other").url) == ("http://planq:9", "http://other")


SECRET = signing_secret(b"k" * 32)
BODY = json.dumps({"type": "job.completed", "data": {"id": "1"}})


def signed(body: str = BODY, secret: str = SECRET, age: timedelta = timedelta()) -> dict[str, str]:
    headers = signed_headers("message", datetime.now(UTC) - age, body, [signing_secret(b"o" * 32), secret])
    return {name.title(): value for name, value in headers.items()}


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_webhook_is_what_was_signed(kind: Any) -> None:
    assert kind.webhook(BODY.encode(), signed(), SECRET)["type"] == "job.completed"


FORGED: dict[str, tuple[bytes, dict[str, str]]] = {
    "unsigned": (BODY.encode(), {}),
    "changed": (BODY.replace("completed", "failed").encode(), signed()),
    "of another secret": (BODY.encode(), signed(secret=signing_secret(b"x" * 32))),
    "old": (BODY.encode(), signed(age=timedelta(minutes=6))),
    "junk": (BODY.encode(), {**signed(), "Webhook-Signature": "v1,? junk ,"}),
    "no text": (b"\xff", signed()),
}


@pytest.mark.parametrize("name", FORGED)
def test_any_other_webhook_is_refused(name: str) -> None:
    body, headers = FORGED[name]
    with pytest.raises(Unauthorized, match="not genuine"):
        Client.webhook(body, headers, SECRET)
