"""Servers that are none, or broken: each call ends, bounded in bytes and time, with what was found.

One row for each kind of server, one column for each client, with streams and with whole replies.
"""

from __future__ import annotations

import asyncio
import gzip
import io
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import NamedTuple

import pytest

from planq.shared.agentic.models.exchange import ModelFailed
from planq.shared.agentic.models.names import Provider
from planq.worker.models.gateway import ModelGateway, TryLimits
from planq.worker.models.http_client import MAX_REPLY_BYTES
from planq.worker.models.settings import ModelSettings
from tests.integration.llm.calls import RESULTS, Waits, ask_for
from tests.integration.llm.dialects import DIALECTS, KEY, OPENAI_CHAT, Dialect
from tests.support.tiers import rare

MISTRAL = replace(OPENAI_CHAT, name="mistral", model="mistral:mistral-large-latest", provider=Provider.MISTRAL)
CLIENTS = [*DIALECTS, MISTRAL, MISTRAL.whole]

_IN_FLIGHT = 16 * 1024 * 1024
"""More than the buffers of both ends of a connection hold."""

_LIMIT_SECONDS = 60
"""Ends a test whose call would not end."""


class Line(NamedTuple):
    """A connection to a client: `send` counts what it sends, and `left` is done when the client has left."""

    send: Callable[[bytes], Awaitable[None]]
    left: asyncio.Task[bytes]
    elsewhere: str
    kind: str

    async def begin(self, kind: str | None = None, more: str = "", status: str = "200 OK") -> None:
        head = f"HTTP/1.1 {status}\r\nContent-Type: {kind or self.kind}\r\n{more}Connection: close\r\n\r\n"
        await self.send(head.encode())


async def page(line: Line) -> None:
    await line.begin("text/html; charset=utf-8")
    await line.send(f"<html><title>Log in</title><p class=x>Welcome to nginx, {KEY}".encode() + b"<b>!" * 100_000)


async def nothing(line: Line) -> None:
    """Close at once."""


async def half(line: Line) -> None:
    await line.begin()
    await line.send(b'data: {"id": "x')


async def drips(line: Line) -> None:
    await line.begin()
    while not line.left.done():
        await line.send(b" ")
        await asyncio.wait({line.left}, timeout=0.02)


async def endless(line: Line) -> None:
    await line.begin()
    for _ in range(1024):
        await line.send(bytes(1024 * 1024))


async def large_chunk(line: Line) -> None:
    await line.begin()
    await line.send(b'data: {"id": "' + b"x" * 10_000_000 + b'"}\n\n')


async def no_utf8(line: Line) -> None:
    await line.begin()
    await line.send(b'data: {"id": "\xff\xfe\xfa"}\n\n')


async def text(line: Line) -> None:
    await line.begin("text/plain")
    await line.send(b"model gateway: no backend is up")


async def picture(line: Line) -> None:
    await line.begin("image/png")
    await line.send(b"\x89PNG\r\n\x1a\n" + bytes(1_000))


async def bomb(line: Line) -> None:
    await line.begin(more="Content-Encoding: gzip\r\n")
    await line.send(BOMB)


async def redirect(line: Line) -> None:
    await line.begin(more=f"Location: {line.elsewhere}\r\n", status="307 Temporary Redirect")


def _bomb() -> bytes:
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1) as file:
        for _ in range(2 * MAX_REPLY_BYTES // 2**20):
            file.write(bytes(2**20))
    return packed.getvalue()


BOMB = _bomb()


class Row(NamedTuple):
    """What a server does, and the error of the call: its code, and one of these words."""

    serve: Callable[[Line], Awaitable[None]]
    code: str
    words: tuple[str, ...]
    seconds: float = 30.0
    sent: int = 1_000


PAGE = ("a web page in place of a reply; check its base URL: Log in Welcome to nginx, [API key]",)
TEXT = ("text/plain in place of a reply; check its base URL: model gateway: no backend is up",)
TOO_LONG = (f"at most {MAX_REPLY_BYTES} bytes, found a longer one",)
NO_FORM = ("cannot be read: ", "is not of the provider's form: ", "broke off: its stream ended")
ROWS = [
    Row(page, "unreadable_reply", PAGE, sent=500_000),
    Row(nothing, "transient", ("Server disconnected without sending a response",)),
    Row(half, "unreadable_reply", NO_FORM),
    Row(drips, "timeout", ("timed out after 0.3 seconds",), seconds=0.3),
    Row(endless, "invalid_output", TOO_LONG, sent=MAX_REPLY_BYTES + _IN_FLIGHT),
    Row(large_chunk, "unreadable_reply", NO_FORM, sent=10_001_000),
    Row(no_utf8, "unreadable_reply", NO_FORM),
    Row(text, "unreadable_reply", TEXT),
    Row(picture, "unreadable_reply", ("image/png in place of a reply",), sent=2_000),
    Row(bomb, "invalid_output", TOO_LONG, sent=len(BOMB) + 1_000),
    Row(redirect, "unreadable_reply", ("a redirect to http://127.0.0.1:1/v1, which is not followed",)),
]
CELLS = [
    (pytest.param if row.serve is page or client.name == OPENAI_CHAT.name else rare)(
        row, client, id=f"{row.serve.__name__}-{client!r}"
    )
    for row in ROWS
    for client in (CLIENTS if row.serve is page else DIALECTS)
]


async def ended(row: Row, client: Dialect) -> tuple[ModelFailed, int]:
    """Return how a call to such a server fails, and how many bytes the server could send."""
    sent = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def send(data: bytes) -> None:
            nonlocal sent
            sent += len(data)
            writer.write(data)
            await writer.drain()

        await reader.readuntil(b"\r\n\r\n")
        left = asyncio.create_task(reader.read())
        left.add_done_callback(lambda done: done.cancelled() or done.exception())
        kind = "text/event-stream" if client.stream else "application/json"
        try:
            await row.serve(Line(send, left, "http://127.0.0.1:1/v1", kind))
        except ConnectionError:
            pass  # the client has left
        finally:
            writer.close()
            left.cancel()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{client.base_path}"
    settings = ModelSettings(
        client.model,
        {client.provider: address},
        {client.provider: KEY},
        openai_api=client.api,
        stream=client.stream,
        max_attempts=1,
        request_timeout=row.seconds,
    )
    gateway = ModelGateway(settings, patience=TryLimits(settings, Waits(), lambda: 0.5))
    try:
        async with asyncio.timeout(_LIMIT_SECONDS):
            with pytest.raises(ModelFailed) as failed:
                await gateway.respond(ask_for(client), RESULTS)
    finally:
        await gateway.aclose()
        server.close()
    return failed.value, sent


@pytest.mark.parametrize(("row", "client"), CELLS)
def test_a_bad_server_ends_a_call_with_what_was_found(row: Row, client: Dialect) -> None:
    failed, sent = asyncio.run(ended(row, client))

    error = failed.error
    assert error.code == row.code, error.message
    assert any(words in error.message for words in row.words), error.message
    assert len(error.message) < 600
    assert KEY not in error.message
    assert error.message.isprintable()
    assert failed.call.attempts == 1
    assert sent <= row.sent
