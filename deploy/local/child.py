"""Starts and stops a child process that may not outlive planq.

Every child has its own session, so that Ctrl-C reaches planq alone, and a parent-death signal (`launcher.py`), which
the kernel ties to the forking thread: call `spawn` from a thread that lives as long as the child.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import IO

from planq.shared.platform import launcher

_SYSTEMS_OWN = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "LANG", "LANGUAGE", "TZ"),
        *("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    }
)


def bare_environment() -> dict[str, str]:
    """Return what any program needs of our environment, by name: nothing of it is a secret, or planq's."""
    return {name: value for name, value in os.environ.items() if name in _SYSTEMS_OWN or name.startswith("LC_")}


LAUNCHER = Path(launcher.__file__)


@dataclass(frozen=True, slots=True)
class RunAs:
    """The identity of a child: a `way` of the launcher, the ids that it then has, and the `owner` of its files."""

    way: str
    uid: int
    gid: int
    owner: tuple[int, int]


def launched(argv: Sequence[str], parting: signal.Signals, identity: RunAs | None = None) -> list[str]:
    """Return the command that runs `argv` tied to this process: it receives `parting` when this process ends."""
    command = [sys.executable, "-I", "-S", str(LAUNCHER), "--parent", str(os.getpid()), "--signal", str(int(parting))]
    if identity is not None:
        command += ["--identity", identity.way, "--uid", str(identity.uid), "--gid", str(identity.gid)]
    return [*command, "--", *argv]


def spawn(
    argv: Sequence[str],
    *,
    log: IO[bytes] | int,
    parting: signal.Signals = signal.SIGTERM,
    env: Mapping[str, str] | None = None,
    identity: RunAs | None = None,
    keep_open: Sequence[int] = (),
    cwd: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start `argv` in its own session with its output in `log`; it gets `parting` when the calling thread ends."""
    return subprocess.Popen(  # noqa: S603 - the command comes from planq's own code
        launched(argv, parting, identity),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=None if env is None else dict(env),
        pass_fds=tuple(keep_open),
        cwd=cwd,
        start_new_session=True,
    )


def has_exited(process: subprocess.Popen[bytes]) -> bool:
    """Say whether a child of `spawn` has exited, without reaping it: its pid stays reserved until `reap`."""
    return exit_status(process) is not None


def exit_status(process: subprocess.Popen[bytes]) -> int | None:
    """Return an exited child's code (negative: its signal) without reaping it; None while it runs."""
    if process.returncode is not None:
        return process.returncode
    found = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def wait_ended(process: subprocess.Popen[bytes], patience: float) -> bool:
    """Wait at most `patience` seconds for the child to exit; say whether it did. It is not reaped."""
    give_up = monotonic() + patience
    while not has_exited(process):
        if monotonic() >= give_up:
            return False
        sleep(0.02)
    return True


def send(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to a child that has not been reaped yet; nothing happens to a reaped one."""
    if process.returncode is None:
        os.kill(process.pid, number)


def reap(process: subprocess.Popen[bytes]) -> int:
    """Kill the child's process group while its number is reserved, then reap the child; return its code."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def stop(process: subprocess.Popen[bytes], *steps: tuple[signal.Signals, float]) -> int:
    """End a child by steps of a signal and seconds to wait, then kill its group; return its exit code."""
    for number, patience in steps:
        if has_exited(process):
            break
        send(process, number)
        wait_ended(process, patience)
    return reap(process)
