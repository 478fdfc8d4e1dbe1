"""The beats of event loops, in memory shared with the process that watches them (`planq.deploy.local.guard`).

A regular expression holds the interpreter's lock from its first character to its last: nothing in the same process
can tell that its loop stands still, and no time-out of it fires. So the loop writes into memory that the guard has
made, and the guard reads it. That of a worker also has the end of its lease: a process that is stopped cannot end
itself. Standard library only, and little of it: the guard stays small.
"""

from __future__ import annotations

import mmap
import os
import signal
import struct
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import asyncio

GUARD_VARIABLE = "PLANQ_GUARD"
"""Names the descriptors that a guard hands down: that of the memory, and one for stacks."""

STACK_SIGNAL = getattr(signal, "SIGRTMAX", signal.SIGUSR2)
"""Makes a watched process write the stacks of all its threads; nothing else uses it."""

boot_clock: Callable[[], float] = partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
"""Returns seconds since the machine was started; on Linux with those for which it slept."""

_REPORT = struct.Struct("=qqdq")
_BEATS = struct.Struct("=q")
_BEATS_AT = struct.calcsize("=q")
_FENCE = struct.Struct("=dq")
_FENCE_AT = struct.calcsize("=qq")

REPORT_BYTES = _REPORT.size

_EVERY_SECONDS = 1.0
_BEATS_IN_LIMIT = 10


class Report(NamedTuple):
    """What a watched process says: how late a beat may be (0: not watched), and how many there were.

    Where its writes act (`is_acting`), it must be gone at `fence_at` on the boot clock.
    """

    limit_seconds: float
    beats: int
    fence_at: float = 0.0
    is_acting: bool = False


def read(memory: mmap.mmap) -> Report:
    """Return what a process has said last."""
    limit, beats, fence_at, is_acting = _REPORT.unpack_from(memory)
    return Report(limit / 1000, beats, fence_at, bool(is_acting))


def clear(memory: mmap.mmap) -> None:
    """Forget what a process has said: it is watched no more."""
    _REPORT.pack_into(memory, 0, 0, 0, 0.0, 0)


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
    """The memory, in a watched process. Made before any thread begins; one loop of the process beats."""

    def __init__(self, memory: int, stacks: int) -> None:
        """`memory` and `stacks` are descriptors; at `STACK_SIGNAL` the stacks go into the latter, whoever has the
        lock of the interpreter.
        """
        import faulthandler  # the guard needs none

        self._memory = mmap.mmap(memory, REPORT_BYTES)
        faulthandler.register(STACK_SIGNAL, file=stacks, all_threads=True, chain=False)

    @classmethod
    def inherited(cls) -> Beats | None:
        """Return the memory of the guard that has started this process, None where there is none.

        Call it once, first of all: no child of this process shall find it.
        """
        if (text := os.environ.pop(GUARD_VARIABLE, None)) is None:
            return None
        memory, stacks = (int(number) for number in text.split(","))
        for descriptor in (memory, stacks):
            os.set_inheritable(descriptor, False)
        return cls(memory, stacks)

    def beat(self, limit_seconds: float) -> Beat:
        return Beat(self, limit_seconds)

    def start(self, limit_seconds: float) -> None:
        """Be watched from now on."""
        _REPORT.pack_into(self._memory, 0, round(limit_seconds * 1000), 0, 0.0, 0)

    def write(self, beats: int) -> None:
        """Say that the loop goes on."""
        _BEATS.pack_into(self._memory, _BEATS_AT, beats)

    def fence(self, at: float, is_acting: bool) -> None:
        """Store when the process must be gone, and whether writes of it act."""
        _FENCE.pack_into(self._memory, _FENCE_AT, at, is_acting)

    def stop(self) -> None:
        """Be watched no more."""
        clear(self._memory)


class Beat:
    """The beat of one loop."""

    def __init__(self, beats: Beats, limit_seconds: float) -> None:
        self._beats = beats
        self._limit = limit_seconds
        self._every = min(_EVERY_SECONDS, limit_seconds / _BEATS_IN_LIMIT)
        self._is_watched = False
        self._count = 0
        self._fence = 0.0, False
        self._timer: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Beat from now on; call it on the loop. With a limit of 0 only the fence is watched."""
        if not self._is_watched:
            self._is_watched = True
            self._beats.start(self._limit)
            self._beats.fence(*self._fence)
            if self._limit > 0:
                self._next(loop)

    def fence(self, at: float, is_acting: bool) -> None:
        """Have this process killed at `at` on the boot clock, if writes of it act then; from any thread."""
        self._fence = at, is_acting
        if self._is_watched:
            self._beats.fence(at, is_acting)

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        self._count += 1
        self._beats.write(self._count)
        self._timer = loop.call_later(self._every, self._next, loop)

    def stop(self) -> None:
        """Beat no more, since the loop is about to end; idempotent, on the loop."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_watched:
            self._is_watched = False
            self._beats.stop()
