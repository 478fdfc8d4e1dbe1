"""What `/metrics` shows: requests as this process answered them, and unfinished work as the database counts it.

Every application has a registry of its own, so that two of them in one process do not clash.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Sequence
from time import perf_counter
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.waiting import Waiters
from shared.domain.errors import DatabaseUnavailable
from shared.domain.states import TERMINAL_JOB, TERMINAL_STEP, JobStatus, Lane, StepStatus
from shared.store.database import Row
from shared.store.fleet import Fleet

WAITED = "planq.waited_seconds"
"""Key of the scope: how much of a request was waiting for a job, which says nothing about the API's speed."""

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class _WorkerCollector(Collector):
    """What the live workers said at their last heartbeat, each under its own name.

    A name is that of one process (`planq-io-<pid>@<host>`): its counter begins at zero and its series ends with it,
    so that no series ever falls. There are as many of them as live workers.
    """

    def __init__(self) -> None:
        self.rows: Sequence[Row] = ()

    def collect(self) -> Iterable[Metric]:
        labels = ("worker", "lane")
        lag = GaugeMetricFamily(
            "planq_worker_loop_lag_seconds",
            "Longest delay of the worker's loop since its beat before.",
            labels=labels,
        )
        in_flight = GaugeMetricFamily("planq_worker_in_flight", "Attempts under way in the worker.", labels=labels)
        late = CounterMetricFamily(
            "planq_late_outcomes", "Outcomes rejected because their attempt had ended otherwise.", labels=labels
        )
        for row in self.rows:
            own = (row["name"], ",".join(row["lanes"]))
            lag.add_metric(own, row["lag_ms"] / 1000)
            in_flight.add_metric(own, row["in_flight"])
            late.add_metric(own, row["late_outcomes"])
        return (lag, in_flight, late)


class Metrics:
    """The instruments of one application."""

    def __init__(self, fleet: Fleet, waiters: Waiters) -> None:
        self._fleet = fleet
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._requests = Counter(
            "planq_http_requests_total", "Requests answered.", ("method", "route", "status"), registry=self.registry
        )
        self._seconds = Histogram(
            "planq_http_request_seconds",
            "Time to answer, without the time a client chose to wait for a job.",
            ("method", "route"),
            registry=self.registry,
        )
        waiting = Gauge("planq_waiting_clients", "Clients that wait for a job.", registry=self.registry)
        waiting.set_function(lambda: len(waiters))
        self._database = Gauge("planq_database_up", "1 when the database answered.", registry=self.registry)
        self._jobs = Gauge("planq_unfinished_jobs", "Unfinished jobs.", ("status",), registry=self.registry)
        self._steps = Gauge(
            "planq_unfinished_steps", "Unfinished steps of unfinished jobs.", ("status",), registry=self.registry
        )
        self._workers = Gauge("planq_live_workers", "Workers alive.", ("lane",), registry=self.registry)
        self._each = _WorkerCollector()
        self.registry.register(self._each)

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """Note one answered request; `route` is a template, never a path."""
        method = method if method in _METHODS else "other"
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)

    async def render(self) -> bytes:
        """Return everything in Prometheus' text format; without the database's part when it does not answer."""
        try:
            counts = {(row["kind"], row["status"]): row["n"] for row in await self._fleet.unfinished()}
            workers = await self._fleet.live()
        except DatabaseUnavailable:
            self._database.set(0)
            self._each.rows = ()
            for gauge in (self._jobs, self._steps, self._workers):
                gauge.clear()
        else:
            self._database.set(1)
            self._each.rows = workers
            lanes = Tally(lane for row in workers for lane in row["lanes"])
            for job in JobStatus:
                if job not in TERMINAL_JOB:
                    self._jobs.labels(job.value).set(counts.get(("job", job.value), 0))
            for step in StepStatus:
                if step not in TERMINAL_STEP:
                    self._steps.labels(step.value).set(counts.get(("step", step.value), 0))
            for lane in Lane:
                self._workers.labels(lane.value).set(lanes[lane.value])
        return generate_latest(self.registry)


class Observed:
    """ASGI middleware: counts every request under the template of its route."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500
        begun = perf_counter()

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            seconds = max(0.0, perf_counter() - begun - scope.get(WAITED, 0.0))
            self._metrics.count(scope["method"], _template(scope), status, seconds)


def _template(scope: Scope) -> str:
    route: Any = scope.get("route")
    return str(getattr(route, "path", "none"))
