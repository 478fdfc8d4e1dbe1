"""When a worker's lease could not be renewed, its writes stop before anybody may do the same.

In this order, by the worker's own clock, within the lease's margin: at its beginning the calls are cancelled (the
processes of the `cpu` lane killed); where one has not ended after half of it, because a thread of it runs or the
event loop hangs, the process ends; and after three quarters the kernel kills it (Linux), also one that stands still,
in which no thread of ours runs. A process without such calls lives on, and waits.

That a lease is over, a thread of its own sees: the loop may hang, and the companion thread with it.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

from shared.ports import Place
from worker.engine.lease import Lease

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
    """One for a worker, in the process whose end ends its calls; `hear` and `is_acting` are for any thread."""

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

    def hear(self, kind: str, place: Place, number: int) -> None:
        """Take note of a change of `Claims` of this process."""
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
