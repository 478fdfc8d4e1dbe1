"""planq's processes, each below its guard, and a supervisor: whatever ends is started again, as a deployment does."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from planq.deploy.local.child import has_exited, reap, send, wait_ended
from tests.chaos.schedule import APIS, PROXIED, WORKERS
from tests.chaos.servers import Servers
from tests.support.ports import free_ports
from tests.support.stack import Stack, step_processes

GUARD = ("-m", "planq.deploy.local.guard")

CPU_CHILDREN = 2
IO_CONCURRENCY = 100

_LOOK_SECONDS = 0.05
_SHORT_LIFE_SECONDS = 3.0
_PAUSE_SECONDS = 0.5
"""What a process that ended right after its start is given before the next try: the database may be away."""

_STOP_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class End:
    """A process that ended: whose, how, and whether a fault or the rolling restart had been dealt to it."""

    name: str
    code: int
    lived_seconds: float
    intended: bool


class Processes:
    """Two APIs, two `io` and two `cpu` workers; call from the main thread's event loop only."""

    def __init__(self, folder: Path, servers: Servers, environment: Mapping[str, str]) -> None:
        self._servers = servers
        # A fork would have the pages of its server in its memory, which is measured.
        self._stack = Stack(folder, **_direct(servers), env=dict(environment), fresh=True)
        self._ports = dict(zip(APIS, free_ports(len(APIS)), strict=True))
        self._started: dict[str, float] = {}
        self._intended: set[int] = set()
        self._supervisor: asyncio.Task[None] | None = None
        self.ends: list[End] = []

    @property
    def api_urls(self) -> list[str]:
        """Where the APIs listen."""
        return [f"http://127.0.0.1:{port}" for port in self._ports.values()]

    def start(self) -> None:
        """Start all processes and the supervisor, without waiting until they are ready."""
        for name in (*APIS, *WORKERS):
            self._start(name)
        self._supervisor = asyncio.get_running_loop().create_task(self._supervise())

    async def stop(self) -> None:
        """End the supervisor, then all processes: politely, then for certain."""
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
        running = self._stack.processes
        for process in running.values():
            self._signal_group(process, signal.SIGCONT)
            send(process, signal.SIGTERM)
        until = time.monotonic() + _STOP_SECONDS
        for process in running.values():
            await asyncio.to_thread(wait_ended, process, max(0.0, until - time.monotonic()))
            reap(process)
        running.clear()

    def pid(self, name: str) -> int:
        """Return the pid of the process that has this name now; that of its guard while it has none."""
        return _guarded(self._stack.processes[name].pid)

    def kill(self, name: str) -> None:
        """End a process and its children at once."""
        self._intend(name)
        self._signal_group(self._stack.processes[name], signal.SIGKILL)

    def terminate(self, name: str) -> None:
        """Ask a process to stop."""
        self._intend(name)
        send(self._stack.processes[name], signal.SIGTERM)

    def freeze(self, name: str) -> subprocess.Popen[bytes]:
        """Stop a process and its children from running at all; returns what `thaw` takes."""
        process = self._stack.processes[name]
        self._intend(name)  # in the middle of a write it does not outlive its lease
        self._signal_group(process, signal.SIGSTOP)
        return process

    def thaw(self, process: subprocess.Popen[bytes]) -> None:
        """Let a frozen process go on, if it was not killed meanwhile."""
        self._signal_group(process, signal.SIGCONT)

    def children(self, name: str) -> list[psutil.Process]:
        """Return the processes of a `cpu` worker that run steps, oldest first."""
        try:
            found = step_processes(self.pid(name))
        except (psutil.NoSuchProcess, ProcessLookupError):
            return []
        return sorted(found, key=lambda child: child.pid)

    def count_freezes(self) -> int:
        """Return how many loops have frozen and were ended for it."""
        logs = {self._stack.log(name) for name in (*APIS, *WORKERS)}
        return sum(log.read_text(errors="replace").count('"event": "froze"') for log in logs if log.exists())

    def memory(self) -> list[tuple[str, int, float]]:
        """Return (name, pid, resident MB) of every process, children as `NAME/child`."""
        found = []
        for name in self._stack.processes:
            family = [(name, self.pid(name)), *((f"{name}/child", child.pid) for child in self.children(name))]
            for shown, pid in family:
                try:
                    found.append((shown, pid, psutil.Process(pid).memory_info().rss / 1e6))
                except psutil.NoSuchProcess:
                    continue
        return found

    def _start(self, name: str) -> None:
        pool, _, _ = name.partition("-")
        env = self._servers.urls(proxied=name in PROXIED)
        if name in PROXIED:
            env["PLANQ_DETECT_DEAD_PEERS"] = "false"
        if pool == "api":
            self._stack.run(name, *GUARD, "api", "-m", "planq.api", env={**env, "PLANQ_PORT": str(self._ports[name])})
        else:
            size = CPU_CHILDREN if pool == "cpu" else IO_CONCURRENCY
            self._stack.run(name, *GUARD, pool, "-m", "planq.worker", pool, "--concurrency", str(size), env=env)
        self._started[name] = time.monotonic()

    async def _supervise(self) -> None:
        while True:
            for name, process in list(self._stack.processes.items()):
                if has_exited(process):
                    lived = time.monotonic() - self._started[name]
                    self.ends.append(End(name, reap(process), round(lived, 1), process.pid in self._intended))
                    self._intended.discard(process.pid)
                    if lived < _SHORT_LIFE_SECONDS:
                        await asyncio.sleep(_PAUSE_SECONDS)
                    self._start(name)
            await asyncio.sleep(_LOOK_SECONDS)

    def _intend(self, name: str) -> None:
        self._intended.add(self._stack.processes[name].pid)

    def _signal_group(self, process: subprocess.Popen[bytes], number: signal.Signals) -> None:
        # Not reaped, so neither its pid nor its group's can be another's.
        if process.returncode is None and not has_exited(process):
            with contextlib.suppress(ProcessLookupError):  # a guard has just ended it
                os.killpg(_guarded(process.pid), number)


def _guarded(pid: int) -> int:
    """Return the process that a guard has started, which leads a group of its own; the guard where it has none."""
    try:
        children = [
            one.pid for one in psutil.Process(pid).children() if "planq.deploy.local" not in " ".join(one.cmdline())
        ]
    except psutil.Error:
        return pid
    return children[0] if children else pid


def _direct(servers: Servers) -> dict[str, str]:
    urls = servers.urls(proxied=False)
    return {"database_url": urls["DATABASE_URL"], "broker_url": urls["BROKER_URL"]}
