"""Starts a worker: composes the process, then hands it to Celery.

`celery -A worker.main inspect …` finds the application here; workers are started by `planq worker io|cpu`, because
they need a lease before they take their first message.
"""

from __future__ import annotations

import os
import socket
from typing import Any

from celery.signals import setup_logging, worker_ready

from shared.domain.states import Lane
from shared.failpoints import Failpoints
from shared.store.ids import new_id
from shared.store.schema import require_schema
from worker.celery_app import app, settings
from worker.container import CRASH_POINTS, Identity, LaneRuntime, Tools
from worker.lifecycle import Lifecycle
from worker.tasks import plan, respond, step
from worker.tracker import CeleryTracker, SilentTracker

_CELERY_READS = ("APP", "BROKER_URL", "RESULT_BACKEND", "LOADER", "CONFIG_MODULE")
"""Environment variables that Celery's command line would put above the application's own configuration."""

__all__ = ["app", "plan", "respond", "run", "step", "worker_argv"]


def worker_argv(lane: Lane, name: str, concurrency: int, *, task_events: bool) -> list[str]:
    """Return Celery's command line for a lane: the asyncio pool for `io`, stock prefork for `cpu`."""
    pool = "custom" if lane is Lane.IO else "prefork"
    return [
        *("--quiet", "worker", "--pool", pool, "--concurrency", str(concurrency)),
        *("--queues", f"planq.{lane}", "--hostname", name, "--loglevel", "WARNING"),
        # Chatter between workers that nothing here needs; on Redis it leaks lists and slows the start.
        *("--without-gossip", "--without-mingle"),
        *(["--task-events"] if task_events else []),
    ]


def run(lane: Lane, concurrency: int | None = None) -> int:
    """Run a worker until it is told to stop; returns Celery's exit code.

    Raises `Misconfigured` for a bad setting, a tool clash or a foreign schema, `DatabaseUnavailable` when there is
    no database; both before any message is taken.
    """
    failpoints = Failpoints.load(os.environ, CRASH_POINTS)
    require_schema(settings.require_database())
    capacity = concurrency or (settings.io_concurrency if lane is Lane.IO else settings.cpu_concurrency)
    identity = Identity(new_id(), f"planq-{lane}-{os.getpid()}@{socket.gethostname()}", lane, capacity)
    tools = Tools.load(settings)
    tracker = CeleryTracker() if lane is Lane.IO else SilentTracker()
    runtime = app.planq_lane = LaneRuntime(settings, identity, tools, app, tracker, failpoints=failpoints)
    lifecycle = app.planq_lifecycle = Lifecycle(
        settings, identity, tools, app, runtime if lane is Lane.IO else None, failpoints=failpoints
    )
    _connect_signals(tracker)
    for variable in _CELERY_READS:
        os.environ.pop(variable, None)
    code: Any = 0
    lifecycle.start()
    try:
        app.worker_main(worker_argv(lane, identity.name, capacity, task_events=settings.task_events))
    except SystemExit as end:
        code = end.code
    finally:
        lifecycle.stop()
    if runtime.failure is not None:
        raise runtime.failure
    return code if isinstance(code, int) else int(code is not None)


def _connect_signals(tracker: CeleryTracker | SilentTracker) -> None:
    def attach(sender: Any, **_: Any) -> None:
        if isinstance(tracker, CeleryTracker):
            tracker.attach(sender)

    def keep_logging(**_: Any) -> None:
        """Leave the logging that `worker/__main__.py` has set up; without a receiver Celery replaces it."""

    setup_logging.connect(keep_logging, weak=False)
    worker_ready.connect(attach, weak=False)
