"""B1 to B4: planq and its peers do the same work, in turns, on the same database and broker servers.

B1 one job, from the request to the answer; B1b with a plan of the caller's, in one request. B2 many such jobs at
once. B3 a fan-out of waiting steps and its join. B4 a long chain. The tools of B1, B2 and B4 are `pure`, whose steps
planq fuses; those of B1r, B2r and B4r are ordinary ones, which read and write by turns. A repetition is one turn of
everybody, and begins with another subject each time; a first one does not count. Two limits take their turns too: a
commit of one row, and a Celery message of a task that does nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from time import perf_counter, process_time
from typing import Protocol

import psycopg

from tests.bench.context import Context
from tests.bench.figures import BEST, Bound, Figure
from tests.bench.jobs import cpu_seconds, processes
from tests.bench.peers import environment, subjects
from tests.bench.peers.orders import WAIT_SECONDS
from tests.bench.server_time import server_time
from tests.bench.submitting import Planq
from tests.support.stack import Stack

MS = 1_000.0
PLANQ, COMMIT, MESSAGE, IDEAL = "planq", "one commit", "a Celery message", "ideal"
COMMITS, MESSAGES = 100, 20
"""How many of each limit one repetition measures."""

NOTE = (
    "planq: 1 API, 2 `io` workers, 1 idle `cpu` worker, default settings (task events off), over HTTP. Celery: a "
    "chain of five tasks, prefork 2, results in the same Valkey (B3: a chord on 128 threads). LangGraph "
    "(PostgresSaver, durability sync; B14: `create_agent`) and DBOS run in the client's process, without HTTP or "
    "broker; B2 in two processes."
)

CPU_NOTE = "API, workers, PostgreSQL, Valkey and the client of this benchmark."


class Subject(Protocol):
    """Whoever does the work."""

    def run(self, workload: str, *, size: int, times: int) -> list[float]:
        """Do a workload `times` times and return the seconds of each."""
        ...


@dataclass(frozen=True, slots=True)
class Workload:
    """What everybody is to do: `size` is how much of it, `times` how often in a repetition.

    `value` turns a run's seconds into the figure, given the size; `limits` are those it is compared with.
    """

    name: str
    title: str
    unit: str
    size: int
    times: int
    value: Callable[[float, int], float]
    bounds: tuple[Bound, ...]
    hopes: tuple[Bound, ...]
    limits: tuple[str, ...] = (COMMIT,)
    more_is_better: bool = False


def workloads(context: Context) -> list[Workload]:
    """Return what is to be measured in this run."""
    pick = context.either
    pure = [
        Workload(
            "B1",
            "B1 one job, request to answer: p50",
            "ms",
            1,
            pick(40, 20),
            lambda seconds, _: seconds * MS,
            (Bound(0.8, "Celery"),),
            (Bound(0.5, "Celery"),),
            (COMMIT, MESSAGE),
        ),
        Workload(
            "B1b",
            "B1b the same as a caller's plan, one request",
            "ms",
            1,
            pick(40, 20),
            lambda seconds, _: seconds * MS,
            (Bound(0.5, "Celery"),),
            (Bound(0.3, "Celery"),),
            (COMMIT, MESSAGE),
        ),
        Workload(
            "B2",
            "B2 many such jobs at once",
            "jobs/s",
            pick(500, 150),
            1,
            lambda seconds, jobs: jobs / seconds,
            (Bound(2.0, "Celery", at_most=False),),
            (Bound(3.0, "Celery", at_most=False),),
            more_is_better=True,
        ),
        Workload(
            "B3",
            "B3 100 steps of 50 ms, then a join",
            "ms",
            100,
            pick(3, 2),
            lambda seconds, _: seconds * MS,
            (Bound(2.0, IDEAL), Bound(1.0, BEST)),
            (Bound(1.4, IDEAL),),
            (IDEAL,),
        ),
        Workload(
            "B4",
            "B4 a chain of 100 steps: each",
            "ms",
            100,
            pick(2, 1),
            lambda seconds, steps: seconds * MS / steps,
            (Bound(0.5, BEST),),
            (Bound(2.5, COMMIT),),
        ),
    ]
    one, _, many, _, chain = pure
    ordinary = [
        replace(one, name="B1r", title="B1r one job of ordinary tools: p50"),
        replace(
            many,
            name="B2r",
            title="B2r many such jobs at once",
            bounds=(Bound(2.5, "Celery", at_most=False),),
            hopes=(Bound(4.5, "Celery", at_most=False),),
        ),
        replace(chain, name="B4r", title="B4r a chain of 100 such steps: each", bounds=(Bound(0.6, BEST),)),
    ]
    return [workload for workload in (*ordinary, *pure) if context.wants(workload.name)]


@dataclass
class Taken:
    """The figures of the repetitions, by who made them."""

    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, who: str, value: float) -> None:
        """Keep a repetition's figure."""
        self.values.setdefault(who, []).append(value)

    def medians(self) -> dict[str, float]:
        """Return everybody's median."""
        return {who: statistics.median(values) for who, values in self.values.items()}


def measure(context: Context) -> Iterator[Figure]:
    """Measure the workloads that are asked for, one after the other, everybody in turns."""
    context.about |= environment.versions()
    with _everybody(context) as (running, planq, peers, limits):
        for workload in workloads(context):
            yield compared(context, workload, {PLANQ: planq, **peers}, limits)
            if planq.cpu_of_jobs:
                yield _cpu(workload.name, planq)
                planq.cpu_of_jobs.clear()
            if workload.name == "B2":
                yield server_time(context, running.env["DATABASE_URL"], planq, workload.size)


def _cpu(name: str, planq: Planq) -> Figure:
    """Return the CPU of a job of a workload of many, without the turn that does not count."""
    counted = [seconds * MS for seconds in planq.cpu_of_jobs[1:]]
    return Figure(
        f"{name} CPU of a job, all processes", statistics.median(counted), "ms", samples=counted, note=CPU_NOTE
    )


@contextmanager
def _everybody(context: Context) -> Iterator[tuple[Stack, Planq, dict[str, subjects.Peer], dict[str, Subject]]]:
    """Start planq and the peers; yields planq's processes, it as a subject, them, and what measures the limits."""
    with ExitStack() as stack:
        peers = stack.enter_context(subjects.running(context))
        running = stack.enter_context(context.planq())
        roots = processes(context, running)
        planq = Planq(running.url, lambda: cpu_seconds(roots) + process_time())
        commits = stack.enter_context(_Commits.on(context.create_database()))
        yield running, planq, peers, {COMMIT: commits, MESSAGE: peers["Celery"]}


def compared(
    context: Context, workload: Workload, everybody: Mapping[str, Subject], limits: Mapping[str, Subject]
) -> Figure:
    """Let everybody do a workload in turns, `context.repeats` times after one that does not count; return its row."""
    context.say(f"  {workload.title}")
    taken, reached = Taken(), Taken()
    names = list(everybody)
    for repetition in range(context.repeats + 1):
        start = repetition % len(names)
        for name in (*names[start:], *names[:start]):
            seconds = everybody[name].run(workload.name, size=workload.size, times=workload.times)
            if repetition:
                taken.add(name, workload.value(statistics.median(seconds), workload.size))
        for name in workload.limits:
            if repetition:
                reached.add(name, _reached(name, limits, workload))
    return figure(workload, taken, reached)


def _reached(name: str, limits: Mapping[str, Subject], workload: Workload) -> float:
    """Return what a limit would make of one unit of the workload: a job, a step."""
    if name == IDEAL:
        return WAIT_SECONDS * MS
    seconds = limits[name].run("message", size=1, times=COMMITS if name == COMMIT else MESSAGES)
    return workload.value(statistics.median(seconds), 1)


def figure(workload: Workload, taken: Taken, reached: Taken) -> Figure:
    """Return a workload's row: the medians of everybody and of the limits."""
    medians = taken.medians()
    return Figure(
        workload.title,
        medians.pop(PLANQ),
        workload.unit,
        peers=medians,
        limits=reached.medians(),
        bounds=workload.bounds,
        hopes=workload.hopes,
        more_is_better=workload.more_is_better,
        samples=taken.values[PLANQ],
        note=NOTE,
    )


class _Commits:
    """The smallest thing that is durable: one row, inserted and committed by a prepared statement."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection

    @classmethod
    @contextmanager
    def on(cls, database_url: str) -> Iterator[_Commits]:
        """Use a table of its own in a database."""
        with psycopg.connect(database_url, autocommit=True) as connection:
            connection.execute(
                "CREATE TABLE commits (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, at timestamptz)"
            )
            yield cls(connection)

    def run(self, workload: str, *, size: int, times: int) -> list[float]:
        """Insert `times` rows of `size`, each in a transaction; return the seconds of each."""
        return [self._one() for _ in range(times)]

    def _one(self) -> float:
        begun = perf_counter()
        self._connection.execute("INSERT INTO commits (at) VALUES (now())", prepare=True)
        return perf_counter() - begun
