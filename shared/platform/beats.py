"""Heartbeats of event loops, in memory shared with the watching process (`planq.deploy.local.guard`).

A regular expression holds the interpreter's lock to its end, so nothing in the same process can notice a stuck loop.
A worker also writes the end of its lease: a stopped process cannot end itself. Standard library only, to stay small.
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
"""Descriptors passed by the guard: the memory, and one for stacks."""

STACK_SIGNAL = getattr(signal, "SIGRTMAX", signal.SIGUSR2)
"""Makes a watched process write all stacks; nothing else uses it."""

boot_clock: Callable[[], float] = partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
"""Returns seconds since boot; on Linux including suspended time."""

_REPORT = struct.Struct("=qqdq")
_BEATS = struct.Struct("=q")
_BEATS_AT = struct.calcsize("=q")
_FENCE = struct.Struct("=dq")
_FENCE_AT = struct.calcsize("=qq")

REPORT_BYTES = _REPORT.size

_EVERY_SECONDS = 1.0
_BEATS_IN_LIMIT = 10


class Report(NamedTuple):
    """The maximum delay of a beat (0: not watched) and the number of beats.

    If its writes act (`is_acting`), the process must end by `fence_at` on the boot clock.
    """

    limit_seconds: float
    beats: int
    fence_at: float = 0.0
    is_acting: bool = False


def read(memory: mmap.mmap) -> Report:
    """Return a process's last report."""
    limit, beats, fence_at, is_acting = _REPORT.unpack_from(memory)
    return Report(limit / 1000, beats, fence_at, bool(is_acting))


def clear(memory: mmap.mmap) -> None:
    """Clear a process's report: it is no longer watched."""
    _REPORT.pack_into(memory, 0, 0, 0, 0.0, 0)


def process_state(pid: int) -> tuple[str, int] | None:
    """Return a process's state (see proc_pid_stat(5)) and start time; None without one."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name before them may contain anything.
            fields = file.read().rpartition(b") ")[2].split()
        return fields[0].decode(), int(fields[19])
    except (OSError, IndexError, ValueError):
        return None


class Beats:
    """The memory in a watched process, made before any thread; one loop beats."""

    def __init__(self, memory: int, stacks: int) -> None:
        """`memory` and `stacks` are descriptors; `STACK_SIGNAL` writes stacks even if the lock is held."""
        import faulthandler  # the guard needs none

        self._memory = mmap.mmap(memory, REPORT_BYTES)
        faulthandler.register(STACK_SIGNAL, file=stacks, all_threads=True, chain=False)

    @classmethod
    def inherited(cls) -> Beats | None:
        """Return the starting guard's memory, or None; call it first, so that no child finds it."""
        if (text := os.environ.pop(GUARD_VARIABLE, None)) is None:
            return None
        memory, stacks = (int(number) for number in text.split(","))
        for descriptor in (memory, stacks):
            os.set_inheritable(descriptor, False)
        return cls(memory, stacks)

    def beat(self, limit_seconds: float) -> Beat:
        return Beat(self, limit_seconds)

    def start(self, limit_seconds: float) -> None:
        """Begin to be watched."""
        _REPORT.pack_into(self._memory, 0, round(limit_seconds * 1000), 0, 0.0, 0)

    def write(self, beats: int) -> None:
        """Write a beat."""
        _BEATS.pack_into(self._memory, _BEATS_AT, beats)

    def fence(self, at: float, is_acting: bool) -> None:
        """Store when the process must end, and whether its writes act."""
        _FENCE.pack_into(self._memory, _FENCE_AT, at, is_acting)

    def stop(self) -> None:
        """Stop being watched."""
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
        """Begin to beat, on the loop. With a limit of 0 only the fence is watched."""
        if not self._is_watched:
            self._is_watched = True
            self._beats.start(self._limit)
            self._beats.fence(*self._fence)
            if self._limit > 0:
                self._next(loop)

    def fence(self, at: float, is_acting: bool) -> None:
        """Have this process killed at `at` (boot clock) if its writes act then; thread-safe."""
        self._fence = at, is_acting
        if self._is_watched:
            self._beats.fence(at, is_acting)

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        self._count += 1
        self._beats.write(self._count)
        self._timer = loop.call_later(self._every, self._next, loop)

    def stop(self) -> None:
        """Stop beating before the loop ends; idempotent, on the loop."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_watched:
            self._is_watched = False
            self._beats.stop()
