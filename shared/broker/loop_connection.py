"""A connection to a broker of the Redis protocol that an event loop writes to by itself.

A thread that publishes has to win the interpreter's lock from the loop that has just asked it to, which takes longer
than all the rest. The command of a wake-up fits into the buffer of a socket: so the loop can write it without ever
waiting, and hears of the reply as of everything else.

This connects nothing and repairs nothing. It gets a socket on which somebody has logged in, and gives back what was
not taken as soon as anything is out of the ordinary: an error reply, an end, a server that is silent.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Written = TypeVar("Written")

_READ_BYTES = 65_536


@dataclass(slots=True)
class _PendingReply(Generic[Written]):
    """What was written and is not answered: `left` replies are to come, the last one by `until`."""

    item: Written
    left: int
    until: float


class LoopConnection(Generic[Written]):
    """Writes commands whose reply is a number, on one loop; call all but `abandon` there."""

    def __init__(
        self,
        connected: socket.socket,
        loop: asyncio.AbstractEventLoop,
        *,
        taken: Callable[[Written], None],
        lost: Callable[[Sequence[Written]], None],
        silent_seconds: float,
    ) -> None:
        """Every item that is written comes back once: to `taken`, or, when the connection is given up, to `lost`.

        What is lost may have been carried out all the same. `lost` is called once, also when nothing was under way;
        no reply for so many seconds is a loss.
        """
        self.loop = loop
        self._socket = connected
        self._taken, self._lost = taken, lost
        self._silent_seconds = silent_seconds
        self._sent: deque[_PendingReply[Written]] = deque()
        self._unwritten: list[bytes] = []
        self._rest = b""
        self._timer: asyncio.TimerHandle | None = None
        self._is_open = True
        connected.setblocking(False)
        loop.add_reader(connected.fileno(), self._read)

    def write(self, item: Written, commands: Sequence[bytes]) -> None:
        """Write commands, at least one, together with all others of this turn of the loop; returns at once."""
        self._sent.append(_PendingReply(item, len(commands), self.loop.time() + self._silent_seconds))
        if not self._unwritten:
            self.loop.call_soon(self._flush)
        self._unwritten += commands

    def _flush(self) -> None:
        if not self._is_open:
            return
        data = b"".join(self._unwritten)
        self._unwritten.clear()
        try:
            written = self._socket.send(data)
        except OSError:
            written = 0
        if written < len(data):  # half a command is none, and a full buffer is a server that does not read
            self.close()
        elif self._timer is None and self._sent:
            self._watch()

    def close(self) -> None:
        """Give the connection up; idempotent."""
        if not self._is_open:
            return
        self._is_open = False
        self.loop.remove_reader(self._socket.fileno())
        self._socket.close()
        if self._timer is not None:
            self._timer.cancel()
        items = [sent.item for sent in self._sent]
        self._sent.clear()
        self._lost(items)

    def abandon(self) -> None:
        """Give the connection up from another thread, also where the loop has ended."""
        try:
            self.loop.call_soon_threadsafe(self.close)
        except RuntimeError:
            with contextlib.suppress(OSError):
                self._socket.close()

    def _read(self) -> None:
        if not self._is_open:
            return
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *replies, self._rest = (self._rest + data).split(b"\r\n")
        if not data or not all(map(self._note, replies)):
            self.close()

    def _note(self, reply: bytes) -> bool:
        """Take note of a reply; False where it is no number, or nobody has asked for it."""
        if not reply.startswith(b":") or not self._sent:
            return False
        oldest = self._sent[0]
        oldest.left -= 1
        if not oldest.left:
            self._sent.popleft()
            self._taken(oldest.item)
        return True

    def _watch(self) -> None:
        self._timer = self.loop.call_at(self._sent[0].until, self._look)

    def _look(self) -> None:
        """Give a silent server up; where the loop itself was late, the reply is there."""
        self._timer = None
        self._read()
        if self._sent and self._sent[0].until <= self.loop.time():
            self.close()
        elif self._sent:
            self._watch()


def pushed(key: str, entry: bytes) -> bytes:
    """Return the command that puts an entry at the head of a list, as it goes over the wire (RESP)."""
    name = key.encode()
    return b"*3\r\n$5\r\nLPUSH\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n" % (len(name), name, len(entry), entry)
