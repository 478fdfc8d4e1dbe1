"""Reading what is used: CPU by process, commits, log, messages. A `Reading` is totals; two of them make a `Usage`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from time import monotonic
from typing import Any

import psutil
import psycopg
import redis

from tests.bench.scaling.usage import Usage

_TOTALS = """SELECT clock_timestamp(), pg_snapshot_xmax(pg_current_snapshot())::text::int8,
    (SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()),
    (SELECT coalesce(sum(fsyncs), 0)::int8 FROM pg_stat_io WHERE object = 'wal'),
    pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::int8,
    (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid())"""

_DONE = """SELECT (SELECT count(*) FROM steps WHERE finished_at > %(a)s AND finished_at <= %(b)s),
    (SELECT count(*) FROM jobs WHERE finished_at > %(a)s AND finished_at <= %(b)s)"""

# The steps of this load wait for no other, so that all of the time since their job's submission is queues'.
_PLACES = """SELECT
    coalesce(sum(extract(epoch FROM least(s.finished_at, %(b)s) - greatest(s.started_at, %(a)s))), 0)::float8,
    coalesce(percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM s.started_at - j.created_at)), 0)::float8,
    coalesce(percentile_cont(0.95) WITHIN GROUP (ORDER BY extract(epoch FROM s.started_at - j.created_at)), 0)::float8
FROM steps s JOIN jobs j ON j.id = s.job_id WHERE s.started_at < %(b)s AND s.finished_at > %(a)s"""


@dataclass(frozen=True, slots=True)
class Reading:
    """Totals at one moment; `at` counts seconds, `database_at` is the database's clock."""

    at: float
    database_at: datetime
    cpu: Mapping[str, float]
    machine_cpu: float
    xids: int
    transactions: int
    flushes: int
    wal_bytes: int
    messages: int
    connections: int
    wire_bytes: int


class Gauges:
    """Reads the totals of one running planq: its database, its broker, and the processes by name."""

    def __init__(self, database_url: str, valkey_socket: Path, pids: Mapping[str, int]) -> None:
        self._database = psycopg.connect(database_url, autocommit=True)
        self._broker = redis.Redis(unix_socket_path=str(valkey_socket), decode_responses=True)
        self._pids = dict(pids)

    def close(self) -> None:
        """Hang up."""
        self._database.close()
        self._broker.close()

    def read(self) -> Reading:
        """Return the totals of this moment."""
        now, xids, transactions, flushes, wal_bytes, connections = self._row(_TOTALS, {})
        cpu = {name: _cpu_of(pid) for name, pid in self._pids.items()} | {"client": _own_cpu()}
        return Reading(
            monotonic(),
            now,
            cpu,
            _machine_cpu(),
            xids,
            transactions,
            flushes,
            wal_bytes,
            self._messages(),
            connections,
            _wire_bytes(),
        )

    def between(self, a: Reading, b: Reading, *, slots: int = 0, tool_seconds: float = 0.0) -> Usage:
        """Return what was used from one reading to the other; every step that ran then must have ended by now.

        Precondition: the steps waited for nothing but a worker, where `slots` are given.
        """
        span = {"a": a.database_at, "b": b.database_at}
        steps, jobs = self._row(_DONE, span)
        busy, wait_p50, wait_p95 = self._row(_PLACES, span)
        cpu = {name: used - a.cpu.get(name, 0.0) for name, used in b.cpu.items()}
        return Usage(
            seconds=b.at - a.at,
            steps=steps,
            jobs=jobs,
            cpu=cpu,
            others_cpu=max(0.0, b.machine_cpu - a.machine_cpu - sum(cpu.values())),
            commits=b.xids - a.xids,
            transactions=b.transactions - a.transactions,
            flushes=b.flushes - a.flushes,
            wal_bytes=b.wal_bytes - a.wal_bytes,
            messages=b.messages - a.messages,
            connections=b.connections,
            busy_slots=busy / (b.at - a.at),
            slots=slots,
            tool_seconds=tool_seconds,
            wait_p50=wait_p50,
            wait_p95=wait_p95,
            wire_bytes=b.wire_bytes - a.wire_bytes,
        )

    def _row(self, question: str, parameters: Mapping[str, Any]) -> tuple[Any, ...]:
        row = self._database.execute(question.encode(), parameters).fetchone()
        assert row is not None
        return row

    def _messages(self) -> int:
        """Return how many messages were put into queues; each is one LPUSH (kombu 5.6, transport/redis.py)."""
        called: Any = self._broker.info("commandstats")
        return int(called.get("cmdstat_lpush", {}).get("calls", 0))


def _cpu_of(pid: int) -> float:
    """Return the CPU-seconds of a process and of all below it, those that it has reaped included."""
    top = psutil.Process(pid)
    own = _seconds([top])
    reaped = top.cpu_times()
    return own + reaped.children_user + reaped.children_system + _seconds(top.children(recursive=True))


def _seconds(processes: Iterable[psutil.Process]) -> float:
    total = 0.0
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue  # its seconds are its parent's by the next reading
        total += times.user + times.system
    return total


def _own_cpu() -> float:
    times = os.times()
    return times.user + times.system


def _machine_cpu() -> float:
    times = psutil.cpu_times()
    return sum(times) - times.idle - times.iowait - times.guest - times.guest_nice - times.steal


def _wire_bytes() -> int:
    """Return the bytes that went over the cables of the hosts, both ways; 0 without hosts."""
    counters = psutil.net_io_counters(pernic=True)
    return sum(one.bytes_sent + one.bytes_recv for name, one in counters.items() if name.startswith("host-"))
