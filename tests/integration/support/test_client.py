"""The benchmarks' load client against a server of raw sockets: what it sends, and what it makes of the answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.bench.client import Client, run

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"

Speak = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """Hands every request it reads to `speak`; counts its connections."""

    def __init__(self, speak: Speak) -> None:
        self._speak = speak
        self.connections = 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                _, _, length = head.partition(b"Content-Length: ")
                await self._speak(head + await reader.readexactly(int(length.split()[0]) if length else 0), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def serving(speak: Speak) -> AsyncIterator[Server]:
    server = Server(speak)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = "http://127.0.0.1:{1}".format(*listener.sockets[0].getsockname()[:2])
    try:
        yield server
    finally:
        listener.close()


async def bounded(work: Coroutine[Any, Any, None]) -> None:
    async with asyncio.timeout(60):
        await work


async def answer_ok(_: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(OK)


def test_requests_arrive_as_http_and_answers_come_back_whole() -> None:
    seen: list[bytes] = []

    async def speak(request: bytes, writer: asyncio.StreamWriter) -> None:
        seen.append(request)
        for byte in b'HTTP/1.1 202 Accepted\r\ncontent-length: 8\r\nLocation: /jobs/1\r\n\r\n{"id":1}':
            writer.write(bytes([byte]))
            await asyncio.sleep(0)

    async def scenario() -> None:
        async with serving(speak) as server, Client(server.url, headers={"Authorization": "Bearer k"}) as client:
            posted = await client.post("/jobs", {"input": "é"}, headers={"Idempotency-Key": "a"})
            got = await client.get("/jobs/1?wait=5")
        assert (posted.status, posted.json(), got.status) == (202, {"id": 1}, 202)
        assert b"Location: /jobs/1" in posted.head
        assert server.connections == 1
        post, get = seen
        host = server.url.removeprefix("http://").encode()
        assert post == (
            b"POST /jobs HTTP/1.1\r\nHost: " + host + b"\r\nAuthorization: Bearer k\r\nContent-Type: application/json"
            b'\r\nContent-Length: 14\r\nIdempotency-Key: a\r\n\r\n{"input":"\xc3\xa9"}'
        )
        assert get.startswith(b"GET /jobs/1?wait=5 HTTP/1.1\r\nHost: " + host)

    run(bounded(scenario()))


def test_no_more_connections_than_allowed_and_each_waiting_request_gets_its_turn() -> None:
    async def scenario() -> None:
        async with serving(answer_ok) as server, Client(server.url, connections=3) as client:
            answers = await asyncio.gather(*(client.get(f"/{number}") for number in range(50)))
        assert [answer.status for answer in answers] == [200] * 50
        assert server.connections == 3

    run(bounded(scenario()))


def test_a_connection_that_the_server_closes_after_its_answer_is_replaced() -> None:
    async def speak(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        writer.close()

    async def scenario() -> None:
        async with serving(speak) as server, Client(server.url, connections=1) as client:
            assert [(await client.get("/")).body for _ in range(3)] == [b"{}"] * 3
        assert server.connections == 3

    run(bounded(scenario()))


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (b"", "before its answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", "before its answer"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "expected a Content-Length"),
    ],
)
def test_what_is_no_whole_answer_is_an_error(sent: bytes, told: str) -> None:
    async def speak(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        writer.close()

    async def scenario() -> None:
        async with serving(speak) as server, Client(server.url, connections=1) as client:
            for _ in range(2):  # the right to connect is not lost with a connection
                with pytest.raises(ConnectionError, match=told):
                    await client.get("/")

    run(bounded(scenario()))


def test_a_cancelled_request_leaves_its_place_to_the_next() -> None:
    asked = asyncio.Event()

    async def speak(request: bytes, writer: asyncio.StreamWriter) -> None:
        asked.set()
        if request.startswith(b"GET /now"):
            writer.write(OK)

    async def scenario() -> None:
        async with serving(speak) as server, Client(server.url, connections=1) as client:
            slow = asyncio.create_task(client.get("/never"))
            await asked.wait()
            behind, given_up = (asyncio.create_task(client.get("/now")) for _ in range(2))
            await asyncio.sleep(0)
            given_up.cancel()
            slow.cancel()
            assert (await behind).status == 200
            assert (await client.get("/now")).status == 200
            ends = await asyncio.gather(slow, given_up, return_exceptions=True)
            assert [type(end) for end in ends] == [asyncio.CancelledError] * 2

    run(bounded(scenario()))
