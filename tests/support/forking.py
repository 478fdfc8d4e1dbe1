"""Starts planq's processes as forks of a process that has imported their libraries (`tests/support/forkserver.py`).

The fork server starts when it is first asked for, one per test session, and ends with it. What `fork` returns is a
child of the test process in every respect; the functions of `planq.deploy.local.child` do with it what they do with
one of `spawn`.
"""

from __future__ import annotations

import atexit
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from tests.support.forkserver import CLONE, MESSAGE_BYTES

READ_AT_START = ("PYTHON", "LD_", "MALLOC_", "GLIBC_", "PROMETHEUS_", "OPENSSL_", "LC_", "LANG", "TZ")
"""Variables that the interpreter, the C library or a library reads once, so that a fork would not hear of them."""


class Forked(subprocess.Popen[bytes]):
    """A child that another process has forked for this one: what `Popen` knows of a child, without starting it."""

    def __init__(self, argv: Sequence[str], pid: int) -> None:
        # The fields that Popen's own `__init__` sets and its `poll`, `wait` and `__del__` read.
        self.args = list(argv)
        self.pid = pid
        self.returncode = None
        self.stdin = self.stdout = self.stderr = None
        self._waitpid_lock = threading.Lock()
        self._sigint_wait_secs = 0.25
        self._child_created = True


class ForkServer:
    """The running fork server. Its forks die with the thread that made this object."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MESSAGE_BYTES)
        self._environment = dict(os.environ)
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PLANQ_", "CELERY_"))}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.forkserver", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                env=clean,
                pass_fds=(theirs.fileno(),),
                cwd=Path(__file__).parents[2],
                start_new_session=True,
            )
        self._answer()

    def takes(self, env: Mapping[str, str]) -> bool:
        """Say whether a fork can have this environment: what is read once must be what the server was started in."""

        def early(variables: Mapping[str, str]) -> dict[str, str]:
            return {name: value for name, value in variables.items() if name.startswith(READ_AT_START)}

        return early(env) == early(self._environment)

    def fork(self, argv: Sequence[str], *, log: IO[bytes], env: Mapping[str, str], cwd: Path) -> Forked:
        """Run `python -m ARGV` in its own session, its output in `log`; it gets SIGTERM when this process ends."""
        request = {
            "argv": list(argv),
            "env": dict(env),
            "cwd": str(cwd),
            "parent": os.getpid(),
            "parting": int(signal.SIGTERM),
        }
        with self._lock:
            socket.send_fds(self._control, [json.dumps(request).encode()], [log.fileno()])
            return Forked(argv, self._answer()["pid"])

    def close(self) -> None:
        """End the server; its forks live on."""
        self._control.close()
        self._process.wait()

    def _answer(self) -> dict[str, int]:
        answer = self._control.recv(MESSAGE_BYTES)
        if not answer:
            raise RuntimeError(f"the fork server has ended with {self._process.wait()}; standard error says why")
        told: dict[str, int] = json.loads(answer)
        return told


_servers: list[ForkServer] = []


def fork_server() -> ForkServer | None:
    """Return the session's fork server, started if need be; None where there is none: not Linux, or a rare machine.

    The first call must come from the main thread: the kernel ends the forks together with the thread that made it.
    """
    if sys.platform != "linux" or platform.machine() not in CLONE:
        return None
    if not _servers:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("the fork server must be started in the main thread: call fork_server() there first")
        _servers.append(ForkServer())
        atexit.register(_servers[0].close)
    return _servers[0]
