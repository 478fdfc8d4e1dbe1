"""The outcome as tables: for a terminal, and as Markdown for docs/benchmarks.md. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.bench.figures import Bound, Figure
from tests.bench.scaling.forecast import Cost, Need, need
from tests.bench.scaling.usage import MB, TOOLS, Ceilings, Usage, efficiency, limit, shares

GOOD_EFFICIENCY = 0.9
RATES = (1_000, 10_000)
KB = 1_000.0

_TABLES = 5
"""How many tables the cost names."""


@dataclass(frozen=True, slots=True)
class Table:
    """A title and rows of words; the first row is the head."""

    title: str
    rows: Sequence[Sequence[str]]

    def text(self) -> str:
        """Return aligned columns: the first one to the left, the others to the right, the last one as it is."""
        widths = [max(len(row[column]) for row in self.rows) for column in range(len(self.rows[0]))]
        lines = []
        for row in self.rows:
            cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
            cells[0], cells[-1] = row[0].ljust(widths[0]), row[-1]
            lines.append("  ".join(cells).rstrip())
        return "\n".join([self.title, *(f"  {line}" for line in lines)])

    def markdown(self) -> str:
        """Return a Markdown table under its title."""
        head, *rows = ["| " + " | ".join(row) + " |" for row in self.rows]
        return "\n".join([f"{self.title}:", "", head, "|" + "---|" * len(self.rows[0]), *rows])


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was measured, by number of workers: steps that sleep, here and on hosts, and jobs that wait for nothing.

    `no_hosts` says why there are none. `idle` is one second of `idle_workers` workers that have nothing to do.
    """

    ceilings: Ceilings
    sleeping: Mapping[str, Mapping[int, Usage]] = field(default_factory=dict)
    no_hosts: str | None = None
    working: Mapping[int, Usage] = field(default_factory=dict)
    stored: Mapping[str, float] = field(default_factory=dict)
    """Bytes that a job leaves, by table."""
    idle: Usage | None = None
    idle_workers: int = 0
    removal: Usage | None = None

    @property
    def fullest(self) -> Usage:
        """The load with the most jobs a second; there must be one."""
        return max(self.working.values(), key=lambda usage: usage.jobs_per_second)

    @property
    def is_linear(self) -> bool:
        """True when throughput grew with the workers wherever nothing but the tools' own time was used up."""
        return all(figure.is_good for figure in self.figures())

    def figures(self) -> list[Figure]:
        """Return how throughput grew; there is no bound where something else than the tools' own time was used up."""
        found = []
        for where, runs in self.sleeping.items():
            fewest = min(runs)
            for count, usage in sorted(runs.items()):
                if count > fewest:
                    grown = efficiency(usage, runs[fewest], count / fewest)
                    reached = limit(usage, self.ceilings)
                    is_free = reached is None or reached.resource == TOOLS
                    bounds = (Bound(GOOD_EFFICIENCY, at_most=False),) if is_free else ()
                    name = f"steps/s of {count} workers {where}"
                    note = _limit(usage, self.ceilings)
                    found.append(Figure(name, grown, "× linear", bounds=bounds, more_is_better=True, note=note))
        return found

    def tables(self) -> list[Table]:
        """Return everything that was measured."""
        found = []
        if self.sleeping:
            found.append(_sleeping(self.sleeping, self.ceilings))
        if self.working:
            found += [_working(self.working, self.ceilings), _cost(self)]
            cost = Cost.of(self.fullest, sum(self.stored.values()), self.removal)
            found.append(_needs(cost, [need(cost, rate) for rate in RATES], self.ceilings))
        return found


def _sleeping(sleeping: Mapping[str, Mapping[int, Usage]], ceilings: Ceilings) -> Table:
    rows = [
        [
            "workers",
            "steps/s",
            "of linear",
            "places busy",
            "wait p50",
            "p95",
            "CPU",
            "commits/s",
            "log MB/s",
            "messages/s",
            "wire MB/s",
            "limit",
        ]
    ]
    for where, runs in sleeping.items():
        alone = runs[min(runs)]
        for count, usage in sorted(runs.items()):
            rows.append(
                [
                    f"{count} {where}",
                    f"{usage.steps_per_second:.1f}",
                    f"{efficiency(usage, alone, count / min(runs)):.2f}",
                    f"{usage.busy_slots / max(1, usage.slots):.0%}",
                    f"{usage.wait_p50:.2f} s",
                    f"{usage.wait_p95:.2f} s",
                    _all_cpu(usage, ceilings),
                    *_rates(usage),
                    f"{usage.wire_bytes / usage.seconds / MB:.2f}" if usage.wire_bytes else "",
                    _limit(usage, ceilings),
                ]
            )
    return Table("Steps that wait, more of them ready than there are places", rows)


def _working(working: Mapping[int, Usage], ceilings: Ceilings) -> Table:
    rows = [["workers", "jobs/s", "CPU", "commits/s", "log MB/s", "messages/s", "limit"]]
    for count, usage in sorted(working.items()):
        rows.append(
            [
                str(count),
                f"{usage.jobs_per_second:.0f}",
                _all_cpu(usage, ceilings),
                *_rates(usage),
                _limit(usage, ceilings),
            ]
        )
    return Table(
        "Jobs of planning, a chain of 3 steps without waiting, and answering: all that one machine does", rows
    )


def _cost(outcome: Outcome) -> Table:
    cost = Cost.of(outcome.fullest, sum(outcome.stored.values()), outcome.removal)
    rows = [["one such job costs", ""]]
    for name, seconds in (
        ("API", cost.api),
        ("workers", cost.workers),
        ("PostgreSQL", cost.postgres),
        ("broker", cost.broker),
        ("all of it", cost.cpu),
    ):
        rows.append([f"CPU, {name}", f"{seconds * 1000:.2f} ms"])
    rows += [
        ["commits that write", f"{cost.commits:.1f}"],
        ["transactions, reading ones too", f"{cost.transactions:.1f}"],
        ["flushes of the log, shared under load", f"{cost.flushes:.1f}"],
        ["broker messages", f"{cost.messages:.1f}"],
        ["log written", f"{cost.wal_bytes / KB:.1f} kB"],
        ["stored, indexes included", f"{cost.stored_bytes / KB:.1f} kB"],
        *_stored(outcome.stored),
        ["connections meanwhile, of all processes", f"{outcome.fullest.connections}"],
    ]
    if outcome.removal is not None:
        rows += [
            ["its removal later: PostgreSQL's CPU", f"{cost.removal * 1000:.2f} ms"],
            ["  log written", f"{cost.removal_wal_bytes / KB:.1f} kB"],
            ["  removed by one connection", f"{outcome.removal.jobs_per_second:,.0f} jobs/s"],
        ]
    idle = outcome.idle
    if idle is not None:
        workers = outcome.idle_workers
        rows += [
            ["an idle io worker: its CPU", f"{idle.cpu_of('io-') / idle.seconds / workers * 1000:.1f} ms/s"],
            ["  PostgreSQL's CPU for it", f"{idle.cpu_of('postgres') / idle.seconds / workers * 1000:.1f} ms/s"],
            ["  transactions", f"{idle.transactions / idle.seconds / workers:.1f} /s"],
            ["  connections", f"{idle.connections / workers:.1f}"],
        ]
    return Table("Cost", rows)


def _stored(stored: Mapping[str, float]) -> list[list[str]]:
    """Return the rows of the tables that hold the most."""
    most = sorted(stored.items(), key=lambda one: -one[1])[:_TABLES]
    return [[f"  of these in {table}", f"{size / KB:.1f} kB"] for table, size in most if size > 0]


def _needs(cost: Cost, needs: Sequence[Need], ceilings: Ceilings) -> Table:
    rows = [["what it takes", *(f"{one.jobs_per_second:,.0f} jobs/s" for one in needs)]]
    for name, cells in (
        ("API processes (a core each)", [f"{one.api_processes}" for one in needs]),
        ("io workers (a core each)", [f"{one.worker_processes}" for one in needs]),
        ("PostgreSQL, cores", [f"{one.postgres_cores}" for one in needs]),
        ("broker, cores", [f"{one.broker_cores}" for one in needs]),
        ("commits/s", [_of(one.commits, ceilings.commits) for one in needs]),
        ("messages/s", [f"{one.messages:,.0f}" for one in needs]),
        ("log MB/s", [_of(one.wal_mb, ceilings.wal_bytes / MB) for one in needs]),
        ("disk, GB a day", [f"{one.disk_gb_per_day:,.0f}" for one in needs]),
    ):
        rows.append([name, *cells])
    return Table(
        "From these, with no core planned above 70 % (in brackets: of what this machine's PostgreSQL did)", rows
    )


def _of(wanted: float, ceiling: float) -> str:
    return f"{wanted:,.0f} ({wanted / ceiling:.2f} ×)"


def _rates(usage: Usage) -> list[str]:
    return [
        f"{usage.commits / usage.seconds:.0f}",
        f"{usage.wal_bytes / usage.seconds / MB:.2f}",
        f"{usage.messages / usage.seconds:.0f}",
    ]


def _all_cpu(usage: Usage, ceilings: Ceilings) -> str:
    return f"{(usage.cpu_of() + usage.others_cpu) / usage.seconds / ceilings.cores:.0%}"


def _limit(usage: Usage, ceilings: Ceilings) -> str:
    reached = limit(usage, ceilings)
    if reached is None:
        return f"none used up; most used: {shares(usage, ceilings)[0]}"
    return f"{reached}: {reached.advice}"
