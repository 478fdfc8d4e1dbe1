"""What a client can take of an API process before anything of its request is looked at."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import monotonic
from typing import Any

import psutil
import pytest
import uvicorn

from planq.api.http.protocol import BoundedProtocol, Bounds
from tests.integration.api.test_process import stack_api
from tests.support.stack import Stack
from tests.support.waiting import eventually

__all__ = ["stack_api"]

LONG = Bounds(head_seconds=600, body_seconds=600)
Serve = Callable[[Bounds], "Served"]


class Served:
    """A server in a thread; its application reads the whole body and tells how long it is."""

    def __init__(self, bounds: Bounds) -> None:
        self.asked: list[str] = []
        self.left: list[str] = []
        self.held = threading.Event()
        http: Any = partial(BoundedProtocol, bounds=bounds)
        self._server = uvicorn.Server(
            uvicorn.Config(
                self._app,
                http=http,
                interface="asgi3",
                loop="uvloop",
                lifespan="off",
                log_config=None,
                proxy_headers=False,
                ws="none",
            )
        )
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._server.run, args=([self._listener],))
        self._thread.start()

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked.append(scope["path"])
        size, more = 0, scope["path"] != "/early"
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.left.append(scope["path"])
                return
            size, more = size + len(message.get("body", b"")), message.get("more_body", False)
        body = str(size).encode()
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]}
        )
        await send({"type": "http.response.body", "body": body})

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(60)
        self._listener.close()


@pytest.fixture
def serve() -> Iterator[Serve]:
    running: list[Served] = []

    def started(bounds: Bounds) -> Served:
        running.append(Served(bounds))
        return running[-1]

    yield started
    for server in running:
        server.stop()


def answers(client: socket.socket) -> bytes:
    """Return all that comes until the server closes."""
    told = b""
    try:
        while piece := client.recv(65_536):
            told += piece
    except ConnectionResetError:
        pass
    return told


def problem_of(answer: bytes) -> dict[str, Any]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"application/problem+json" in head
    assert b"connection: close" in head
    told: dict[str, Any] = json.loads(body)
    assert head.startswith(b"HTTP/1.1 %d " % told["status"])
    return told


def send(client: socket.socket, *pieces: bytes) -> None:
    """Send as much as the server takes."""
    try:
        for piece in pieces:
            client.sendall(piece)
    except (ConnectionResetError, BrokenPipeError):
        pass


BEGUN = b"GET /begun HTTP/1.1\r\nhost: x\r\n"
CHUNKED = b"POST /posted HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
POSTED = b"POST /posted HTTP/1.1\r\nhost: x\r\n"
FLOODS = {
    "one field": (BEGUN + b"x: ", [b"y" * 10_000] * 100),
    "one name": (BEGUN, [b"y" * 10_000] * 100),
    "many fields": (BEGUN, [b"".join(b"x%d: y\r\n" % n for n in range(1_000))] * 100),
    "one piece": (BEGUN, [b"x: " + b"y" * 100_000 + b"\r\n\r\n"]),
    "request line": (b"GET /", [b"y" * 10_000] * 100),
    "trailers": (
        CHUNKED + b"1\r\nx\r\n0\r\n",
        [b"x: " + b"y" * 10_000 + b"\r\n"] * 100,
    ),
    "one trailer": (CHUNKED + b"0\r\nx: ", [b"y" * 10_000] * 100),
    "extensions": (CHUNKED + b"1;", [b"y" * 10_000] * 100),
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS.keys())
def test_a_head_has_an_end_in_bytes(serve: Serve, flood: tuple[bytes, list[bytes]]) -> None:
    server = serve(LONG)
    with server.connect() as client:
        send(client, flood[0], *flood[1])
        told = problem_of(answers(client))

    assert (told["status"], told["code"]) == (431, "header_too_large")
    assert "65536 bytes" in told["detail"]
    assert "/begun" not in server.asked


def test_a_head_of_the_usual_size_passes_in_pieces_of_any_size(serve: Serve) -> None:
    server = serve(LONG)
    fields = b"".join(b"x-%d: %s\r\n" % (n, b"y" * 1_000) for n in range(60))
    head = POSTED + fields + b"content-length: 3\r\nconnection: close\r\n\r\n"
    with server.connect() as client:
        for start in range(0, len(head), 1_000):
            client.sendall(head[start : start + 1_000])
        client.sendall(b"abc")
        assert answers(client).endswith(b"\r\n\r\n3")


def test_many_small_requests_in_one_piece_are_all_answered(serve: Serve) -> None:
    server = serve(LONG)
    one = POSTED + b"content-length: 2\r\n\r\nab"
    last = POSTED + b"content-length: 2\r\nconnection: close\r\n\r\nab"
    with server.connect() as client:
        client.sendall(one * 3_000 + last)
        assert answers(client).count(b"HTTP/1.1 200 OK") == 3_001


def test_a_body_in_chunks_of_one_byte_passes(serve: Serve) -> None:
    server = serve(LONG)
    with server.connect() as client:
        client.sendall(POSTED + b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n")
        client.sendall(b"1\r\nx\r\n" * 50_000 + b"0\r\n\r\n")
        assert answers(client).endswith(b"\r\n\r\n50000")


@pytest.mark.parametrize("sent", [b"", b"\r\n"], ids=["nothing", "an empty line"])
def test_who_is_silent_is_closed(serve: Serve, sent: bytes) -> None:
    server = serve(Bounds(head_seconds=0.2))

    def silent(_: int) -> bytes:
        with server.connect() as client:
            send(client, sent)
            return answers(client)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(silent, range(8))) == [b""] * 8


def test_each_request_of_a_connection_has_an_end(serve: Serve) -> None:
    server = serve(Bounds(head_seconds=0.2))
    with server.connect() as client:
        client.sendall(POSTED + b"content-length: 1\r\n\r\naGET")
        told = answers(client)

    first, _, second = told.partition(b"\r\n\r\n1")
    assert first.startswith(b"HTTP/1.1 200 OK")
    assert problem_of(second)["status"] == 408


def test_a_head_and_a_body_have_an_end_in_seconds(serve: Serve) -> None:
    server = serve(Bounds(head_seconds=0.2, body_seconds=0.2))
    with server.connect() as client:
        client.sendall(BEGUN)
        head = problem_of(answers(client))
    with server.connect() as client:
        client.sendall(POSTED + b"content-length: 10\r\n\r\nabc")
        body = problem_of(answers(client))

    assert (head["status"], head["code"]) == (408, "request_timeout")
    assert "header fields within 0.2 s" in head["detail"]
    assert (body["status"], body["code"]) == (408, "request_timeout")
    eventually(lambda: server.left == ["/posted"], what="the application is told that its client has gone")


def test_a_body_that_goes_on_coming_has_more_time(serve: Serve) -> None:
    server = serve(Bounds(body_seconds=0.2, body_bytes=1_000))
    begun = monotonic()
    with server.connect() as client:
        client.sendall(POSTED + b"content-length: 9000\r\n\r\n" + b"x" * 1_000)
        body = problem_of(answers(client))

    # It ends with the second stretch, in which nothing came; timers may fire some milliseconds early.
    assert monotonic() - begun > 0.3
    assert (body["status"], body["code"]) == (408, "request_timeout")


def test_who_was_answered_early_and_goes_on_sending_is_closed(serve: Serve) -> None:
    server = serve(Bounds(body_seconds=0.2))
    with server.connect() as client:
        client.sendall(b"POST /early HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\nabc")
        told = answers(client)

    assert told.count(b"HTTP/1.1") == 1
    assert told.startswith(b"HTTP/1.1 200 OK")


def test_connections_are_counted(serve: Serve) -> None:
    server = serve(Bounds(connections=3))
    kept = [server.connect() for _ in range(3)]
    for client in kept:
        client.sendall(BEGUN + b"\r\n")
        assert client.recv(1_000).startswith(b"HTTP/1.1 200 OK")
    with server.connect() as client:
        told = problem_of(answers(client))
    kept.pop().close()

    assert (told["status"], told["code"]) == (503, "too_many_connections")

    def is_served() -> bool:
        with server.connect() as client:
            send(client, BEGUN + b"connection: close\r\n\r\n")
            return answers(client).startswith(b"HTTP/1.1 200 OK")

    eventually(is_served, what="there is room again")
    for client in kept:
        client.close()


def test_what_cannot_be_read_is_a_problem_too(serve: Serve) -> None:
    server = serve(LONG)
    with server.connect() as client:
        client.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        told = problem_of(answers(client))

    assert (told["status"], told["code"]) == (400, "malformed_request")


def test_a_process_keeps_nothing_of_a_flood(stack_api: Stack) -> None:
    process = psutil.Process(stack_api.processes["api"].pid)
    address = stack_api.url.removeprefix("http://").split(":")

    def flood(_: int) -> bytes:
        with socket.create_connection((address[0], int(address[1])), timeout=60) as client:
            send(client, BEGUN, *([b"x: " + b"y" * 65_000 + b"\r\n"] * 500))
            return answers(client)

    flood(0)
    before = process.memory_info().rss
    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(flood, range(32)))

    assert all(b" 431 " in one.partition(b"\r\n")[0] for one in told if one)
    assert process.memory_info().rss - before < 24 * 1024 * 1024, "a gigabyte was sent"
