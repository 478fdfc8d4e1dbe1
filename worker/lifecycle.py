"""What every worker process does beside its work: renew its lease, sweep, and hear of cancelled jobs.

It runs in a thread with a loop and connections of its own, so that a step which blocks the lane's loop cannot stop
the heartbeat. The thread also measures how late the lane's loop is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from datetime import timedelta
from random import SystemRandom
from typing import Any
from uuid import UUID

from celery import Celery

from shared.broker.publisher import CeleryPublisher
from shared.domain.errors import DatabaseUnavailable
from shared.domain.ids import StepRef
from shared.failpoints import Failpoints
from shared.settings import Settings
from shared.store.database import Database
from shared.store.fleet import Fleet
from shared.store.signals import CANCELLED, ENDED, Notifier, listen
from worker.container import Identity, LaneRuntime, Tools, announce
from worker.engine import Sweeper, SweepSettings

_log = logging.getLogger("planq.lifecycle")

_STOP_SECONDS = 5.0


class Lifecycle:
    """The companion thread of one worker process. `runtime` is None where children run the steps (`cpu`)."""

    def __init__(
        self,
        settings: Settings,
        identity: Identity,
        tools: Tools,
        app: Celery,
        runtime: LaneRuntime | None,
        *,
        failpoints: Failpoints | None = None,
    ) -> None:
        self._failpoints = failpoints or Failpoints()
        self._settings = settings
        self._identity = identity
        self._tools = tools
        self._runtime = runtime
        self._publisher = CeleryPublisher(app)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="planq-lifecycle", daemon=True)
        self._opened: Future[None] = Future()
        self._stopping = asyncio.Event()
        self._database = Database(settings.require_database(), max_connections=2)
        self._fleet = self._failpoints.around("fleet", Fleet(self._database, settings.lease))
        self._work: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Open the database, register the worker, publish its tools, begin to beat and sweep.

        Returns once the worker is registered, so that no claim is ever made without a lease. Raises
        `DatabaseUnavailable`.
        """
        self._thread.start()
        self._opened.result()

    def stop(self) -> None:
        """End the thread and give the lease up, so that what this worker still holds is taken back at once."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(2 * _STOP_SECONDS)
        self._publisher.close()

    def disown(self, ref: StepRef, attempt: int) -> None:
        """Let an attempt whose process has died be taken back by the next sweep; returns at once, from any thread."""
        asyncio.run_coroutine_threadsafe(self._disown(ref, attempt), self._loop)

    async def _disown(self, ref: StepRef, attempt: int) -> None:
        try:
            disowned = await self._fleet.disown(self._identity.id, ref, attempt)
        except DatabaseUnavailable:
            return  # the step's deadline ends it later
        if disowned:
            _log.warning("step_process_died", extra={"job": str(ref.job_id), "step": ref.index})

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._live())

    async def _live(self) -> None:
        try:
            await self._open()
        except Exception as error:
            await self._database.close()
            self._opened.set_exception(error)
            return
        self._opened.set_result(None)
        await self._stopping.wait()
        with contextlib.suppress(TimeoutError, DatabaseUnavailable):
            async with asyncio.timeout(_STOP_SECONDS):
                await self._close()

    async def _open(self) -> None:
        await self._database.open()
        await announce(self._fleet, self._identity, self._tools.registry.definitions())
        notifier = Notifier(self._database, ENDED)
        settings = SweepSettings(max_worker_losses=self._settings.max_worker_losses)
        store = self._failpoints.around("sweep", self._fleet)
        publisher = self._failpoints.around("sweep_publisher", self._publisher)
        interrupt = Notifier(self._database, CANCELLED).send
        sweeper = Sweeper(settings, store, publisher, notifier.send, SystemRandom().random, interrupt=interrupt)
        self._start(self._every(self._settings.heartbeat_seconds, self._beat))
        self._start(self._every(self._settings.sweep_seconds, sweeper.sweep))
        if self._runtime is not None:
            self._start(listen(self._settings.require_database(), CANCELLED, self._heard_cancel))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._work.append(self._loop.create_task(work))

    async def _close(self) -> None:
        for task in self._work:
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
        try:
            await self._fleet.forget(self._identity.id)
        finally:
            await self._database.close()

    async def _every(self, seconds: float, action: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        while True:
            try:
                await action()
            except DatabaseUnavailable as error:
                _log.warning("database_unavailable", extra={"cause": error.message})
            except Exception:
                _log.exception("companion_failed")
            await asyncio.sleep(seconds)

    async def _beat(self) -> None:
        lag = await self._lag()
        if not await self._fleet.heartbeat(self._identity.id, lag):
            # The row was removed: a sweep took this worker for dead. What it held is fenced off; it goes on afresh.
            await announce(self._fleet, self._identity, self._tools.registry.definitions())

    async def _lag(self) -> timedelta:
        """Return how long the lane's loop takes to run a callback, at most one heartbeat."""
        loop = self._runtime.loop if self._runtime is not None else None
        if loop is None or not loop.is_running():
            return timedelta(0)
        answered = asyncio.Event()
        asked = time.monotonic()
        loop.call_soon_threadsafe(lambda: self._loop.call_soon_threadsafe(answered.set))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(answered.wait(), self._settings.heartbeat_seconds)
        return timedelta(seconds=time.monotonic() - asked)

    def _heard_cancel(self, job_id: UUID | None) -> None:
        runtime = self._runtime
        if job_id is None or runtime is None or runtime.engine is None or runtime.loop is None:
            return
        runtime.loop.call_soon_threadsafe(runtime.engine.interrupt, job_id)
