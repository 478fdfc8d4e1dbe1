"""A Celery pool with one asyncio loop: hundreds of waiting steps in one process.

Stock pools call tasks synchronously, so an `async def` task never runs in them. This one decodes the message itself
and awaits the task's coroutine on a loop in its own thread; Celery's consumer, prefetch window, acknowledgements,
remote control and monitors work unchanged. What Celery's tracer does otherwise (retries, results, canvas) is not
needed: that state lives in the database.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal as signals
import threading
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from billiard.einfo import ExceptionInfo
from celery.concurrency.base import BasePool
from celery.exceptions import SoftTimeLimitExceeded, Terminated
from kombu.serialization import loads, prepare_accept_content

from planq.worker.celery.task_signals import task_signals


class WorkFailed(Exception):
    """Ends a Celery task whose stage or step failed, so that monitors show it as failed; nothing is retried."""


_log = logging.getLogger("planq.pool")

message_headers: ContextVar[Mapping[str, Any]] = ContextVar("planq_message_headers")
"""The headers of the message whose task runs. Celery's `Task.request` belongs to a thread, which runs many here."""

_CANCEL_SECONDS = 5.0
"""Time for cancelled work to release itself, after the drain and on a cold stop."""

_TICK_SECONDS = 0.01

_GIVE_WAY_SECONDS = 50e-6
"""Time that a woken thread needs to ask for the interpreter."""

_LOOP_ENDED = 70  # EX_SOFTWARE of sysexits.h


def new_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop: uvloop's, which halves the CPU of a statement, where it is installed."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return asyncio.new_event_loop()
    return new_event_loop()


@dataclass(eq=False)
class PoolMessage:
    """One message in the pool; Celery keeps it as the request's apply result and may `terminate` it."""

    number: int
    pool: AsyncioPool
    task: asyncio.Task[Any] | None = None
    stop_signal: int | None = None
    timed_out: bool = False
    timers: list[asyncio.TimerHandle] = field(default_factory=list)

    def terminate(self, signal: int | None = None) -> None:
        self.pool.terminate_job(self.number, signal)


class AsyncioPool(BasePool):
    """Runs coroutine tasks on one loop; Celery constructs it, so its runtime is `app.planq_runtime`."""

    body_can_be_buffer = True
    signal_safe = False
    task_join_will_block = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._numbers = itertools.count(1)
        self._messages: dict[int, PoolMessage] = {}
        self._hub: Any = None
        self._loop = new_loop()
        self._thread = threading.Thread(target=self._run_loop, name="planq-loop", daemon=True)
        self._stopping = asyncio.Event()
        self._accept: Any = None

    # Life ---------------------------------------------------------------------------------------------------------

    def on_start(self) -> None:
        """Start the loop and open what lives on it; an error there ends the worker before it takes any message."""
        self._accept = prepare_accept_content(self.app.conf.accept_content)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.app.planq_runtime.open(), self._loop).result()

    def _run_loop(self) -> None:
        try:
            # The runner cancels whatever is left on the loop when it closes it.
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._stopping.wait())
        except BaseException:
            # Without its loop the process would keep its leases and do nothing, for ever; a supervisor replaces it.
            _log.critical("loop_ended", exc_info=True)
            os._exit(_LOOP_ENDED)

    def register_with_event_loop(self, hub: Any) -> None:
        """Keep Celery's hub: while the pool drains, acknowledgements still have to flow through it."""
        self._hub = hub

    def on_stop(self) -> None:
        """Warm stop: take nothing new, let work end within the drain time, then cancel it."""
        self.app.planq_runtime.wind_down()
        until = time.monotonic() + self.app.planq_runtime.drain_seconds
        self._wait(until, lambda: self.app.planq_runtime.is_in_quarantine)
        self.on_terminate()

    def on_terminate(self) -> None:
        """Cold stop: cancel all work at once."""
        for number in list(self._messages):
            self.terminate_job(number)
        self._wait(time.monotonic() + _CANCEL_SECONDS)
        self._finish()

    def _wait(self, until: float, goes_on: Callable[[], bool] = lambda: False) -> None:
        while time.monotonic() < until and (
            self._messages or goes_on() or (self._hub is not None and self._hub._ready)
        ):
            self._pump()
            time.sleep(_TICK_SECONDS)

    def _pump(self) -> None:
        """Run what the hub has queued (acknowledgements above all), except reading new messages."""
        if self._hub is None:
            return
        ready = self._hub._pop_ready()
        while ready:
            callback = ready.pop()
            if getattr(getattr(callback, "fun", None), "__name__", "") == "on_readable":
                continue
            try:
                callback()
            except Exception:
                _log.exception("hub_callback_failed")
        self._hub.fire_timers()

    def _finish(self) -> None:
        if self._loop.is_running():
            closing = asyncio.run_coroutine_threadsafe(self.app.planq_runtime.close(), self._loop)
            try:
                closing.result(_CANCEL_SECONDS)
            except Exception:
                _log.exception("loop_not_closed_cleanly")
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(_CANCEL_SECONDS)

    # Work ---------------------------------------------------------------------------------------------------------

    def on_apply(
        self,
        target: Callable[..., Any],
        args: Any = None,
        kwargs: Any = None,
        callback: Callable[..., Any] | None = None,
        accept_callback: Callable[..., Any] | None = None,
        soft_timeout: float | None = None,
        timeout: float | None = None,
        **_: Any,
    ) -> PoolMessage:
        """Take one message: `args` begin with task name, task id, request, body, content type and encoding."""
        message = PoolMessage(next(self._numbers), self)
        self._messages[message.number] = message
        if accept_callback is not None:
            accept_callback(message.number, time.monotonic())
        self._loop.call_soon_threadsafe(self._spawn, message, args, callback, soft_timeout or timeout)
        if len(self._messages) == 1:
            # The idle loop wakes up. Without this pause the thread would keep the interpreter from it until it waits
            # for the next message: 0.37 ms at the median instead of 0.14 (two busy cores, 2026-11).
            time.sleep(_GIVE_WAY_SECONDS)
        return message

    def _spawn(self, message: PoolMessage, args: Any, callback: Any, limit: float | None) -> None:
        message.task = self._loop.create_task(self._call(args))
        # A callback and not a `finally`: a task that is cancelled before its first step never runs a line.
        message.task.add_done_callback(partial(self._conclude, message, args, callback, limit, time.monotonic()))
        if message.stop_signal is not None:
            message.task.cancel()
        if limit:
            message.timers.append(self._loop.call_later(limit, self._time_out, message))

    def _time_out(self, message: PoolMessage) -> None:
        message.timed_out = True
        if message.task is not None:
            message.task.cancel()

    def _conclude(
        self,
        message: PoolMessage,
        args: Any,
        callback: Any,
        limit: float | None,
        started: float,
        task: asyncio.Task[Any],
    ) -> None:
        for timer in message.timers:
            timer.cancel()
        outcome = (*self._outcome(message, args, limit, task), time.monotonic() - started)
        # Called on this thread and not through the hub: there the acknowledgement would wait for the next poll, up to
        # a second for each message.
        try:
            callback(outcome)
        except Exception:
            _log.exception("pool_callback_failed")
        finally:
            self._messages.pop(message.number, None)

    def _outcome(
        self, message: PoolMessage, args: Any, limit: float | None, task: asyncio.Task[Any]
    ) -> tuple[int, Any]:
        """Return what Celery expects of an ended task: whether it failed, and its value or error."""
        if task.cancelled():
            reason = (
                SoftTimeLimitExceeded(limit)
                if message.timed_out
                else Terminated(message.stop_signal or signals.SIGTERM)
            )
            return 1, _info(reason)
        error = task.exception()
        if error is None:
            return 0, task.result()
        if not isinstance(error, WorkFailed):
            _log.error("celery_task_failed", exc_info=error, extra={"task": args[0], "task_id": args[1]})
        return 1, _info(error)

    async def _call(self, args: Any) -> Any:
        name, number, headers, body, content_type, encoding = args[:6]
        message_headers.set(headers)
        if content_type:
            arguments, keywords, _ = loads(body, content_type, encoding, accept=self._accept)
        else:
            arguments, keywords, _ = body
        task = self.app.tasks[name]
        with task_signals(task, number, headers, arguments, keywords) as ended:
            ended.value = await task.run(*arguments, **keywords)
        return ended.value

    def terminate_job(self, pid: int, signal: int | None = None) -> None:
        """Cancel one message's coroutine; `pid` is the number that Celery got when it was accepted."""
        message = self._messages.get(pid)
        if message is None:
            return
        message.stop_signal = int(signal or signals.SIGTERM)
        self._loop.call_soon_threadsafe(lambda: message.task and message.task.cancel())

    def _get_info(self) -> dict[str, Any]:
        info: dict[str, Any] = super()._get_info()
        info["in-flight"] = len(self._messages)
        return info


def _info(error: BaseException) -> ExceptionInfo:
    try:
        raise error
    except BaseException:
        return ExceptionInfo()
    finally:
        # Celery reads the copy. The frames refer to the error: a reference cycle for the garbage collector.
        error.__traceback__ = None
