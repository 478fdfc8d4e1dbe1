"""What `/metrics` shows: requests as this process answered them, and, of one process alone, what counts for all.

Prometheus asks each process of the API and sums up. So one of them has the *report*, by a lease: what the database
counts and workers say. The one that is asked first takes it, and keeps it as long as it lives and is asked.

Every application has a registry of its own, so that two of them in one process do not clash.
"""

from __future__ import annotations

import contextlib
from collections import Counter as Tally
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from starlette.types import Scope

from planq.api.metrics.fleet import FleetCollector
from planq.api.streams.followers import Streams
from planq.api.streams.waiting import Waiters
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import (
    TERMINAL_JOB,
    TERMINAL_STEP,
    JobStatus,
    StepStatus,
    pools_of,
)
from planq.shared.kernel.store.worker_registry import WorkerRegistry
from planq.shared.platform.errors import DatabaseUnavailable
from planq.shared.platform.timers import every
from planq.shared.subjects.events.store import EventLog
from planq.shared.subjects.metrics.store import TallyStore
from planq.shared.subjects.webhooks.rules import UNFINISHED_DELIVERY

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


REPORT_SECONDS = 15.0
"""Seconds for which a dead API process keeps the report, renewed three times in that. It is no worker's lease."""

_SCRAPED_WITHIN = 600.0
"""A process that nobody has asked for its metrics for so long gives the report up: others may be asked."""


class Metrics:
    """The instruments of one application."""

    def __init__(
        self,
        worker_registry: WorkerRegistry,
        tallies: TallyStore,
        log: EventLog,
        waiters: Waiters,
        streams: Streams,
    ) -> None:
        self._registry = worker_registry
        self._log = log
        self._tallies = tallies
        self._process = new_id()
        self._scraped_at: float | None = None
        self._has_report = False
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
        self._workers = Gauge("planq_live_workers", "Workers alive.", ("pool",), registry=self.registry)
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
        self._reports = Gauge(
            "planq_reports_fleet",
            "1 where this process reports what counts for the whole installation; 0 where another one does.",
            registry=self.registry,
        )
        self._held = Gauge(
            "planq_events_held_seconds",
            "For how long the oldest event is held back from streams, by an open transaction of the server.",
            registry=self.registry,
        )
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
