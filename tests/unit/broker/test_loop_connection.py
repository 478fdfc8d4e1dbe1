"""The connection that a loop writes to by itself, against the other end of a pair of sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from planq.shared.broker.loop_connection import LoopConnection, pushed

LONG_SECONDS = 600.0


@dataclass
class Line:
    """Both ends of a connection, and what became of what was written."""

    ours: socket.socket
    theirs: socket.socket
    taken: list[str] = field(default_factory=list)
    lost: list[str] | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def open(self, silent_seconds: float = LONG_SECONDS) -> LoopConnection[str]:
        loop = asyncio.get_running_loop()
        return LoopConnection(self.ours, loop, taken=self._took, lost=self._lose, silent_seconds=silent_seconds)

    def _took(self, item: str) -> None:
        self.taken.append(item)
        self.changed.set()

    def _lose(self, items: Sequence[str]) -> None:
        assert self.lost is None
        self.lost = list(items)
        self.changed.set()

    async def change(self) -> None:
        await asyncio.wait_for(self.changed.wait(), 60)
        self.changed.clear()


@pytest.fixture
def line() -> Iterator[Line]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Line(ours, theirs)


def test_what_is_answered_was_taken_in_whatever_pieces_the_answers_come(line: Line) -> None:
    async def scenario() -> None:
        connection = line.open()
        connection.write("one", [pushed("planq.io", b"{}")])
        connection.write("two", [pushed("planq.io", b"ab"), pushed("planq.cpu", b"cd")])
        one, two = pushed("planq.io", b"{}"), pushed("planq.io", b"ab") + pushed("planq.cpu", b"cd")
        await asyncio.sleep(0)
        assert line.theirs.recv(4096) == one + two, "in one write"
        line.theirs.sendall(b":1\r\n:2\r")
        await line.change()
        assert line.taken == ["one"]
        line.theirs.sendall(b"\n:1\r\n")
        await line.change()
        assert (line.taken, line.lost) == (["one", "two"], None)
        connection.close()
        connection.close()
        assert line.lost == []

    asyncio.run(scenario())


@pytest.mark.parametrize("said", [b":1\r\n-OOM no memory\r\n", b":1\r\n>2\r\n", b":1\r\n:1\r\n:1\r\n", b":1\r\n"])
def test_whatever_is_out_of_the_ordinary_ends_it_and_gives_back_the_rest(line: Line, said: bytes) -> None:
    """An error reply, a push message, a reply too many, and the end of the connection."""

    async def scenario() -> None:
        connection = line.open()
        connection.write("one", [pushed("planq.io", b"{}")])
        connection.write("two", [pushed("planq.io", b"{}")])
        line.theirs.sendall(said)
        line.theirs.shutdown(socket.SHUT_WR)
        while line.lost is None:
            await line.change()

    asyncio.run(scenario())
    assert line.taken[:1] == ["one"]
    assert [*line.taken, *(line.lost or ())] == ["one", "two"]
    assert line.ours.fileno() == -1


def test_a_server_that_says_nothing_is_given_up(line: Line) -> None:
    async def scenario() -> None:
        line.open(silent_seconds=0.01).write("one", [pushed("planq.io", b"{}")])
        await line.change()

    asyncio.run(scenario())
    assert (line.taken, line.lost) == ([], ["one"])


def test_what_does_not_fit_into_the_buffer_is_given_back(line: Line) -> None:
    async def scenario() -> None:
        connection = line.open()
        connection.write("one", [pushed("planq.io", b"x" * 16_000_000)])
        await line.change()

    asyncio.run(scenario())
    assert line.lost == ["one"]


def test_it_can_be_given_up_from_elsewhere_also_after_its_loop(line: Line) -> None:
    async def opened() -> LoopConnection[str]:
        return line.open()

    async def abandoned() -> None:
        connection = line.open()
        await asyncio.to_thread(connection.abandon)
        await line.change()

    asyncio.run(abandoned())
    assert (line.lost, line.ours.fileno()) == ([], -1)
    line.ours, line.theirs = socket.socketpair()
    asyncio.run(opened()).abandon()
    assert line.ours.fileno() == -1
    line.theirs.close()
