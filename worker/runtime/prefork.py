"""The processes of a `cpu` worker: what each reports to its parent, and how the parent ends one.

Each process writes every change of its `InFlightWork` as a line into one pipe. To end a process, it is stopped
(SIGSTOP), the pipe is read, and it is killed only if it still runs that attempt: no other step is ever hit.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any
from uuid import UUID

from planq.shared.kernel.ids import Attempt, StepRef
from planq.shared.platform.launcher import die_with

_log = logging.getLogger("planq.prefork")

_READ_BYTES = 65_536
_STOP_SECONDS = 0.2
"""Maximum wait for SIGSTOP; it takes microseconds unless the machine itself hangs."""


@dataclass(slots=True)
class _Process:
    """One process: it claims `ref` (`is_void`: of a cancelled job), runs `attempt`, or is idle."""

    ref: StepRef | None = None
    attempt: Attempt | None = None
    begun_at: float = 0.0
    is_acting: bool = False
    is_concluding: bool = False
    is_void: bool = False

    def note(self, kind: str) -> None:
        if kind == "concluding":
            self.is_concluding = True
        else:
            self.is_acting = kind == "acting"


class PreforkProcesses:
    """Create it before the processes are forked.

    `notify` and `bind_to_parent` are for the processes; all else is for the parent's heartbeat thread. Every query
    first reads what the processes have written, and ends those that work for a cancelled job.
    """

    def __init__(self) -> None:
        """Before the fork, set `on_acting`, which gets whether a process calls a write, and `counting`, the counter
        of each process, which is added to the parent's `counts`.
        """
        self._parent = os.getpid()
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._rest = b""
        self._processes: dict[int, _Process] = {}
        self._abandoned: set[Attempt] = set()
        self._fenced: list[Attempt] = []
        self._consumer: Any = None
        self.late_outcomes = 0
        self.counting: Counter[tuple[str, ...]] = Counter()
        self.counts: Counter[tuple[str, ...]] = Counter()
        self.on_acting: Callable[[bool], None] = lambda _: None

    def attach(self, consumer: Any) -> None:
        """Kill through the pool of Celery's consumer, so that it does not report a crash."""
        self._consumer = consumer

    def bind_to_parent(self) -> None:
        """In a process: let the kernel (Linux) kill it with its parent; Celery's processes would outlive it."""
        die_with(self._parent, signal.SIGKILL)

    def notify(self, kind: str, ref: StepRef, number: int) -> None:
        """In a process: report a change of `InFlightWork`, and the counters; waits while the pipe is full."""
        while self.counting:
            labels, counted = self.counting.popitem()
            os.write(self._writer, f"{os.getpid()} counted {json.dumps([*labels, counted])}\n".encode())
        os.write(self._writer, f"{os.getpid()} {kind} {ref.job_id} {ref.round} {ref.index} {number}\n".encode())

    def fileno(self) -> int:
        """Return the descriptor that is readable when a process has written something."""
        return self._reader

    def read_and_end_cancelled(self) -> None:
        """Read what the processes have written, and end those that work for a cancelled job."""
        self._drain()
        for pid, process in list(self._processes.items()):
            if process.is_void and process.attempt is not None:
                self._end(pid, process.attempt)

    # What runs here (as `planq.worker.runtime.reconcile.LoopInFlight`)
    # ---------------------------------------------------------

    @property
    def acting(self) -> list[Attempt]:
        return [
            process.attempt
            for process in self._processes.values()
            if process.attempt is not None and process.is_acting
        ]

    def attempts(self) -> list[Attempt]:
        self.read_and_end_cancelled()
        return [one.attempt for one in self._processes.values() if one.attempt is not None]

    def ages(self) -> Mapping[Attempt, float]:
        self._drain()
        now = monotonic()
        return {one.attempt: now - one.begun_at for one in self._processes.values() if one.attempt is not None}

    def is_here(self, attempt: Attempt) -> bool:
        self.read_and_end_cancelled()
        return any(one.attempt == attempt or one.ref == attempt.ref for one in self._processes.values())

    def was_called(self, attempt: Attempt) -> bool:
        return attempt in self._abandoned

    def keep_abandoned(self, held: Collection[Attempt]) -> None:
        self._abandoned.intersection_update(held)

    def cut_off(self, attempts: Collection[Attempt], then: Callable[[], None]) -> None:
        """Kill the processes that run attempts which this worker no longer owns, then call `then`."""
        try:
            for pid, process in list(self._processes.items()):
                if process.attempt is not None and process.attempt in attempts:
                    self._end(pid, process.attempt)
        finally:
            then()

    def cancel(self, job_id: UUID) -> None:
        """Kill the processes that work for a cancelled job; others are not touched."""
        self.read_and_end_cancelled()
        for pid, process in list(self._processes.items()):
            if process.attempt is not None and process.attempt.job_id == job_id:
                self._end(pid, process.attempt)
            elif process.ref is not None and process.ref.job_id == job_id:
                process.is_void = True

    def fence(self) -> None:
        """Kill the processes that call a write, because the lease is over: others may soon do the same."""
        self._drain()
        for pid, process in list(self._processes.items()):
            attempt = process.attempt
            if attempt is not None and process.is_acting and self._end(pid, attempt):
                self._fenced.append(attempt)

    def fenced(self) -> list[Attempt]:
        """Return, once, the attempts that `fence` has ended."""
        fenced, self._fenced = self._fenced, []
        return fenced

    # The end of processes ------------------------------------------------------------------------------------------

    def died(self, pid: int) -> Attempt | None:
        """Note that a process has died and return its attempt; without a database a later comparison finds it."""
        self._drain()
        self._replace()
        return self._lose(pid)

    def dead(self) -> list[int]:
        """Return the processes that were at work and have died."""
        self._drain()
        return [pid for pid in self._processes if _has_ended(pid)]

    def stop(self) -> bool:
        """Kill the processes that run an attempt, unless they conclude it; return True if none is at work now."""
        for pid, process in list(self._processes.items()):
            if process.attempt is not None:
                self._end(pid, process.attempt)
        return self.is_idle()

    def stop_at_once(self) -> None:
        """Kill every process that is at work, whatever it does."""
        self._drain()
        for pid in list(self._processes):
            self._kill(pid)
        self._drain()
        self._abandoned.update(process.attempt for process in self._processes.values() if process.attempt is not None)
        self._processes.clear()
        self.on_acting(False)

    def is_idle(self) -> bool:
        self.read_and_end_cancelled()
        return all(process.attempt is None and process.ref is None for process in self._processes.values())

    def _end(self, pid: int, attempt: Attempt) -> bool:
        """Kill a process if it runs this attempt and does not conclude it; return whether it was killed."""
        try:
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # is it a process of ours at all?
            os.kill(pid, signal.SIGSTOP)
        except (ChildProcessError, ProcessLookupError):
            return False
        _await_change(pid, os.WSTOPPED | os.WEXITED)
        self._drain()
        process = self._processes.get(pid)
        if process is None or process.attempt != attempt or process.is_concluding:
            os.kill(pid, signal.SIGCONT)
            return False
        _log.warning("attempt_cut_off", extra={"job": str(attempt.job_id), "attempt": attempt.number, "pid": pid})
        self._kill(pid)
        self._lose(pid)
        return True

    def _kill(self, pid: int) -> None:
        if self._consumer is not None:
            self._consumer.pool.terminate_job(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # Celery's pool kills only what it still counts as its own
        _await_change(pid, os.WEXITED)
        self._replace()

    def _lose(self, pid: int) -> Attempt | None:
        process = self._processes.pop(pid, None)
        if process is None or process.attempt is None:
            return None
        self._abandoned.add(process.attempt)
        self.on_acting(bool(self.acting))
        return process.attempt

    def _replace(self) -> None:
        """Let Celery replace ended processes now; by itself it looks every five seconds."""
        hub = getattr(self._consumer, "hub", None)
        if hub is not None:
            hub.call_soon(self._consumer.pool.maintain_pool)

    def _drain(self) -> None:
        while True:
            try:
                some = os.read(self._reader, _READ_BYTES)
            except BlockingIOError:
                return
            *lines, self._rest = (self._rest + some).split(b"\n")
            for line in lines:
                self._take(line.decode())
            self.on_acting(bool(self.acting))

    def _take(self, line: str) -> None:
        pid, kind, body = line.split(" ", 2)
        if kind == "counted":
            *labels, counted = json.loads(body)
            self.counts[tuple(labels)] += counted
            return
        job, round_, index, number = body.split()
        ref = StepRef(UUID(job), int(round_), int(index))
        attempt = Attempt(ref, int(number))
        match kind:
            case "claiming":
                self._lose(int(pid))  # a new process may have the number of one that died unnoticed
                self._processes[int(pid)] = _Process(ref=ref)
            case "begun":
                earlier = self._processes.get(int(pid), _Process())
                self._processes[int(pid)] = _Process(attempt=attempt, begun_at=monotonic(), is_void=earlier.is_void)
            case "acting" | "still" | "concluding":
                self._processes.get(int(pid), _Process()).note(kind)
            case "late":
                self.late_outcomes += 1
            case _:  # unclaimed, ended, abandoned
                self._processes.pop(int(pid), None)
                if kind == "abandoned":
                    self._abandoned.add(attempt)


def _await_change(pid: int, changes: int) -> None:
    """Wait until a process has stopped or ended, without reaping it: Celery's pool does that."""
    until = monotonic() + _STOP_SECONDS
    with contextlib.suppress(ChildProcessError):
        while os.waitid(os.P_PID, pid, changes | os.WNOHANG | os.WNOWAIT) is None:
            if monotonic() > until:
                return
            sleep(0.001)


def _has_ended(pid: int) -> bool:
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True
