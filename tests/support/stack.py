"""The whole of planq as real processes: API, io worker, cpu worker, on a given database and broker.

The processes die with the test session (parent-death signal), so that a killed run leaves nothing behind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import httpx
import psutil

from planq.deploy.local.child import has_exited, reap, send, spawn, wait_ended
from planq.deploy.local.folder import last_lines
from tests.support.forking import fork_server
from tests.support.ports import free_port
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]

FORKED = ("planq.api", "planq.worker")


class Stack:
    """API and workers on `database_url` and `broker_url`; logs lie in `folder`.

    They are forked from a process that has imported their libraries, unless `fresh`: where the start is the point.
    """

    def __init__(
        self,
        folder: Path,
        database_url: str,
        broker_url: str,
        *,
        env: Mapping[str, str] | None = None,
        fresh: bool = False,
    ) -> None:
        self.port = free_port()
        self._folder = folder
        self._forks = None if fresh else fork_server()
        # Nothing of the developer's own settings and keys may reach a test.
        clean = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PLANQ_", "CELERY_", "OPENAI_", "ANTHROPIC_", "GOOGLE_", "GEMINI_", "REDIS_"))
        }
        self._env = clean | {
            "DATABASE_URL": database_url,
            "BROKER_URL": broker_url,
            "PLANQ_HOST": "127.0.0.1",
            "PLANQ_PORT": str(self.port),
            "PLANQ_DATA": str(folder),
            **(env or {}),
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def env(self) -> dict[str, str]:
        """The environment of its processes."""
        return dict(self._env)

    @property
    def url(self) -> str:
        """The API's base URL."""
        return f"http://127.0.0.1:{self.port}"

    def start(self, *, io: int = 1, cpu: int = 1, ready: bool = True) -> None:
        """Start the API and so many workers of each pool; wait until `/statusz` says yes unless `ready` is False."""
        self.run("api", "-m", "planq.api")
        for pool, count in (("io", io), ("cpu", cpu)):
            for number in range(1, count + 1):
                self.run_worker(pool, number)
        if ready:
            self.wait_ready()

    def run_worker(
        self, pool: str, number: int = 1, *, concurrency: int | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start worker `number` of a pool, without waiting for it; `env` is for this process alone."""
        size = concurrency or (100 if pool == "io" else 2)
        return self.run(f"{pool}-{number}", "-m", "planq.worker", pool, "--concurrency", str(size), env=env)

    def run(self, name: str, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start `python ARGUMENTS` in the stack's environment (and `env`) as `name`, its output in `NAME.log`."""
        variables = {**self._env, **(env or {})}
        with self.log(name).open("ab") as log:
            if self._forks and arguments[:1] == ("-m",) and arguments[1] in FORKED and self._forks.takes(variables):
                process: subprocess.Popen[bytes] = self._forks.fork(arguments[1:], log=log, env=variables, cwd=ROOT)
            else:
                process = spawn([sys.executable, *arguments], log=log, env=variables, cwd=ROOT)
        self.processes[name] = process
        return process

    def log(self, name: str) -> Path:
        """Return the log file of the process called `name`."""
        return self._folder / f"{name}.log"

    def wait_ready(self, timeout: float = 180.0) -> None:
        """Wait until the API says that database, broker and a worker are there; fails at once when a process ends."""

        def is_ready() -> bool:
            for name, process in self.processes.items():
                if has_exited(process):
                    raise RuntimeError(f"{name} ended while it was starting:\n{last_lines(self.log(name), 40)}")
            try:
                return httpx.get(f"{self.url}/statusz", timeout=2).status_code == httpx.codes.OK
            except httpx.TransportError:
                return False

        eventually(is_ready, timeout, every=0.05, what="the stack is ready")

    def kill(self, name: str) -> None:
        """Kill one process and its children at once, as a power cut would."""
        reap(self.processes.pop(name))

    def terminate(self, name: str) -> None:
        """Ask one process to stop, as a deployment does."""
        send(self.processes[name], signal.SIGTERM)

    def end(self) -> None:
        """End all processes when a test is over: at once, for their parting takes seconds and proves nothing then.

        Only what starts MCP servers is given the time to end these.
        """
        if "PLANQ_MCP_FILE" in self._env:
            self.stop()
        while self.processes:
            _, process = self.processes.popitem()
            reap(process)

    def stop(self) -> None:
        """End all processes: politely, then for certain."""
        for process in self.processes.values():
            send(process, signal.SIGTERM)
        while self.processes:
            _, process = self.processes.popitem()
            wait_ended(process, 10.0)
            reap(process)


def step_processes(pid: int) -> list[psutil.Process]:
    """Return the processes of a `cpu` worker that run steps."""
    return psutil.Process(pid).children()


def refused_start(*program: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `python PROGRAM` with nothing but `env`, and return how it ended: for processes that refuse to start."""
    return subprocess.run(
        [sys.executable, *program],
        env={"PATH": "/usr/bin:/bin", "PLANQ_PORT": str(free_port()), **env},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
