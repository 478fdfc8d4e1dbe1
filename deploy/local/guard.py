"""`python -m planq.deploy.local.guard io -m planq.worker io`: starts a process, watches its loops, restarts it.

The parent of every worker and API, whatever starts these: `planq up`, a container, a unit of systemd. A process of
its own, because nothing in a process whose interpreter is held can watch it. The parent and not a child, because in a
container without an init the process is number 1 of its namespace, which no signal from inside can kill.

A beat counts as late only for as long as the process could have beaten: not while it is stopped (SIGSTOP, a debugger,
a frozen container), nor while this process itself stood still with it, nor while its threads wait for a processor,
unless it has computed for a while without a beat, which no loop does that is well. When one is later than its limit,
the stacks of all threads are written to the log, and the process is killed with all that it has started. Everything
that this needs comes from the kernel, so it is Linux only.

It also ends a worker whose lease is over while it calls a write (`planq.worker.engine.fence`), however that process
stands: nothing in one that is stopped can.

Everything else is as without it: it hands on signals, and ends as its child has ended. Standard library only.
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

from planq.shared import beats, launcher
from planq.shared.beats import Slot

_LONGEST_TICK_SECONDS = 1.0
_TICKS_IN_LIMIT = 10

_COMPUTED_SHARE = 0.1
"""Of the limit: what has computed for so long without a beat does not just wait for a processor. One that ten share
gives so much within the limit; no turn of a loop that is well takes a tenth of it."""

_STACK_SECONDS = 3.0
_QUIET_SECONDS = 0.3
"""Nothing says that a stack has ended; the handler writes it in one go."""

_STACK_BYTES = 200_000

_WAIT_SECONDS = 0.01

_STOPPED_SECONDS = 0.05
"""What SIGSTOP gets to take effect."""

_HANDED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)


def main() -> int:
    """Run the command until it ends by itself; returns its exit code, 128 and the signal where one has ended it."""
    return LoopGuard(sys.argv[1], sys.argv[2:]).run()


class _Times:
    """What the threads of a process have computed and waited for a processor, in seconds."""

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
    """Return how many of the seconds between two looks were everybody's, when `tick` lay between them as a rule.

    What stood still with this process (a machine asleep, a container frozen) has missed no beat. Of a processor that
    has let this process wait, `waited` says so.
    """
    return min(gap, 2 * tick + waited)


def _own_wait() -> float:
    return _Times(os.getpid()).waited.get(os.getpid(), 0.0)


class _Handle:
    """A process that may end at any moment: what is sent by it reaches no other one that has its number by then."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._descriptor = -1

    def __enter__(self) -> _Handle:
        # Without such a process, or on a kernel that knows no handles, numbers have to do.
        with contextlib.suppress(OSError):
            self._descriptor = os.pidfd_open(self._pid)
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def send(self, number: int) -> None:
        """Send a signal, if it has not ended."""
        if self._descriptor < 0:
            _kill(self._pid, number)
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(self._descriptor, number)


class WatchedLoop:
    """One loop of one process: for how long it has owed a beat."""

    def __init__(self) -> None:
        self._beats = -1
        self._first = self._last = _Times(0)
        self._looks = 0
        self._runnable_seconds = 0.0
        self.late_seconds = 0.0

    def look(self, slot: Slot, seconds: float) -> float:
        """Take note that `seconds` have gone by, and return how late the beat is, as a share of its limit.

        The first two looks without a beat are those of a loop that is well.
        """
        if slot.beats != self._beats:
            self._beats, self._looks, self.late_seconds, self._runnable_seconds = slot.beats, 0, 0.0, 0.0
            return 0.0
        self._looks += 1
        if self._looks < 2:
            return 0.0
        times = _Times(slot.pid)
        state = beats.process_state(slot.pid)
        if self._looks == 2:
            self._first = times
            self._runnable_seconds = self.late_seconds = seconds
        elif state is not None and state[0] not in "Tt":
            self.late_seconds += seconds
            self._runnable_seconds += max(0.0, seconds - times.longest_wait_since(self._last))
        self._last = times
        share = self.late_seconds / slot.limit_seconds
        has_computed = sum(self._since().values()) / slot.limit_seconds / _COMPUTED_SHARE
        return max(self._runnable_seconds / slot.limit_seconds, min(share, has_computed))

    def _since(self) -> dict[int, float]:
        """Return what each thread has computed since the beat was first missed."""
        return {thread: at - self._first.computed.get(thread, 0.0) for thread, at in self._last.computed.items()}


class LoopGuard:
    """Starts one command and looks after it. The main thread of a process that does nothing else."""

    def __init__(self, kind: str, command: list[str]) -> None:
        """`kind` is `io`, `cpu` or `api`, for the log; `command` are the arguments of a Python interpreter."""
        self._kind = kind
        self._command = command
        self._file = os.memfd_create("planq-beats")
        os.ftruncate(self._file, beats.TABLE_BYTES)
        self._table = mmap.mmap(self._file, beats.TABLE_BYTES)
        self._stacks, self._stacks_end = os.pipe()
        os.set_blocking(self._stacks, False)
        self._watched: dict[tuple[int, int, int], WatchedLoop] = {}
        self._tick = _LONGEST_TICK_SECONDS
        self._child = 0
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
        self._end_frozen()
        return self._code

    def _start(self) -> None:
        command = [sys.executable, "-I", "-S", launcher.__file__]
        command += ["--parent", str(os.getpid()), "--signal", str(int(signal.SIGKILL)), "--"]
        env = {beats.GUARD_VARIABLE: f"{self._file},{self._stacks_end}"}
        keep = (self._file, self._stacks_end)
        self._child = _fork_and_exec([*command, *launcher.PYTHON, *self._command], env=env, keep=keep)

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
        """Kill each process that calls a write and has no lease for it; return the seconds until the next look."""
        wait = self._tick
        for slot in beats.slots(self._table):
            left = slot.fence_at - beats.boot_clock()
            if left > 0:
                wait = min(wait, left)
            elif slot.is_acting:
                with _Handle(slot.pid) as handle:
                    if self._is_there(slot):
                        handle.send(signal.SIGKILL)
        return wait

    def _look(self, seconds: float) -> None:
        taken = [slot for slot in beats.slots(self._table) if slot.limit_seconds]
        self._watched = {
            self._key(slot): self._watched.get(self._key(slot), WatchedLoop())
            for slot in taken
            if self._is_there(slot)
        }
        limits = [slot.limit_seconds for slot in taken]
        self._tick = min([_LONGEST_TICK_SECONDS, *(limit / _TICKS_IN_LIMIT for limit in limits)])
        for slot in taken:
            watched = self._watched.get(self._key(slot))
            if watched is None:
                continue
            if watched.look(slot, seconds) >= 1.0:
                self._end(slot, watched)
                return  # it has taken seconds, which are no other's delay

    def _key(self, slot: Slot) -> tuple[int, int, int]:
        return slot.number, slot.pid, slot.started

    def _is_there(self, slot: Slot) -> bool:
        """Return whether the process of a slot lives, and clear the slot where it does not."""
        state = beats.process_state(slot.pid)
        is_there = state is not None and state[1] == slot.started and state[0] not in "ZXx"
        if not is_there:
            beats.clear(self._table, slot.number)
        return is_there

    def _end(self, slot: Slot, watched: WatchedLoop) -> None:
        """Log the freeze, end the process, and start it again where it is the child.

        Somebody else may end it meanwhile, as a worker does with a process for suspects: then nothing is logged, and
        whoever has its number by then is left alone.
        """
        with _Handle(slot.pid) as handle:
            if not self._is_there(slot):
                return
            stack = self._stack(handle)
            handle.send(signal.SIGSTOP)
            sleep(_STOPPED_SECONDS)
            now = next((one for one in beats.slots(self._table) if self._key(one) == self._key(slot)), None)
            if now is None or now.beats != slot.beats or not self._is_there(slot):  # it has just come to, or gone
                handle.send(signal.SIGCONT)
                return
            self._log(slot, watched, stack)
            for pid in _in_other_sessions(slot.pid):
                _kill(pid, signal.SIGKILL)
            handle.send(signal.SIGKILL)
        beats.clear(self._table, slot.number)  # it may take a while to be gone
        if slot.pid == self._child:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(slot.pid, signal.SIGKILL)
            os.waitpid(slot.pid, 0)
            if self._is_ending:
                self._code = 128 + signal.SIGKILL
            else:
                self._start()

    def _log(self, slot: Slot, watched: WatchedLoop, stack: str) -> None:
        """Write one line of the form that the log of the process has; it names files and functions, no values."""
        kind = self._kind if slot.pid == self._child else f"{self._kind}-suspects"
        name, late = f"planq-{kind}-{slot.pid}@{os.uname().nodename}", round(watched.late_seconds, 1)
        if os.environ.get("PLANQ_LOG_FORMAT", "json") == "json":
            at = datetime.now(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
            line = {"event": "froze", "logger": "planq.guard", "level": "critical", "frozen": name}
            text = json.dumps({**line, "late_seconds": late, "stack": stack, "timestamp": at})
        else:
            text = f"froze frozen={name} late_seconds={late}\n{stack}"
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def _stack(self, process: _Handle) -> str:
        """Return the stacks of all threads of a process."""
        self._read_stack()
        process.send(beats.STACK_SIGNAL)
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

    def _end_frozen(self) -> None:
        """The child has ended, and the processes for suspects hear of that; those that hear nothing are killed."""
        for slot in beats.slots(self._table):
            watched = self._watched.get(self._key(slot))
            if watched is not None and watched.late_seconds > 0 and self._is_there(slot):
                _kill(slot.pid, signal.SIGKILL)


def _fork_and_exec(command: list[str], *, env: dict[str, str], keep: tuple[int, ...]) -> int:
    """Start a command in a session of its own, so that Ctrl-C reaches this process alone; returns its pid.

    `subprocess` would double what this process needs; with a single thread a fork is safe.
    """
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
