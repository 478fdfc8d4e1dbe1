"""Reads from /proc which process this one is and which other workers of this machine have ended; lowers priority.

Only proof by the kernel counts (`planq.shared.kernel.processes`). If /proc belongs to another pid namespace, hides
other users' processes or is missing, no worker counts as ended.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from planq.shared.kernel.processes import NoStatus, Process, ProcessStatus, has_gone, process_has_ended

_DEAD = frozenset("ZXx")
"""States of a thread that no longer runs (proc_pid_stat(5))."""

_NICE = 5
"""About a third of the processor's time while another process wants it as well."""


def give_way() -> None:
    """Let other processes of the machine have the processor first."""
    os.nice(_NICE)
    # Where Linux weighs sessions, niceness counts within one alone. A terminal's is not planq's to change.
    if os.getsid(0) in (os.getpid(), os.getppid()):
        with contextlib.suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(_NICE), "ascii")


class Host:
    """This machine as `proc` shows it. Reading takes a few small files and no lock of planq's."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self.own = self._own()

    @property
    def place(self) -> str | None:
        """The place of this process (`Process.place`), None if unknown."""
        return self.own.place if self.own is not None else None

    def has_gone(self, text: str) -> bool:
        """Return whether a worker's process and its group have certainly ended; False when in doubt."""
        try:
            process = Process.parse(text)
        except ValueError:
            return False
        if process.place != self.place:
            return False
        seen = self._look(process.pid)
        return process_has_ended(process, seen) and has_gone(process, seen, self._look_at_group(process.group))

    def _own(self) -> Process | None:
        try:
            boot = (self._proc / "sys/kernel/random/boot_id").read_text("ascii").strip()
            pids = (self._proc / "self/ns/pid").stat().st_ino
            lines = (self._proc / "self/status").read_text("utf-8", "replace").splitlines()
            names = next(line.split()[1:] for line in lines if line.startswith("NSpid:"))
            _, group, started = self._read(os.getpid())
        except (OSError, ValueError, StopIteration):
            return None
        try:
            times = (self._proc / "self/ns/time").stat().st_ino
        except OSError:
            times = 0  # before Linux 5.6
        # A /proc of an outer pid namespace would show other processes under these numbers.
        if names != [str(os.getpid())] or group < 1 or not boot or " " in boot:
            return None
        return Process(boot, pids, times, os.getpid(), started, group)

    def _look(self, pid: int) -> ProcessStatus | NoStatus:
        try:
            os.kill(pid, 0)  # this answers for every process, whatever /proc hides
        except ProcessLookupError:
            return NoStatus.ABSENT
        except OSError:
            pass
        try:
            state, _, started = self._read(pid)
            return self._sight(pid, state, started)
        except (OSError, ValueError):
            return NoStatus.HIDDEN

    def _look_at_group(self, group: int) -> list[ProcessStatus] | NoStatus:
        """Look at all members of a process group: what a worker has forked is there, unless it left the group."""
        try:
            if group > 1:  # kill(2) understands -1 as everybody
                os.killpg(group, 0)
        except ProcessLookupError:
            return NoStatus.ABSENT
        except OSError:
            pass
        try:
            self._read(1)  # else /proc shows only what belongs to this user (hidepid)
            seen = [self._member(int(name), group) for name in os.listdir(self._proc) if name.isdigit()]
        except (OSError, ValueError):
            return NoStatus.HIDDEN
        return [member for member in seen if member is not None]

    def _member(self, pid: int, group: int) -> ProcessStatus | None:
        try:
            state, its_group, started = self._read(pid)
            if its_group != group:
                return None
            return self._sight(pid, state, started)
        except (FileNotFoundError, ProcessLookupError):
            return None  # it has ended meanwhile

    def _sight(self, pid: int, state: str, started: int) -> ProcessStatus:
        # The first thread may end before the others.
        return ProcessStatus(started, state not in _DEAD or len(os.listdir(self._proc / str(pid) / "task")) > 1)

    def _read(self, pid: int) -> tuple[str, int, int]:
        """Return state, process group and start; the name before them may contain anything. Raises OSError."""
        with open(f"{self._proc}/{pid}/stat", "rb") as file:
            text = file.read().decode("utf-8", "replace")
        fields = text[text.rindex(")") + 2 :].split()
        return fields[0], int(fields[2]), int(fields[19])
