"""What more jobs a second would need, from what one job was measured to cost. Pure.

It multiplies, and leaves room: no core is planned for more than `FULL` of its time. What it cannot know is what gets
cheaper under load (completions share commits) and what gets dearer (a cache that no longer holds the tables).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from tests.bench.scaling.usage import MB, Usage

FULL = 0.7
"""How much of a core a plan may count on: above it, waiting times grow quickly."""

DAY_SECONDS = 86_400
GB = 1e9


@dataclass(frozen=True, slots=True)
class Cost:
    """What one job costs: CPU-seconds by part, writes, messages, bytes of log, bytes that stay stored."""

    api: float
    workers: float
    postgres: float
    broker: float
    commits: float
    transactions: float
    flushes: float
    messages: float
    wal_bytes: float
    stored_bytes: float
    removal: float = 0.0
    """CPU-seconds of PostgreSQL for its removal, when it has been kept for long enough."""
    removal_wal_bytes: float = 0.0

    @classmethod
    def of(cls, usage: Usage, stored_bytes: float, removal: Usage | None = None) -> Cost:
        """Return the cost of a job during a stretch of load, and of its removal where that was measured."""
        return cls(
            api=usage.per_job(usage.cpu_of("api")),
            workers=usage.per_job(usage.cpu_of("io-", "cpu-")),
            postgres=usage.per_job(usage.cpu_of("postgres")),
            broker=usage.per_job(usage.cpu_of("valkey")),
            commits=usage.per_job(usage.commits),
            transactions=usage.per_job(usage.transactions),
            flushes=usage.per_job(usage.flushes),
            messages=usage.per_job(usage.messages),
            wal_bytes=usage.per_job(usage.wal_bytes),
            stored_bytes=stored_bytes,
            removal=removal.per_job(removal.cpu_of("postgres")) if removal else 0.0,
            removal_wal_bytes=removal.per_job(removal.wal_bytes) if removal else 0.0,
        )

    @property
    def cpu(self) -> float:
        """CPU-seconds of all parts until its end."""
        return self.api + self.workers + self.postgres + self.broker


@dataclass(frozen=True, slots=True)
class Need:
    """What a rate of jobs needs; `worker_processes` and `api_processes` are processes of one core each."""

    jobs_per_second: float
    api_processes: int
    worker_processes: int
    postgres_cores: int
    broker_cores: int
    commits: float
    flushes: float
    messages: float
    wal_mb: float
    disk_gb_per_day: float


def need(cost: Cost, jobs_per_second: float) -> Need:
    """Return what so many jobs a second need."""

    def cores(seconds: float) -> int:
        return max(1, ceil(jobs_per_second * seconds / FULL))

    return Need(
        jobs_per_second=jobs_per_second,
        api_processes=cores(cost.api),
        worker_processes=cores(cost.workers),
        postgres_cores=cores(cost.postgres + cost.removal),
        broker_cores=cores(cost.broker),
        commits=jobs_per_second * cost.commits,
        flushes=jobs_per_second * cost.flushes,
        messages=jobs_per_second * cost.messages,
        wal_mb=jobs_per_second * (cost.wal_bytes + cost.removal_wal_bytes) / MB,
        disk_gb_per_day=jobs_per_second * cost.stored_bytes * DAY_SECONDS / GB,
    )
