"""The metrics of `/metrics`: requests of this process, and, from one process, those of the whole installation.

Prometheus scrapes every API process and sums up. So only one process has the *report*, by a lease: the counts of the
database and of workers. The first one that is scraped takes it, and keeps it while it lives and is scraped. A counter
of the report has one series for all processes, so it never falls when a worker ends or another process reports.

Every application has its own registry, so that two of them in one process do not clash.
"""

from __future__ import annotations

import contextlib
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from itertools import accumulate
from time import monotonic
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import Scope

from planq.api.streams.followers import Streams
from planq.api.streams.waiting import Waiters
from planq.shared.agentic.tools.definition import LATENCIES_SECONDS
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import TERMINAL_JOB, TERMINAL_STEP, JobStatus, Outcome, StepStatus, pools_of
from planq.shared.kernel.store.worker_registry import WorkerRegistry
from planq.shared.platform.database import Row
from planq.shared.platform.errors import DatabaseUnavailable
from planq.shared.platform.timers import every
from planq.shared.subjects.events.store import EventLog
from planq.shared.subjects.insights.offering import InsightGroup
from planq.shared.subjects.metrics.store import TallyStore
from planq.shared.subjects.webhooks.rules import UNFINISHED_DELIVERY

Counted = Mapping[tuple[str, ...], Decimal]
"""Numbers that only grow, by name and labels."""

TIMES_SECONDS = ("0.05", "0.1", "0.25", "0.5", "1", "2.5", "5", "10", "30", "60", "300", "1800", "7200")
"""Upper bounds of the times that are told apart, as `planq_bucket` has them."""

_TOOL_SECONDS = tuple(map(str, LATENCIES_SECONDS))
_OUTCOMES = tuple(map(str, Outcome))


class CountedName(NamedTuple):
    """How a count is shown: its metric and meaning, its labels, and which values of its only label always show."""

    metric: str
    meaning: str
    labels: tuple[str, ...] = ()
    always: tuple[str, ...] = ()


COUNTERS: Mapping[str, CountedName] = {
    "jobs_created": CountedName("planq_jobs_created", "Jobs that were submitted, child jobs, too.", ("priority",)),
    "tasks_created": CountedName("planq_tasks_created", "Tasks: jobs that `GET /tasks` lists, turns among them."),
    "tasks_ended": CountedName("planq_tasks_ended", "Tasks that have ended, by outcome.", ("outcome",), _OUTCOMES),
    "turns_ended": CountedName(
        "planq_turns_ended", "Turns of conversations that have ended.", ("outcome",), _OUTCOMES
    ),
    "plans_created": CountedName(
        "planq_plans_created",
        "Plans of one round each that were accepted, or refused with their defects.",
        ("outcome",),
        ("accepted", "refused"),
    ),
    "insights_chosen": CountedName(
        "planq_insights_chosen",
        "Jobs that have ended for which insights were chosen: offered to the planner, held out, or in shadow.",
        ("side",),
        tuple(map(str, InsightGroup)),
    ),
    "steps_ended": CountedName(
        "planq_steps_ended",
        "Steps of jobs that have ended, by what they came to; without those that a fork took over.",
        ("kind", "pool", "outcome"),
    ),
    "outbound_messages": CountedName("planq_outbound_messages", "Replies and questions written into conversations."),
    "llm_calls": CountedName(
        "planq_llm_calls",
        "Calls of models, by stage and result. A model that has never answered is `other`.",
        ("model", "purpose", "outcome"),
    ),
    "llm_tokens": CountedName("planq_llm_tokens", "Tokens of calls of models.", ("model", "direction")),
    "llm_cache_tokens": CountedName(
        "planq_llm_cache_tokens",
        "Input tokens that providers read from their prompt caches, or stored in them.",
        ("model", "access"),
    ),
    "llm_cost": CountedName("planq_llm_cost_usd", "What calls of models cost, where it is known.", ("model",)),
    "tool_cost": CountedName(
        "planq_tool_cost_usd",
        "What calls of tools cost that have a price, counted with the end of their job.",
        ("tool",),
    ),
    "transition": CountedName(
        "planq_orchestration_transitions",
        "Transitions of orchestrations of agents, by event and the state it led to.",
        ("event", "state"),
    ),
    "depth_refused": CountedName(
        "planq_agent_depth_refusals", "Calls of agents refused because they would be nested too deeply.", ("tool",)
    ),
    "lost": CountedName(
        "planq_lost_attempts",
        "Attempts found lost with the worker that carried them out, by how that was seen.",
        ("seen",),
        ("gone", "lease", "abandoned"),
    ),
    "late": CountedName("planq_late_outcomes", "Outcomes rejected because their attempt had ended otherwise."),
    "dead_letter": CountedName(
        "planq_dead_letters", "Messages that were no wake-ups, moved to the list of dead letters."
    ),
    "control_refused": CountedName(
        "planq_refused_commands",
        "Messages for remote control that were refused: commands that are not allowed, and what is no command.",
    ),
    "planner_fallback": CountedName(
        "planq_planner_fallbacks",
        "Rounds whose planner failed or could not be read, and that went on in another form, or without a guide.",
        ("to",),
    ),
    "delivery": CountedName(
        "planq_delivery_attempts",
        "Attempts to deliver webhooks and messages, by result: sent, again, failed for good, or uncertain.",
        ("result",),
        ("sent", "again", "failed", "uncertain"),
    ),
    "tool_call": CountedName(
        "planq_tool_calls",
        "Calls of tools, by their result: succeeded, delegated, suspended, asked, or the code of the error.",
        ("tool", "outcome"),
    ),
}
"""What is counted, by the name under which the database or a worker counts it."""

HISTOGRAMS: Mapping[str, CountedName] = {
    "queue": CountedName("planq_job_queue_seconds", "From a job's submission until a worker has it.", ("priority",)),
    "planning": CountedName("planq_planning_seconds", "From the claim of the stage PLAN to its plan or answer."),
    "plan_execution": CountedName(
        "planq_plan_execution_duration_seconds", "From a plan's acceptance until its steps have ended."
    ),
    "step": CountedName("planq_step_seconds", "From a step's first start to its end.", ("pool",)),
    "answer": CountedName("planq_answer_seconds", "From the claim of the stage RESPOND to the answer."),
    "job": CountedName("planq_job_seconds", "From a job's submission to its end.", ("priority",)),
    "llm": CountedName("planq_llm_call_seconds", "How long calls of models took, all attempts.", ("model",)),
}
"""Times, by the name under which the database counts them."""


class FleetCollector(Collector):
    """The families of all these; none where this process does not report, or the database does not answer."""

    def __init__(self) -> None:
        self._counted: Counted | None = None
        self._ended: Mapping[str, int] = {}
        self._workers: Sequence[Row] = ()

    def show(self, counted: Counted, ended: Mapping[str, int], workers: Sequence[Row]) -> None:
        """Show what was counted, how many jobs have ended by outcome, and how the live workers fare."""
        self._counted, self._ended, self._workers = counted, ended, workers

    def hide(self) -> None:
        self._counted = None

    def collect(self) -> Iterable[Metric]:
        if self._counted is None:
            return
        ended = CounterMetricFamily("planq_jobs_ended", "Jobs that have ended, by outcome.", labels=("outcome",))
        for outcome, number in self._ended.items():
            ended.add_metric((outcome,), number)
        yield ended
        yield from _counters(self._counted)
        for name, shown in HISTOGRAMS.items():
            yield _histogram(self._counted, f"{name}_seconds", f"{name}_seconds_sum", shown, TIMES_SECONDS)
        tools = CountedName("planq_tool_call_seconds", "How long tools took to answer.", ("tool",))
        yield _histogram(self._counted, "tool_seconds", "tool_ms", tools, _TOOL_SECONDS, unit=1000)
        yield from _each(self._workers)


def _counters(counted: Counted) -> Iterable[Metric]:
    families = {
        name: CounterMetricFamily(one.metric, one.meaning, labels=one.labels) for name, one in COUNTERS.items()
    }
    series: dict[tuple[str, ...], Decimal] = {(name,): Decimal() for name, one in COUNTERS.items() if not one.labels}
    series |= {(name, value): Decimal() for name, one in COUNTERS.items() for value in one.always}
    for key, number in {**series, **counted}.items():
        name, *labels = key
        if name in families and len(labels) == len(COUNTERS[name].labels):
            families[name].add_metric(labels, float(number))
    return families.values()


def _histogram(
    counted: Counted, name: str, sum_name: str, shown: CountedName, bounds: Sequence[str], *, unit: int = 1
) -> Metric:
    """Return a histogram, its buckets cumulative; `unit` of what was summed up make a second."""
    family = HistogramMetricFamily(shown.metric, shown.meaning, labels=shown.labels)
    found: dict[tuple[str, ...], dict[str, Decimal]] = {} if shown.labels else {(): {}}
    for key, number in counted.items():
        if key[0] == name and len(key) == len(shown.labels) + 2:
            found.setdefault(key[1:-1], {})[key[-1]] = number
    for labels, buckets in found.items():
        every = [*bounds, "+Inf"]
        below = accumulate(float(buckets.get(bound, 0)) for bound in every)
        total = float(counted.get((sum_name, *labels), 0)) / unit
        family.add_metric(labels, list(zip(every, below, strict=True)), total)
    return family


def _each(workers: Sequence[Row]) -> Iterable[Metric]:
    """Yield how each live worker fares now; its series end with it."""
    labels = ("worker", "pool")
    lag = GaugeMetricFamily(
        "planq_worker_loop_lag_seconds", "Longest delay of the worker's loop since its beat before.", labels=labels
    )
    in_flight = GaugeMetricFamily("planq_worker_in_flight", "Attempts under way in the worker.", labels=labels)
    for row in workers:
        own = (row["name"], ",".join(row["pools"]))
        lag.add_metric(own, row["lag_ms"] / 1000)
        in_flight.add_metric(own, row["in_flight"])
    return (lag, in_flight)


_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


REPORT_SECONDS = 15.0
"""Seconds for which a dead API process keeps the report, renewed three times in that. It is no worker's lease."""

_SCRAPED_WITHIN = 600.0
"""A process that nobody has asked for its metrics for so long gives the report up: others may be asked."""


class Metrics:
    """The instruments of one application."""

    def __init__(
        self, worker_registry: WorkerRegistry, tallies: TallyStore, log: EventLog, waiters: Waiters, streams: Streams
    ) -> None:
        self._registry = worker_registry
        self._log = log
        self._tallies = tallies
        self._process = new_id()
        self._scraped_at: float | None = None
        self._has_report = False
        self._counted: dict[tuple[str, str, int], tuple[Callable[[], None], Callable[[float], None]]] = {}
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        gauge = partial(Gauge, registry=registry)
        labels = ("method", "route", "status")
        self._requests = Counter("planq_http_requests_total", "Requests answered.", labels, registry=registry)
        self._updates = Counter(
            "planq_channel_updates_total",
            "What chats have posted, by what it meant: a message, an answer by a button, a move, or nothing.",
            ("channel", "meaning"),
            registry=registry,
        )
        text = "Time to answer, without the time a client chose to wait for a job, or follows events."
        self._seconds = Histogram("planq_http_request_seconds", text, ("method", "route"), registry=registry)
        gauge("planq_waiting_clients", "Clients that wait for a job.").set_function(lambda: len(waiters))
        gauge("planq_open_streams", "Clients that follow events.").set_function(lambda: len(streams))
        self._database = gauge("planq_database_up", "1 when the database answered.")
        self._jobs = gauge("planq_unfinished_jobs", "Unfinished jobs.", ("status",))
        self._steps = gauge("planq_unfinished_steps", "Unfinished steps of unfinished jobs.", ("status",))
        self._workers = gauge("planq_live_workers", "Workers alive.", ("pool",))
        text = "Deliveries of webhooks that wait, or are being sent."
        self._deliveries = gauge("planq_unfinished_deliveries", text, ("status",))
        self._bulk = gauge("planq_bulk_jobs", "Bulk jobs that are unfinished, and how many may be.", ("count",))
        text = "1 where this process reports what counts for the whole installation; 0 where another one does."
        self._reports = gauge("planq_reports_fleet", text)
        text = "For how long the oldest event is held back from streams, by an open transaction of the server."
        self._held = gauge("planq_events_held_seconds", text)
        self._fleet = FleetCollector()
        self.registry.register(self._fleet)

    def update_came(self, channel: str, meaning: str) -> None:
        self._updates.labels(channel, meaning).inc()

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """Note one answered request; `route` is a template, never a path."""
        counted = self._counted.get((method, route, status))
        if counted is None:
            # Found once: to look instruments up by their labels costs more than to count.
            known = method if method in _METHODS else "other"
            counted = self._requests.labels(known, route, str(status)).inc, self._seconds.labels(known, route).observe
            if known == method:
                self._counted[method, route, status] = counted
        inc, observe = counted
        inc()
        observe(seconds)

    async def keep_report(self) -> None:
        """Renew the report for ever, where this process has it and is asked for its metrics; cancel to end."""
        await every(REPORT_SECONDS / 3, self._renew_report, name="report", waits_first=True)

    async def _renew_report(self) -> None:
        if self._scraped_at is not None:
            if monotonic() - self._scraped_at > _SCRAPED_WITHIN:
                await self.drop_report()
            elif self._has_report:
                self._has_report = await self._tallies.hold_report(self._process, REPORT_SECONDS)

    async def drop_report(self) -> None:
        """Give the report up, so that another process has it with its next scrape."""
        self._has_report = False
        if self._scraped_at is not None:
            self._scraped_at = None
            with contextlib.suppress(DatabaseUnavailable):
                await self._tallies.drop_report(self._process)

    async def render(self) -> bytes:
        """Return everything in Prometheus' text format; without the database's part when it does not answer.

        What counts for all only where this process has the report, or nobody else.
        """
        self._scraped_at = monotonic()
        try:
            self._has_report = await self._tallies.hold_report(self._process, REPORT_SECONDS)
            if self._has_report:
                await self._report()
            else:
                self._hide()
        except DatabaseUnavailable:
            self._database.set(0)
            self._has_report = False
            self._hide()
        else:
            self._database.set(1)
        self._reports.set(self._has_report)
        return generate_latest(self.registry)

    async def _report(self) -> None:
        await self._tallies.add_up(1)  # workers do that all the time; without one it is done here
        counts = {(row["kind"], row["status"]): row["n"] for row in await self._registry.unfinished()}
        ended = await self._registry.ended()
        workers = await self._registry.live()
        self._fleet.show(await self._tallies.counted(), ended, workers)
        pools = Tally(pool for row in workers for pool in row["pools"])
        self._count_unfinished(counts)
        for count in ("unfinished", "window"):
            self._bulk.labels(count).set(counts["bulk", count])
        self._held.set(await self._log.held_seconds())
        self._workers.clear()
        for pool in pools_of(workers):
            self._workers.labels(pool).set(pools[pool])

    def _hide(self) -> None:
        self._fleet.hide()
        self._held.set(0)
        for gauge in (self._jobs, self._steps, self._workers, self._bulk, self._deliveries):
            gauge.clear()

    def _count_unfinished(self, counts: Mapping[tuple[str, str], int]) -> None:
        for job in JobStatus:
            if job not in TERMINAL_JOB:
                self._jobs.labels(job.value).set(counts.get(("job", job.value), 0))
        for step in StepStatus:
            if step not in TERMINAL_STEP:
                self._steps.labels(step.value).set(counts.get(("step", step.value), 0))
        for delivery in UNFINISHED_DELIVERY:
            self._deliveries.labels(delivery.value).set(counts.get(("delivery", delivery.value), 0))


def route_of(scope: Scope) -> str:
    """Return the template of the route that a request went to, `none` where there was none."""
    route: Any = scope.get("route")
    return str(getattr(route, "path", "none"))
