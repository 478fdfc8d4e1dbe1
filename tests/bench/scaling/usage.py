"""What a stretch of load used, and which resource was used up by it. Pure: no I/O, no clock.

A resource is used up when no more of it was to be had: the cores of the machine, the one core that a single-threaded
process can take, the commits or the log that the disk takes, or the places for steps in the workers. The last one is
the good case: the steps' own time was the limit, and another worker adds its full share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

USED_UP = 0.85
"""A resource of which so much was used is taken to be what limits: no schedule fills one to the brim."""

TOOLS = "the tools' own time"
"""The good limit: the tools slept in every place all the time, so that every further place adds its full share."""

MB = 1_000_000.0


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What this machine can do at most, each measured alone: commits of one row a second, bytes of log a second."""

    cores: int
    commits: float
    wal_bytes: float


NOTHING_MEASURED = Ceilings(cores=1, commits=1.0, wal_bytes=1.0)
"""For an outcome without any load."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a stretch of load used; times in seconds, `cpu` in CPU-seconds by process."""

    seconds: float
    steps: int
    jobs: int
    cpu: Mapping[str, float]
    others_cpu: float
    """What the rest of the machine used meanwhile: large, and the figures are not planq's alone."""
    commits: int
    """Transactions that wrote."""
    transactions: int
    flushes: int
    wal_bytes: int
    messages: int
    connections: int
    """Connections of PostgreSQL at the end."""
    busy_slots: float = 0.0
    """Steps that were running, on average."""
    slots: int = 0
    """Places for steps in all workers."""
    tool_seconds: float = 0.0
    """What the tool of a step takes."""
    wait_p50: float = 0.0
    wait_p95: float = 0.0
    """From the submission of a job to the claim of one of its steps, which wait for no other."""
    wire_bytes: int = 0
    """Bytes over the cables of the hosts, both ways."""

    @property
    def steps_per_second(self) -> float:
        """Throughput in steps."""
        return self.steps / self.seconds

    @property
    def jobs_per_second(self) -> float:
        """Throughput in jobs."""
        return self.jobs / self.seconds

    def per_job(self, total: float) -> float:
        """Return a total by job that ended."""
        return total / max(1, self.jobs)

    def cpu_of(self, *groups: str) -> float:
        """Return the CPU-seconds of the processes whose names start so; of all when none is given."""
        return sum(used for name, used in self.cpu.items() if not groups or name.startswith(groups))


@dataclass(frozen=True, slots=True, order=True)
class Share:
    """How much of a resource was used, from 0 to 1."""

    used: float
    resource: str = field(compare=False)
    advice: str = field(compare=False)
    """What more of it is."""

    def __str__(self) -> str:
        return f"{self.resource} {self.used:.0%}"


def shares(usage: Usage, ceilings: Ceilings) -> list[Share]:
    """Return what was used of each resource, the most used one first."""
    cores = ceilings.cores * usage.seconds
    workers = max((used for name, used in usage.cpu.items() if name.startswith("io-")), default=0.0)
    found = [
        Share((usage.cpu_of() + usage.others_cpu) / cores, f"{ceilings.cores} cores", _of_cores(usage)),
        Share(usage.cpu_of("api") / usage.seconds, "one core of the API", "another API process"),
        Share(workers / usage.seconds, "one core of a worker", "another worker"),
        Share(usage.cpu_of("valkey") / usage.seconds, "one core of the broker", "a faster core for the broker"),
        Share(
            usage.commits / usage.seconds / ceilings.commits, "commits", "a disk with faster flushes for PostgreSQL"
        ),
        Share(usage.wal_bytes / usage.seconds / ceilings.wal_bytes, "log bytes", "a faster disk for PostgreSQL"),
    ]
    if usage.slots:
        slept = usage.steps * usage.tool_seconds / (usage.slots * usage.seconds)
        found.append(Share(slept, TOOLS, "another worker, or more places"))
    return sorted(found, reverse=True)


def limit(usage: Usage, ceilings: Ceilings) -> Share | None:
    """Return the resource that was used up, None when none was: then it is the time between the parts."""
    most = shares(usage, ceilings)[0]
    return most if most.used >= USED_UP else None


def _of_cores(usage: Usage) -> str:
    """Say who uses the cores most, which is what to move to a machine of its own."""
    groups = {"workers": ("io-", "cpu-"), "PostgreSQL": ("postgres",), "the API": ("api",), "the broker": ("valkey",)}
    groups["the load's client"] = ("client",)
    total = usage.cpu_of() + usage.others_cpu
    parts = [(usage.cpu_of(*names) / total, name) for name, names in groups.items()]
    parts.append((usage.others_cpu / total, "other programs"))
    told = ", ".join(f"{name} {part:.0%}" for part, name in sorted(parts, reverse=True) if part >= 0.01)
    return f"more cores ({told})"


def efficiency(usage: Usage, fewest: Usage, times: float) -> float:
    """Return the throughput as a part of `times` that of the fewest workers; `times` as many had it."""
    return usage.steps_per_second / (times * fewest.steps_per_second)
