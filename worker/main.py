"""Starts a worker: composes the process, then hands it to Celery.

`celery -A planq.worker.main inspect …` finds the application here; workers are started by `planq worker io|cpu`,
because they need a lease before they take their first message.
"""

from __future__ import annotations

import logging
import os
import socket
from collections import Counter
from collections.abc import Callable
from typing import Any

from celery.signals import (
    setup_logging,
    worker_process_init,
    worker_process_shutdown,
    worker_ready,
    worker_shutting_down,
)
from celery.worker import state

from planq.shared.broker import names
from planq.shared.broker.celery_config import is_redis, known_queue
from planq.shared.broker.transport import Reserve
from planq.shared.failpoints import Failpoints
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.schema_version import require_schema
from planq.shared.kernel.states import Pool, Priority, WakeQueue, wake_queues
from planq.shared.platform.beats import Beats
from planq.shared.platform.redact import without_password
from planq.shared.platform.version import release
from planq.shared.subjects.moments.store import PostgresKnowledge, PostgresMemory
from planq.shared.subjects.tenants.secrets import require_master_keys
from planq.worker.celery.app import app, settings
from planq.worker.celery.events import CeleryTracker
from planq.worker.celery.pool import AsyncioPool
from planq.worker.container import (
    CRASH_POINTS,
    Tools,
    WorkerIdentity,
    WorkerRuntime,
    check_settings,
    process_text,
    provided_by,
    worker_database,
)
from planq.worker.engine.lease import Fence, Lease
from planq.worker.engine.running import InFlightWork
from planq.worker.engine.slots import bulk_slots, reserved_slots
from planq.worker.local_processes import Host, give_way
from planq.worker.runtime.lifecycle import HeartbeatParts, Lifecycle
from planq.worker.runtime.prefork import PreforkProcesses
from planq.worker.runtime.reconcile import LoopInFlight

_log = logging.getLogger("planq.worker")

_STALLED_EXIT = 75
"""Exit code of a worker that receives no wake-ups any more (EX_TEMPFAIL of sysexits.h: try again)."""

__all__ = ["app", "celery_worker", "run"]


def celery_worker(identity: WorkerIdentity, *, task_events: bool, only: Priority | None = None) -> Any:
    """Return Celery's worker, not yet started, on our asyncio pool or on stock prefork; `only` is one priority.

    `celery worker` starts the same, but loads plug-ins (Flower's web server among them), which cost each worker a
    quarter of a second.
    """
    queues = wake_queues(identity.pool, only)
    for queue in queues:
        app.planq_lists.know(names.queue(queue))
    return app.Worker(
        pool_cls="prefork" if identity.has_processes else AsyncioPool,
        concurrency=identity.capacity,
        queues=[known_queue(app, name).name for queue in queues for name in names.lists(queue)],
        hostname=identity.name,
        loglevel="WARNING",
        quiet=True,
        # planq needs neither gossip nor mingle; on Redis they leak lists and slow the start.
        without_gossip=True,
        without_mingle=True,
        task_events=task_events,
    )


def run(
    pool: Pool,
    concurrency: int | None = None,
    beats: Beats | None = None,
    *,
    has_processes: bool = False,
    only: Priority | None = None,
) -> int:
    """Run a worker until it is stopped; return Celery's exit code. A guard watches its `beats`, if there is one.

    With `has_processes`, and in the pool `cpu`, each step has its own process. With `only` the worker serves one
    priority; for bulk work it has a lower process priority.
    Raises `Misconfigured` for a bad setting, a tool clash or a foreign schema, `DatabaseUnavailable` without a
    database; both before it takes any message.
    """
    has_processes = has_processes or pool == Pool.CPU
    if only is Priority.BULK:
        give_way()
    usual = {Pool.IO: settings.io_concurrency, Pool.CPU: settings.cpu_concurrency}
    capacity = concurrency or usual.get(pool, 1)
    tracker = CeleryTracker()
    processes = PreforkProcesses() if has_processes else None
    identity, runtime, lifecycle = _composed(
        pool,
        capacity,
        tracker,
        processes,
        restart=_restart,
        beats=beats,
        has_processes=has_processes,
        only=only,
    )
    app.planq_runtime, app.planq_lifecycle = runtime, lifecycle
    if only is not Priority.INTERACTIVE:
        app.planq_windows = {names.queue(WakeQueue.of(pool, Priority.BULK)): identity.bulk_capacity}
    if not has_processes:  # otherwise each message has its own process
        few = reserved_slots(capacity)
        # RabbitMQ bounds the messages of each list and of bulk work, but not those outside the reserve.
        bulk = identity.bulk_capacity if few and not is_redis(settings.require_broker()) else 0
        app.planq_reserve = Reserve(capacity, few, 2 * few + bulk)
    _connect_signals(tracker, runtime, lifecycle, processes)
    lifecycle.start()
    try:
        worker = celery_worker(identity, task_events=settings.task_events, only=only)
        worker.start()
        code: Any = worker.exitcode or state.should_stop or 0
    except SystemExit as end:
        code = end.code
    finally:
        lifecycle.stop()
    if runtime.failure is not None:
        raise runtime.failure
    return code if isinstance(code, int) else int(code is not None)


def _composed(
    pool: Pool,
    capacity: int,
    tracker: CeleryTracker,
    processes: PreforkProcesses | None,
    *,
    restart: Callable[[], None],
    beats: Beats | None,
    has_processes: bool,
    only: Priority | None = None,
) -> tuple[WorkerIdentity, WorkerRuntime, Lifecycle]:
    failpoints = Failpoints.load(os.environ, CRASH_POINTS)
    check_settings(settings, pool)
    host = Host() if settings.detect_dead_peers else None
    process = None if host is None else process_text(host, pool, settings.mcp_file)
    kind = "-".join((pool, *([only] if only else ())))
    name = f"planq-{kind}-{os.getpid()}@{socket.gethostname()}"
    bulk = bulk_slots(capacity) if only is None else capacity * (only is Priority.BULK)
    identity = WorkerIdentity(
        new_id(),
        name,
        pool,
        capacity,
        bulk,
        process,
        has_processes=has_processes,
        only=only,
        provides=provided_by(settings, pool),
    )
    database = worker_database(settings, identity)
    memory = failpoints.around("memory", PostgresMemory(database))
    tools = Tools.load(settings, PostgresKnowledge(database), memory)
    require_schema(settings.require_database(), settings.pooled_schema)
    require_master_keys(settings.require_database(), settings.master_keys, settings.pooled_schema)
    beat = None if beats is None else beats.beat(settings.freeze_seconds)
    lease = Lease(settings.lease, settings.lease_margin)
    # A process of Celery's pool reports its writes to its parent, and ends with the parent.
    fence = Fence(lease) if beat is None else Fence(lease, beat.fence)
    in_flight = (
        InFlightWork(lease, on_acting=fence.is_acting) if processes is None else InFlightWork(lease, processes.notify)
    )
    runtime = WorkerRuntime(
        settings, identity, database, tools, app, tracker, in_flight=in_flight, failpoints=failpoints
    )
    if not has_processes:
        runtime.beat = beat
    on_loop = LoopInFlight(runtime, in_flight)
    parts = HeartbeatParts(
        here=processes or on_loop,
        lease=lease,
        processes=processes,
        loop_of=lambda: runtime.loop if processes is None else None,
        received=lambda: int(state.all_total_count[0]),
        restart=restart,
        counted=runtime.count_workers,
        counts=lambda: app.planq_dead_letters.counts + (Counter() if processes is None else processes.counts),
        missing=runtime.missing,
        beat=beat if has_processes else None,
        run_suspects=None if has_processes else runtime.run_suspects,
        duties=() if has_processes else runtime.duties,
    )
    lifecycle = Lifecycle(settings, identity, tools, app, parts, host=host, failpoints=failpoints)
    in_flight.ends_in = lifecycle.sweep_in
    if processes is not None:
        processes.on_acting = fence.is_acting
        processes.counting = tools.agent_services.counts
    fence.start(on_loop.fence if processes is None else lifecycle.fence)
    return identity, runtime, lifecycle


def _restart() -> None:
    state.should_stop = _STALLED_EXIT


def _connect_signals(
    tracker: CeleryTracker,
    runtime: WorkerRuntime,
    lifecycle: Lifecycle,
    processes: PreforkProcesses | None,
) -> None:
    def attach(sender: Any, **_: Any) -> None:
        if processes is None:
            tracker.attach(sender)
        else:
            processes.attach(sender)

    def log_start(**_: Any) -> None:
        _log.info(
            "worker_ready",
            extra={
                **runtime.described(),
                "version": release(),
                "database": without_password(settings.database_url),
                "broker": without_password(settings.require_broker()),
            },
        )

    def wind_down(**_: Any) -> None:
        _log.info("worker_draining", extra={**runtime.described(), "seconds": settings.drain_seconds})
        # Celery notices the signal up to a second later, and takes at most one message until then.
        runtime.wind_down()
        lifecycle.wind_down()

    def bind_to_parent(**_: Any) -> None:
        if processes is not None:
            processes.bind_to_parent()

    def close_resources(**_: Any) -> None:
        if app.planq_runner is not None:
            app.planq_runner.run(runtime.close_resources())

    def keep_logging(**_: Any) -> None:
        """Keep the logging that `worker/__main__.py` has set up; without a receiver Celery replaces it."""

    setup_logging.connect(keep_logging, weak=False)
    worker_process_init.connect(bind_to_parent, weak=False)
    worker_process_shutdown.connect(close_resources, weak=False)
    worker_ready.connect(attach, weak=False)
    worker_ready.connect(log_start, weak=False)
    worker_shutting_down.connect(wind_down, weak=False)
