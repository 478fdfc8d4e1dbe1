"""`python -m planq.deploy.local.guard io -m planq.worker io`: starts a process, watches its loop, restarts it.

The parent of every worker and API, whatever starts them: nothing inside a process whose interpreter is blocked can
watch it, and in a container without an init no signal from inside can kill process 1.

A beat is late only while the process could have beaten: not while it is stopped or frozen, while this process stood
still with it, or while its threads wait for a processor, unless it computed for long without a beat. If one is later
than its limit, the stacks of all threads are logged, and the process is killed with all its children.

It also kills a worker whose lease is over while it calls a write (`planq.worker.engine.lease`). Otherwise it passes
signals on, and ends as its child ends. Linux only; standard library only.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import signal
import sys
from datetime import UTC, datetime
from time import monotonic, sleep

from planq.shared.platform import beats, launcher
from planq.shared.platform.beats import Report

_LONGEST_TICK_SECONDS = 1.0
_TICKS_IN_LIMIT = 10

_COMPUTED_SHARE = 0.1
"""Share of the limit: a thread that computed this long without a beat does not just wait for a processor. No healthy
turn of a loop takes a tenth of the limit."""

_STACK_SECONDS = 3.0
_QUIET_SECONDS = 0.3
"""Nothing says that a stack has ended; the handler writes it in one go."""

_STACK_BYTES = 200_000

_WAIT_SECONDS = 0.01

_STOPPED_SECONDS = 0.05
"""Time for SIGSTOP to take effect."""

_HANDED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)


def main() -> int:
    """Run the command until it ends by itself; returns its exit code, 128 and the signal where one has ended it."""
    return LoopGuard(sys.argv[1], sys.argv[2:]).run()


class _Times:
    def __init__(self, pid: int) -> None:
        """Without a process of this number, or where the kernel does not count: of no thread."""
        self.computed: dict[int, float] = {}
        self.waited: dict[int, float] = {}
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/task"):
                with (
                    contextlib.suppress(OSError, ValueError),
                    open(f"/proc/{pid}/task/{name}/schedstat", "rb") as file,
                ):
                    computed, waited, _ = file.read().split()
                    self.computed[int(name)] = int(computed) / 1e9
                    self.waited[int(name)] = int(waited) / 1e9

    def longest_wait_since(self, before: _Times) -> float:
        return max((at - before.waited.get(thread, at) for thread, at in self.waited.items()), default=0.0)


def credited(gap: float, tick: float, waited: float) -> float:
    """Return the seconds between two looks that count: not those in which this process stood still, too."""
    return min(gap, 2 * tick + waited)


def _own_wait() -> float:
    return _Times(os.getpid()).waited.get(os.getpid(), 0.0)


class WatchedLoop:
    """The loop of a process: for how long it has owed a beat."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._beats = -1
        self._first = self._last = _Times(0)
        self._looks = 0
        self._runnable_seconds = 0.0
        self.late_seconds = 0.0

    def look(self, report: Report, seconds: float) -> float:
        """Count `seconds`, and return how late the beat is, as a share of its limit."""
        if report.beats != self._beats:
            self._beats, self._looks, self.late_seconds, self._runnable_seconds = report.beats, 0, 0.0, 0.0
            return 0.0
        self._looks += 1
        if self._looks < 2:
            return 0.0
        times = _Times(self.pid)
        state = beats.process_state(self.pid)
        if self._looks == 2:
            self._first = times
            self._runnable_seconds = self.late_seconds = seconds
        elif state is not None and state[0] not in "Tt":
            self.late_seconds += seconds
            self._runnable_seconds += max(0.0, seconds - times.longest_wait_since(self._last))
        self._last = times
        share = self.late_seconds / report.limit_seconds
        has_computed = sum(self._since().values()) / report.limit_seconds / _COMPUTED_SHARE
        return max(self._runnable_seconds / report.limit_seconds, min(share, has_computed))

    def _since(self) -> dict[int, float]:
        return {thread: at - self._first.computed.get(thread, 0.0) for thread, at in self._last.computed.items()}


class LoopGuard:
    """Starts one command and looks after it. The main thread of a process that does nothing else."""

    def __init__(self, kind: str, command: list[str]) -> None:
        """`kind` is `io`, `cpu` or `api`, for the log; `command` are the arguments of a Python interpreter."""
        self._kind = kind
        self._command = command
        self._file = os.memfd_create("planq-beats")
        os.ftruncate(self._file, beats.REPORT_BYTES)
        self._memory = mmap.mmap(self._file, beats.REPORT_BYTES)
        self._stacks, self._stacks_end = os.pipe()
        os.set_blocking(self._stacks, False)
        self._tick = _LONGEST_TICK_SECONDS
        self._child = 0
        self._watched = WatchedLoop(0)
        self._code: int | None = None
        self._is_ending = False

    def run(self) -> int:
        """Start the command, and again after each freeze; returns its exit code once it has ended otherwise."""
        # Not sigtimedwait(): after an interruption that lasted longer than its time Python 3.11 makes up a signal.
        reader, writer = os.pipe()
        for descriptor in (reader, writer):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (*_HANDED_ON, signal.SIGCHLD, signal.SIGTSTP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # `nohup` keeps its meaning
                signal.signal(number, lambda *_: None)
        self._start()
        looked, waited = monotonic(), _own_wait()
        while self._code is None:
            if select.select([reader], [], [], self._fence())[0]:
                for heard in os.read(reader, 64):
                    self._hear(signal.Signals(heard))
            gap = monotonic() - looked
            if gap >= self._tick / 2:
                before, waited = waited, _own_wait()
                looked += gap
                self._look(credited(gap, self._tick, waited - before))
        return self._code

    def _start(self) -> None:
        command = [sys.executable, "-I", "-S", launcher.__file__]
        command += ["--parent", str(os.getpid()), "--signal", str(int(signal.SIGKILL)), "--"]
        env = {beats.GUARD_VARIABLE: f"{self._file},{self._stacks_end}"}
        keep = (self._file, self._stacks_end)
        beats.clear(self._memory)  # of the child before
        self._child = _fork_and_exec([*command, *launcher.PYTHON, *self._command], env=env, keep=keep)
        self._watched = WatchedLoop(self._child)

    def _hear(self, number: signal.Signals) -> None:
        if number == signal.SIGCHLD:
            self._reap()
        elif number == signal.SIGTSTP:
            self._suspend()
        else:
            self._is_ending |= number in _ENDING
            _kill(self._child, number)

    def _suspend(self) -> None:
        """Ctrl-Z: stop with the child, and go on with it."""
        _kill(self._child, signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        self._fence()  # before it goes on
        _kill(self._child, signal.SIGCONT)

    def _reap(self) -> None:
        """Wait for whatever has ended; as number 1 of a container this process inherits the children of others."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._child:
                code = os.waitstatus_to_exitcode(status)
                self._code = code if code >= 0 else 128 - code

    def _fence(self) -> float:
        """Kill the process if it calls a write and has no lease for it; return the seconds until the next look."""
        report = beats.read(self._memory)
        left = report.fence_at - beats.boot_clock()
        if left > 0:
            return min(self._tick, left)
        if report.is_acting:
            _kill(self._child, signal.SIGKILL)
        return self._tick

    def _look(self, seconds: float) -> None:
        report = beats.read(self._memory)
        self._tick = min(_LONGEST_TICK_SECONDS, report.limit_seconds / _TICKS_IN_LIMIT or _LONGEST_TICK_SECONDS)
        if self._code is None and report.limit_seconds and self._watched.look(report, seconds) >= 1.0:
            self._end(report)

    def _end(self, report: Report) -> None:
        stack = self._stack()
        _kill(self._child, signal.SIGSTOP)
        sleep(_STOPPED_SECONDS)
        state = beats.process_state(self._child)
        if state is None or state[0] in "ZXx" or beats.read(self._memory).beats != report.beats:
            _kill(self._child, signal.SIGCONT)
            return
        self._log(stack)
        for pid in _in_other_sessions(self._child):
            _kill(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child, signal.SIGKILL)
        os.waitpid(self._child, 0)
        if self._is_ending:
            self._code = 128 + signal.SIGKILL
        else:
            self._start()

    def _log(self, stack: str) -> None:
        name = f"planq-{self._kind}-{self._child}@{os.uname().nodename}"
        late = round(self._watched.late_seconds, 1)
        if os.environ.get("PLANQ_LOG_FORMAT", "json") == "json":
            at = datetime.now(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
            line = {"event": "froze", "logger": "planq.guard", "level": "critical", "frozen": name}
            text = json.dumps({**line, "late_seconds": late, "stack": stack, "timestamp": at})
        else:
            text = f"froze frozen={name} late_seconds={late}\n{stack}"
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def _stack(self) -> str:
        self._read_stack()
        _kill(self._child, beats.STACK_SIGNAL)
        stack = b""
        until = quiet = monotonic() + _STACK_SECONDS
        while monotonic() < min(until, quiet) and len(stack) < _STACK_BYTES:
            if some := self._read_stack():
                stack += some
                quiet = monotonic() + _QUIET_SECONDS
            else:
                sleep(_WAIT_SECONDS)
        return stack.decode("utf-8", "replace")

    def _read_stack(self) -> bytes:
        try:
            return os.read(self._stacks, 65_536)
        except BlockingIOError:
            return b""


def _fork_and_exec(command: list[str], *, env: dict[str, str], keep: tuple[int, ...]) -> int:
    """Start a command in its own session, which Ctrl-C does not reach; return its pid."""
    if pid := os.fork():
        return pid
    try:
        os.setsid()
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        for descriptor in keep:
            os.set_inheritable(descriptor, True)
        os.execve(command[0], command, {**os.environ, **env})  # noqa: S606 - it is what it is here for
    finally:
        os._exit(127)


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _in_other_sessions(pid: int) -> list[int]:
    """Return the descendants of a process that have left its session: MCP servers, which would outlive it."""
    parents: dict[int, tuple[int, int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b") ")[2].split()
                parents[int(name)] = int(fields[1]), int(fields[3])
    session = parents.get(pid, (0, 0))[1]
    family, added = {pid}, True
    while added:
        found = {one for one, (parent, _) in parents.items() if parent in family} - family
        family |= found
        added = bool(found)
    return [one for one in family if parents.get(one, (0, session))[1] != session]


if __name__ == "__main__":
    sys.exit(main())
