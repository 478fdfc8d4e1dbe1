"""The identity of a worker's process, and the proof from kernel data that this process has ended. Pure.

A pid alone identifies no process: the kernel reuses pids, and each boot, pid namespace and time namespace has its own
pids and clock. So a worker stores all of these beside its lease, and a worker in another namespace concludes
nothing from them. A process that cannot be seen counts as alive: its lease decides.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, auto


@dataclass(frozen=True, slots=True)
class Process:
    """One process of one machine: `started` in clock ticks of its boot, `group` its process group.

    `boot` is the boot's id; `pids` and `times` number its pid and time namespace (`times` 0: the kernel has none).
    """

    boot: str
    pids: int
    times: int
    pid: int
    started: int
    group: int

    @property
    def place(self) -> str:
        """Where its numbers mean something: the beginning of the `text` of every process there, and of no other."""
        return f"{self.boot} {self.pids} {self.times} "

    @property
    def text(self) -> str:
        return f"{self.place}{self.pid} {self.started} {self.group}"

    @classmethod
    def parse(cls, text: str) -> Process:
        """Return the process of a `text`; raises ValueError for anything else."""
        boot, pids, times, pid, started, group = text.split(" ")
        found = cls(boot, int(pids), int(times), int(pid), int(started), int(group))
        if found.pid < 1 or found.group < 1:
            raise ValueError(f"expected the numbers of a process and its group, found {text[:200]!r}")
        return found


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """What the kernel reports of a pid. `is_running`: a thread of the process lives, be it stopped or asleep."""

    started: int
    is_running: bool


class NoStatus(Enum):
    """Why the kernel reports no status of a pid."""

    ABSENT = auto()
    """No process has this pid."""

    HIDDEN = auto()
    """A process may have this pid, but the kernel hides it from this one."""


def process_has_ended(process: Process, seen: ProcessStatus | NoStatus) -> bool:
    """True when what is seen under its number proves that the process runs no more.

    The number may be another's by now: the start decides. One that has ended and that nobody has waited for (a
    zombie) runs no more; one that is stopped does.
    """
    if isinstance(seen, NoStatus):
        return seen is NoStatus.ABSENT
    return seen.started != process.started or not seen.is_running


def has_gone(process: Process, seen: ProcessStatus | NoStatus, group: Collection[ProcessStatus] | NoStatus) -> bool:
    """True when neither the process nor anybody in its group, what it has forked among them, can act any more."""
    if not process_has_ended(process, seen):
        return False
    if isinstance(group, NoStatus):
        return group is NoStatus.ABSENT
    return not any(member.is_running for member in group)
