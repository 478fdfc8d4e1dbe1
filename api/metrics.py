"""What `/metrics` shows: requests as this process answered them, and unfinished work as the database counts it.

Every application has a registry of its own, so that two of them in one process do not clash.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import Scope

from planq.api.readiness import FREEZES_WITHIN
from planq.api.streams import Streams
from planq.api.waiting import Waiters
from planq.shared.domain.errors import DatabaseUnavailable
from planq.shared.domain.jobs.states import (
    OWN_LANES,
    TERMINAL_JOB,
    TERMINAL_STEP,
    JobStatus,
    StepStatus,
    lanes_of,
)
from planq.shared.domain.tools.definition import LATENCIES_SECONDS
from planq.shared.domain.webhooks.deliveries import UNFINISHED_DELIVERY
from planq.shared.store.database import Row
from planq.shared.store.jobs.worker_registry import WorkerRegistry

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


_LABELS = ("worker", "lane")
_COUNTED: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    "transition": (
        "planq_orchestration_transitions",
        "Transitions of orchestrations of agents, by event and the state it led to.",
        ("event", "state"),
    ),
    "depth_refused": (
        "planq_agent_depth_refusals",
        "Calls of agents refused because they would be nested too deeply.",
        ("tool",),
    ),
    "lost": (
        "planq_lost_attempts",
        "Attempts that this worker found lost with the worker that carried them out, by how that was seen.",
        ("seen",),
    ),
    "dead_letter": (
        "planq_dead_letters",
        "Messages that were no wake-ups, moved to the list of dead letters.",
        (),
    ),
    "control_refused": (
        "planq_refused_commands",
        "Messages for remote control that were refused: commands that are not allowed, and what is no command.",
        (),
    ),
    "planner_fallback": (
        "planq_planner_fallbacks",
        "Rounds whose planner failed or could not be read, and that went on in another form, or without a guide.",
        ("to",),
    ),
    "delivery": (
        "planq_delivery_attempts",
        "Attempts to deliver webhooks and messages, by result: sent, again, failed for good, or uncertain.",
        ("result",),
    ),
    "tool_call": (
        "planq_tool_calls",
        "Calls of tools, by their result: succeeded, delegated, suspended, or the code of the error.",
        ("tool", "outcome"),
    ),
}
"""What workers count in their heartbeats: the metric of each count, its meaning, and its labels beside `_LABELS`."""


class _WorkerCollector(Collector):
    """What the live workers said at their last heartbeat, each under its own name.

    A name is that of one process (`planq-io-<pid>@<host>`): its counter begins at zero and its series ends with it,
    so that no series ever falls. There are as many of them as live workers.
    """

    def __init__(self) -> None:
        self.rows: Sequence[Row] = ()

    def collect(self) -> Iterable[Metric]:
        lag = GaugeMetricFamily(
            "planq_worker_loop_lag_seconds",
            "Longest delay of the worker's loop since its beat before.",
            labels=_LABELS,
        )
        in_flight = GaugeMetricFamily("planq_worker_in_flight", "Attempts under way in the worker.", labels=_LABELS)
        late = CounterMetricFamily(
            "planq_late_outcomes", "Outcomes rejected because their attempt had ended otherwise.", labels=_LABELS
        )
        seconds = HistogramMetricFamily(
            "planq_tool_call_seconds", "How long tools took to answer.", labels=(*_LABELS, "tool")
        )
        counted = {
            name: CounterMetricFamily(metric, meaning, labels=(*_LABELS, *labels))
            for name, (metric, meaning, labels) in _COUNTED.items()
        }
        for row in self.rows:
            own = (row["name"], ",".join(row["lanes"]))
            for name, *labelled, number in row["counts"] or ():
                if name in counted:
                    counted[name].add_metric((*own, *labelled), number)
            for tool, (buckets, total) in _latencies(row["counts"] or ()).items():
                seconds.add_metric((*own, tool), buckets, total)
            lag.add_metric(own, row["lag_ms"] / 1000)
            in_flight.add_metric(own, row["in_flight"])
            late.add_metric(own, row["late_outcomes"])
        return (lag, in_flight, late, *counted.values(), seconds)


def _latencies(counts: Iterable[Sequence[Any]]) -> dict[str, tuple[list[tuple[str, float]], float]]:
    """Return for every tool the buckets of its latencies, cumulative, and their sum in seconds."""
    found: dict[str, dict[str, int]] = {}
    total: dict[str, float] = {}
    for name, *labelled, number in counts:
        if name == "tool_seconds":
            found.setdefault(labelled[0], {})[labelled[1]] = number
        elif name == "tool_ms":
            total[labelled[0]] = number / 1000
    told: dict[str, tuple[list[tuple[str, float]], float]] = {}
    for tool, own in found.items():
        bounds = [*map(str, LATENCIES_SECONDS), "+Inf"]
        below = accumulate(own.get(bound, 0) for bound in bounds)
        told[tool] = (list(zip(bounds, below, strict=True)), total.get(tool, 0.0))
    return told


class _EndCollector(Collector):
    """How many jobs have ended, as the database has counted them; nothing while it does not answer."""

    def __init__(self) -> None:
        self.counts: Mapping[str, int] = {}

    def collect(self) -> Iterable[Metric]:
        ended = CounterMetricFamily("planq_jobs_ended", "Jobs that have ended, by outcome.", labels=("outcome",))
        for outcome, number in self.counts.items():
            ended.add_metric((outcome,), number)
        return (ended,)


class Metrics:
    """The instruments of one application."""

    def __init__(self, worker_registry: WorkerRegistry, waiters: Waiters, streams: Streams) -> None:
        self._registry = worker_registry
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._requests = Counter(
            "planq_http_requests_total", "Requests answered.", ("method", "route", "status"), registry=self.registry
        )
        self._updates = Counter(
            "planq_channel_updates_total",
            "What chats have posted, by what it meant: a message, an answer by a button, a move, or nothing.",
            ("channel", "meaning"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "planq_http_request_seconds",
            "Time to answer, without the time a client chose to wait for a job, or follows events.",
            ("method", "route"),
            registry=self.registry,
        )
        waiting = Gauge("planq_waiting_clients", "Clients that wait for a job.", registry=self.registry)
        waiting.set_function(lambda: len(waiters))
        following = Gauge("planq_open_streams", "Clients that follow events.", registry=self.registry)
        following.set_function(lambda: len(streams))
        self._counted: dict[tuple[str, str, int], tuple[Callable[[], None], Callable[[float], None]]] = {}
        self._database = Gauge("planq_database_up", "1 when the database answered.", registry=self.registry)
        self._jobs = Gauge("planq_unfinished_jobs", "Unfinished jobs.", ("status",), registry=self.registry)
        self._steps = Gauge(
            "planq_unfinished_steps", "Unfinished steps of unfinished jobs.", ("status",), registry=self.registry
        )
        self._workers = Gauge("planq_live_workers", "Workers alive.", ("lane",), registry=self.registry)
        self._freezes = Gauge(
            "planq_recent_freezes",
            "Loops that froze within the last hour, and whose processes were killed for it.",
            ("kind",),
            registry=self.registry,
        )
        self._deliveries = Gauge(
            "planq_unfinished_deliveries",
            "Deliveries of webhooks that wait, or are being sent.",
            ("status",),
            registry=self.registry,
        )
        self._bulk = Gauge(
            "planq_bulk_jobs",
            "Bulk jobs that are unfinished, and how many may be.",
            ("count",),
            registry=self.registry,
        )
        self._each = _WorkerCollector()
        self._ended = _EndCollector()
        for collector in (self._each, self._ended):
            self.registry.register(collector)

    def update_came(self, channel: str, meaning: str) -> None:
        """Count what a chat has posted."""
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

    async def render(self) -> bytes:
        """Return everything in Prometheus' text format; without the database's part when it does not answer."""
        try:
            counts = {(row["kind"], row["status"]): row["n"] for row in await self._registry.unfinished()}
            ended = await self._registry.ended()
            workers = await self._registry.live()
            freezes = Tally(row["kind"] for row in await self._registry.freezes(FREEZES_WITHIN))
        except DatabaseUnavailable:
            self._database.set(0)
            self._each.rows = ()
            self._ended.counts = {}
            for gauge in (self._jobs, self._steps, self._workers, self._bulk, self._deliveries, self._freezes):
                gauge.clear()
        else:
            self._database.set(1)
            self._each.rows = workers
            self._ended.counts = ended
            lanes = Tally(lane for row in workers for lane in row["lanes"])
            self._count_unfinished(counts)
            for count in ("unfinished", "window"):
                self._bulk.labels(count).set(counts["bulk", count])
            self._workers.clear()
            self._freezes.clear()
            for lane in lanes_of(workers):
                self._workers.labels(lane).set(lanes[lane])
            for kind in {"api", *map(str, OWN_LANES), *freezes}:
                self._freezes.labels(kind).set(freezes[kind])
        return generate_latest(self.registry)

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
