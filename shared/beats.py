"""The beats of event loops, in memory shared with the process that watches them (`planq.deploy.local.guard`).

A regular expression holds the interpreter's lock from its first character to its last: nothing in the same process
can tell that its loop stands still, and no time-out of it fires. So each loop writes into a slot of a table that the
guard has made, and the guard reads. The slot of a worker also has the end of its lease: a process that is stopped
cannot end itself. Standard library only, and little of it: the guard stays small.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import signal
import struct
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import asyncio

GUARD_VARIABLE = "PLANQ_GUARD"
"""Names the descriptors that a guard hands down: that of the table, and one for stacks."""

STACK_SIGNAL = getattr(signal, "SIGRTMAX", signal.SIGUSR2)
"""Makes a watched process write the stacks of all its threads; nothing else uses it."""

boot_clock: Callable[[], float] = partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
"""Returns seconds since the machine was started; on Linux with those for which it slept."""

_SLOT = struct.Struct("=qqqqdq")
_BEATS = struct.Struct("=q")
_BEATS_AT = struct.calcsize("=qqq")
_FENCE = struct.Struct("=dq")
_FENCE_AT = struct.calcsize("=qqqq")
_SLOTS = 64
"""A worker, and at most 24 of its processes for suspects."""

TABLE_BYTES = _SLOTS * _SLOT.size

_EVERY_SECONDS = 1.0
_BEATS_IN_LIMIT = 10


class Slot(NamedTuple):
    """What one process says: which it is (`started` in clock ticks of its boot), how late a beat may be (0: not
    watched) and how many there were. Where its writes act (`is_acting`), it must be gone at `fence_at` on the boot
    clock.
    """

    number: int
    pid: int
    started: int
    limit_seconds: float
    beats: int
    fence_at: float = 0.0
    is_acting: bool = False


def slots(table: mmap.mmap) -> Iterator[Slot]:
    """Yield the slots that are taken."""
    for number in range(_SLOTS):
        pid, started, limit, beats, fence_at, is_acting = _SLOT.unpack_from(table, number * _SLOT.size)
        if pid:
            yield Slot(number, pid, started, limit / 1000, beats, fence_at, bool(is_acting))


def clear(table: mmap.mmap, number: int) -> None:
    _SLOT.pack_into(table, number * _SLOT.size, 0, 0, 0, 0, 0.0, 0)


def process_state(pid: int) -> tuple[str, int] | None:
    """Return a process's state (a letter, see proc_pid_stat(5)) and when it started; None where there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name before them may contain anything.
            fields = file.read().rpartition(b") ")[2].split()
        return fields[0].decode(), int(fields[19])
    except (OSError, IndexError, ValueError):
        return None


class Beats:
    """The table, in a watched process. Made before any thread begins; forks may use it."""

    def __init__(self, table: int, stacks: int) -> None:
        """`table` and `stacks` are descriptors; at `STACK_SIGNAL` the stacks go into the latter, whoever has the lock
        of the interpreter.
        """
        import faulthandler  # the guard needs none

        self._file = table
        self._table = mmap.mmap(table, TABLE_BYTES)
        faulthandler.register(STACK_SIGNAL, file=stacks, all_threads=True, chain=False)

    @classmethod
    def inherited(cls) -> Beats | None:
        """Return the table of the guard that has started this process, None where there is none.

        Call it once, first of all: no child of this process shall find it.
        """
        if (text := os.environ.pop(GUARD_VARIABLE, None)) is None:
            return None
        table, stacks = (int(number) for number in text.split(","))
        for descriptor in (table, stacks):
            os.set_inheritable(descriptor, False)
        return cls(table, stacks)

    def beat(self, limit_seconds: float) -> Beat:
        return Beat(self, limit_seconds)

    def take(self, limit_seconds: float) -> int:
        """Take a slot for this process and return its number; -1 where all are taken."""
        own = process_state(os.getpid())
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            taken = {slot.number for slot in slots(self._table) if self._is_alive(slot)}
            number = next((one for one in range(_SLOTS) if one not in taken), -1)
            if number >= 0:
                who = (os.getpid(), 0 if own is None else own[1])
                _SLOT.pack_into(self._table, number * _SLOT.size, *who, round(limit_seconds * 1000), 0, 0.0, 0)
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)
        return number

    def write(self, number: int, beats: int) -> None:
        _BEATS.pack_into(self._table, number * _SLOT.size + _BEATS_AT, beats)

    def fence(self, number: int, at: float, is_acting: bool) -> None:
        _FENCE.pack_into(self._table, number * _SLOT.size + _FENCE_AT, at, is_acting)

    def give_back(self, number: int) -> None:
        clear(self._table, number)

    def _is_alive(self, slot: Slot) -> bool:
        found = process_state(slot.pid)
        return found is not None and found[1] == slot.started


class Beat:
    """The beat of one loop."""

    def __init__(self, beats: Beats, limit_seconds: float) -> None:
        self._beats = beats
        self._limit = limit_seconds
        self._every = min(_EVERY_SECONDS, limit_seconds / _BEATS_IN_LIMIT)
        self._slot = -1
        self._count = 0
        self._fence = 0.0, False
        self._timer: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Beat from now on; call it on the loop. With a limit of 0 only the fence is watched."""
        if self._slot < 0:
            self._slot = self._beats.take(self._limit)
            if self._slot >= 0:
                self._beats.fence(self._slot, *self._fence)
                if self._limit > 0:
                    self._next(loop)

    def fence(self, at: float, is_acting: bool) -> None:
        """Have this process killed at `at` on the boot clock, if writes of it act then; from any thread."""
        self._fence = at, is_acting
        if (number := self._slot) >= 0:
            self._beats.fence(number, at, is_acting)

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        self._count += 1
        self._beats.write(self._slot, self._count)
        self._timer = loop.call_later(self._every, self._next, loop)

    def stop(self) -> None:
        """Beat no more, since the loop is about to end; idempotent, on the loop."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._slot >= 0:
            number, self._slot = self._slot, -1
            self._beats.give_back(number)
