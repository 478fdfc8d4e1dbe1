"""A connection to a Redis-protocol broker that an event loop writes to itself.

A publishing thread has to win the interpreter's lock from the loop that has just called it, which takes longer than
the rest. A wake-up fits into the socket's buffer, so the loop can write it without waiting.

This module neither connects nor repairs: it gets a logged-in socket, and at the first irregularity (an error reply,
an end, silence) returns what was not confirmed.
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
    """A written item: `left` replies are missing, the last is due at `until`."""

    item: Written
    left: int
    until: float


class LoopConnection(Generic[Written]):
    """Writes commands with numeric replies, on one loop; only `abandon` may be called elsewhere."""

    def __init__(
        self,
        connected: socket.socket,
        loop: asyncio.AbstractEventLoop,
        *,
        taken: Callable[[Written], None],
        lost: Callable[[Sequence[Written]], None],
        silent_seconds: float,
    ) -> None:
        """Every written item returns once: to `taken`, or to `lost` when the connection ends.

        A lost item may have been carried out. `lost` is called once, even without items; `silent_seconds` without a
        reply end the connection.
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
        """Write commands (at least one) with all others of this turn of the loop; returns at once."""
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
        """Close the connection; idempotent."""
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
        """Close the connection from another thread, even if the loop has ended."""
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
        """Count a reply; False if it is no number, or was not expected."""
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
        """Close the connection to a silent server; if the loop itself was late, the reply has arrived."""
        self._timer = None
        self._read()
        if self._sent and self._sent[0].until <= self.loop.time():
            self.close()
        elif self._sent:
            self._watch()


def pushed(key: str, entry: bytes) -> bytes:
    """Return the RESP command that pushes an entry to the head of a list."""
    name = key.encode()
    return b"*3\r\n$5\r\nLPUSH\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n" % (len(name), name, len(entry), entry)
