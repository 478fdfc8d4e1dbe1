"""Processes for what may take long: started when they are needed, kept for a while, killed when their time is over.

Each does one piece of work at a time, and a thread here waits for it, so that they belong to no event loop.
A slot that comes free goes to the tenant that holds the fewest, and none holds all while another may come.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import select
import subprocess
import threading
import weakref
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any, Final

from planq.shared.platform.launcher import PYTHON

_SLOTS = 3
_LONG_SECONDS = 1.0
_LEAST_PRIORITY = 19
"""Work that computes longer than a normal page gets the lowest priority for the rest of its process's life. The time
includes that of its start."""

_PATIENCE = 12
"""Maximum wall time of work, as a multiple of its CPU time, on a busy machine."""

_INHERITED = ("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "PYTHONHOME", "PYTHONPATH", "TMPDIR", "TZ")
"""Environment variables of such a process: a parser gets no keys or addresses of servers."""

_COMMAND = (*PYTHON, "-m", "planq.worker.subprocesses")


class WorkRefused(Exception):
    """The work cannot be done, and says why; it would be the same the next time."""


class Failed(Exception):
    """The process ended, or its time was over (`is_late`), perhaps without CPU time (`is_starved`)."""

    def __init__(self, message: str, *, is_late: bool, is_starved: bool = False) -> None:
        super().__init__(message)
        self.is_late = is_late
        self.is_starved = is_starved


class Apart:
    """The processes of one worker; none is started before something is asked for."""

    def __init__(self, *, slots: int = _SLOTS, command: Sequence[str] = _COMMAND) -> None:
        """At most `slots` processes work at once, for one tenant one fewer."""
        self._command: Final = command
        self._slots: Final = slots
        self._threads = ThreadPoolExecutor(slots, thread_name_prefix="apart")
        self._lock = threading.Lock()
        self._idle: list[_Process] = []
        self._all: set[_Process] = set()
        self._held: Counter[str] = Counter()
        self._waiting: deque[tuple[str, asyncio.AbstractEventLoop, asyncio.Future[None]]] = deque()

    async def call(self, tenant_id: str, work: str, *arguments: Any, seconds: float) -> Any:
        """Return the JSON result of work within CPU `seconds`; raise `WorkRefused` or `Failed`."""
        await self._turn(tenant_id)
        try:
            asked = _WorkItem(work, arguments, seconds)
            future = asyncio.get_running_loop().run_in_executor(self._threads, self._carry_out, asked)
            try:
                said = await asyncio.shield(future)
            except asyncio.CancelledError:
                asked.give_up()
                future.add_done_callback(lambda done: done.cancelled() or done.exception())
                raise
        finally:
            self._give_back(tenant_id)
        if "refused" in said:
            raise WorkRefused(said["refused"])
        return said["value"]

    async def _turn(self, tenant_id: str) -> None:
        with self._lock:
            if self._may_begin(tenant_id):
                self._held[tenant_id] += 1
                return
            loop = asyncio.get_running_loop()
            turn: asyncio.Future[None] = loop.create_future()
            entry = (tenant_id, loop, turn)
            self._waiting.append(entry)
        try:
            await turn
        except asyncio.CancelledError:
            with self._lock:
                was_given = entry not in self._waiting
                if not was_given:
                    self._waiting.remove(entry)
            if was_given:
                self._give_back(tenant_id)
            raise

    def held(self) -> dict[str, int]:
        with self._lock:
            return dict(self._held)

    def _may_begin(self, tenant_id: str) -> bool:
        return self._held.total() < self._slots and self._held[tenant_id] < max(1, self._slots - 1)

    def _give_back(self, tenant_id: str) -> None:
        with self._lock:
            self._held[tenant_id] -= 1
            self._held = +self._held
            able = [entry for entry in self._waiting if self._may_begin(entry[0])]
            if not able:
                return
            entry = min(able, key=lambda one: self._held[one[0]])  # of equals the one that waits longest
            self._waiting.remove(entry)
            self._held[entry[0]] += 1
        _, loop, turn = entry
        loop.call_soon_threadsafe(_give, turn)

    def _carry_out(self, asked: _WorkItem) -> Any:
        while True:
            with self._lock:
                process, is_kept = (self._idle.pop(), True) if self._idle else (None, False)
            if process is None:
                process = _Process(self._command)
                with self._lock:
                    self._all.add(process)
            try:
                said = process.ask(asked)
            except _ProcessGone:
                self._end(process)
                if is_kept:
                    continue  # it may have ended because it was idle
                raise Failed("the process that worked on it ended", is_late=False) from None
            except BaseException:
                self._end(process)
                raise
            if process.is_last:
                self._end(process)
                return said
            with self._lock:
                self._idle.append(process)
            return said

    def _end(self, process: _Process) -> None:
        process.end()
        with self._lock:
            self._all.discard(process)

    def close(self) -> None:
        """End all processes, including those at work, whose callers get `Failed`."""
        with self._lock:
            running, self._all, self._idle = self._all, set(), []
        for process in running:
            process.kill()
        self._threads.shutdown(wait=False, cancel_futures=True)


def _give(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)


class _ProcessGone(Exception):
    """The process has ended, or was killed from outside."""


class _WorkItem:
    def __init__(self, work: str, arguments: Sequence[Any], seconds: float) -> None:
        self.body: Final = pickle.dumps((work, arguments), pickle.HIGHEST_PROTOCOL)
        self.seconds: Final = seconds
        self._lock = threading.Lock()
        self._process: _Process | None = None
        self._is_given_up = False

    def begin(self, process: _Process) -> None:
        with self._lock:
            if self._is_given_up:
                raise Failed("nobody waits for it any more", is_late=True)
            self._process = process

    def give_up(self) -> None:
        with self._lock:
            self._is_given_up = True
            if self._process is not None:
                self._process.kill()


class _Process:
    def __init__(self, command: Sequence[str]) -> None:
        environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        # A group of its own: what looks for the remains of a lost worker must not find it.
        self._popen = subprocess.Popen(  # noqa: S603 - our own command
            [*command, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            process_group=0,
        )
        self.end = weakref.finalize(self, _end, self._popen)
        self.is_last = False
        """Whether it takes no more work after what it has now."""

    def ask(self, asked: _WorkItem) -> Any:
        """Return what the process says; raises `_ProcessGone`, and `Failed` when the time is over."""
        asked.begin(self)
        self._begun = monotonic()
        self._computed = _computed_seconds(self._popen.pid)
        sink = self._popen.stdin
        assert sink is not None
        try:
            sink.write(len(asked.body).to_bytes(8, "big") + asked.body)
            sink.flush()
        except (OSError, ValueError):
            raise _ProcessGone from None
        length = int.from_bytes(self._read(8, asked.seconds), "big")
        return json.loads(self._read(length, asked.seconds))

    def _read(self, size: int, seconds: float) -> bytes:
        source = self._popen.stdout
        assert source is not None
        read = bytearray()
        ready = select.poll()
        ready.register(source, select.POLLIN)
        while len(read) < size:
            try:
                if not ready.poll(min(seconds, _LONG_SECONDS) * 1_000):
                    self._look(seconds)
                    continue
                piece = os.read(source.fileno(), min(size - len(read), 1 << 20))
            except (OSError, ValueError):
                raise _ProcessGone from None
            if not piece:
                raise _ProcessGone
            read += piece
        return bytes(read)

    def _look(self, seconds: float) -> None:
        """Let it go last, if it has computed for long; raises `Failed` if its time is over, or it gets none."""
        taken = monotonic() - self._begun
        computed = _computed_seconds(self._popen.pid)
        if (taken if computed is None or self._computed is None else computed - self._computed) >= seconds:
            raise Failed(f"it takes more than {seconds:g} s", is_late=True)
        if taken >= _PATIENCE * seconds:
            message = f"within {taken:.0f} s it got no {seconds:g} s of a processor"
            raise Failed(message, is_late=True, is_starved=True)
        if not self.is_last and computed is not None and computed - (self._computed or 0.0) >= _LONG_SECONDS:
            self.is_last = True
            with contextlib.suppress(OSError):  # it has just ended
                os.setpriority(os.PRIO_PROCESS, self._popen.pid, _LEAST_PRIORITY)

    def kill(self) -> None:
        """End it at once, without waiting for that; the one who asks it then learns that it is gone."""
        with contextlib.suppress(OSError):
            self._popen.kill()


def _computed_seconds(pid: int) -> float | None:
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as file:
            return int(file.read().split()[0]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and close its pipes; also called when it is no longer referenced."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):
            if pipe is not None:
                pipe.close()
