"""A worker's lease, and the fence: where it could not be renewed, writes stop before anybody may do the same.

The worker's own clock decides, within the lease's margin. At its beginning the calls are cancelled (the processes of
the `cpu` lane killed). Where one has not ended after half of it, because a thread of it runs or the event loop hangs,
the process ends. After three quarters the kernel kills the process (Linux), also one that stands still, in which no
thread of ours runs. A process without such calls lives on, and waits. A thread of its own sees that a lease is over:
the loop may hang, and the heartbeat thread with it.

The mark of the lease lies in anonymous shared memory, which child processes inherit; the clock is the same for all of
them, and counts the time for which the machine slept. Only the heartbeat thread moves the mark, after each heartbeat
and the comparison that follows it. The mark is the moment before a renewal was asked for, and the database counts
from a later one. So by this clock a lease is over before it is by the database's, by its margin at least.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import mmap
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta

from planq.shared.ports.jobs.sweep import Place

_log = logging.getLogger("planq.fence")

FENCED_EXIT = 76
"""Exit code of a process that ended because a write of it could not be stopped (EX_PROTOCOL of sysexits.h)."""

_LOOK_SECONDS = 0.1
_END_SHARE = 0.5
_KILL_SHARE = 0.75

_CLOCK_BOOTTIME = 7
_TIMER_ABSTIME = 1
_SIGEV_SIGNAL = 0


class Fence:
    """One for a worker, in the process whose end ends its calls; `note_change` and `is_acting` are for any thread."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._stop: Callable[[], None] = lambda: None
        self._busy = threading.Event()
        self._lock = threading.Lock()
        self._timer = _KillTimer.make()
        lease.on_renewal = self._arm

    def start(self, stop: Callable[[], None]) -> None:
        """Begin to watch. `stop` ends the calls, or begins to; it is called from a thread of its own, and again."""
        self._stop = stop
        threading.Thread(target=self._watch, name="planq-fence", daemon=True).start()

    def note_change(self, kind: str, place: Place, number: int) -> None:
        """Take note of a change of `InFlightWork` of this process."""
        if kind in ("acting", "still"):
            self.is_acting(kind == "acting")

    def is_acting(self, acting: bool) -> None:
        """Take note that calls of writes may act from now on, or that none does any more."""
        with self._lock:
            if acting:
                self._busy.set()
            else:
                self._busy.clear()
            self._set_timer()

    def _arm(self) -> None:
        with self._lock:
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.set(self._at(_KILL_SHARE) if self._busy.is_set() else None)

    def _at(self, share: float) -> float:
        return self._lease.ends_at + share * self._lease.margin_seconds

    def _watch(self) -> None:
        while True:
            self._busy.wait()
            left = self._lease.ends_at - self._lease.clock()
            if left < 0:
                self._close()
            else:
                # No longer sleep: the clock of a sleep stands still while the machine sleeps.
                time.sleep(min(left, _LOOK_SECONDS) + 0.001)

    def _close(self) -> None:
        """Stop what acts; end the process where that does not stop in time."""
        _log.warning("lease_over", extra={"margin_seconds": self._lease.margin_seconds})
        self._stop()
        while self._busy.is_set() and not self._lease.is_fresh:
            if self._lease.clock() > self._at(_END_SHARE):
                _log.critical("writes_not_stopped")
                os._exit(FENCED_EXIT)
            time.sleep(_LOOK_SECONDS / 10)


class _SigEvent(ctypes.Structure):
    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("pad", ctypes.c_char * 48),
    )


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


class _KillTimer:
    """A timer of the kernel that kills this process; its clock runs on while the machine sleeps (timer_create(2))."""

    def __init__(self, libc: ctypes.CDLL, timer: ctypes.c_void_p) -> None:
        self._libc = libc
        self._timer = timer
        self._spec = _TimerSpec()

    @classmethod
    def make(cls) -> _KillTimer | None:
        """Return a timer that is not set; None where the system has none."""
        if sys.platform != "linux":
            return None
        libc = ctypes.CDLL(None, use_errno=True)
        timer = ctypes.c_void_p()
        event = _SigEvent(None, signal.SIGKILL, _SIGEV_SIGNAL)
        try:
            made = libc.timer_create(_CLOCK_BOOTTIME, ctypes.byref(event), ctypes.byref(timer)) == 0
        except AttributeError:  # a C library without it: glibc before 2.34 keeps it elsewhere
            made = False
        if not made:
            _log.warning("no_kill_timer", extra={"errno": ctypes.get_errno()})
            return None
        return cls(libc, timer)

    def set(self, at: float | None) -> None:
        """Kill at this moment of the boot clock, at once where it is over; None for never."""
        # A value of zero would disarm.
        seconds, rest = (0, 0) if at is None else divmod(max(round(at * 1e9), 1), 1_000_000_000)
        self._spec.value.seconds, self._spec.value.nanoseconds = seconds, rest
        self._libc.timer_settime(self._timer, _TIMER_ABSTIME, ctypes.byref(self._spec), None)


_POLL_SECONDS = 0.2

_FORMAT = "d"

_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_clock() -> float:
    """Return seconds since the machine was started; where the system can tell (Linux), with those of its sleep."""
    return time.clock_gettime(_BOOT_CLOCK)


class Lease:
    """The worker's own view of its lease. Make it before any child is forked.

    `on_renewal` may be set once: it is called after each renewal, in the same thread.
    """

    def __init__(
        self, duration: timedelta, margin: timedelta = timedelta(0), clock: Callable[[], float] = boot_clock
    ) -> None:
        """The worker's own lease ends `margin` before the database's. `clock` is the same in all its processes."""
        self._seconds = (duration - margin).total_seconds()
        self.margin_seconds = margin.total_seconds()
        self.clock = clock
        self.on_renewal: Callable[[], None] = lambda: None
        self._mark = mmap.mmap(-1, struct.calcsize(_FORMAT))
        self.renewed(clock())

    def renewed(self, at: float) -> None:
        """Note a renewal that was asked for at `at` on the clock, its consequences drawn; from one thread only."""
        struct.pack_into(_FORMAT, self._mark, 0, at)
        self.on_renewal()

    @property
    def ends_at(self) -> float:
        """The moment, on the clock, from which on this worker must not act on its lease any more."""
        (at,) = struct.unpack_from(_FORMAT, self._mark, 0)
        return float(at) + self._seconds

    @property
    def is_fresh(self) -> bool:
        """False when others may soon take over, or have taken over, what this worker holds."""
        (at,) = struct.unpack_from(_FORMAT, self._mark, 0)  # asked for at each claim and conclusion
        return self.clock() < float(at) + self._seconds

    async def until_fresh(self) -> None:
        """Return at once while the lease is fresh, else when it has been renewed; cancel to give up."""
        while True:  # the mark is moved by another thread or process, which can set no event here
            if self.is_fresh:
                return
            await asyncio.sleep(_POLL_SECONDS)
