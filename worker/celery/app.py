"""The Celery instance of a worker process, and its task: decode, call the dispatcher, report the outcome.

`app` is built from the environment when this module is imported, as `celery -A planq.worker.main` expects; it opens
no connection. `worker/main.py` attaches the composed runtime as `app.planq_runtime`.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import Any

from celery import Celery, Task

from planq.shared.broker import names
from planq.shared.broker.celery_config import create_celery
from planq.shared.broker.dead_letters import DeadLetterWriter
from planq.shared.broker.messages import decode_wake, read_links, read_tenant
from planq.shared.kernel.states import Priority
from planq.shared.kernel.wakes import Wake
from planq.shared.settings.environment import load_settings
from planq.shared.settings.kinds import comma_separated
from planq.worker.celery.pool import WorkFailed, message_headers
from planq.worker.container import WorkerRuntime
from planq.worker.engine import Loop

_POISONED_EXIT = 70
"""Exit code of a `cpu` process that replaces itself (EX_SOFTWARE of sysexits.h)."""

settings = load_settings()
app: Celery = create_celery(settings.require_broker(), prefix=settings.broker_prefix)
app.conf.worker_consumer = "planq.worker.celery.consumer:WakeConsumer"
app.events.dispatcher_cls = "planq.worker.celery.events:TaskEvents"
app.planq_dead_letters = DeadLetterWriter(app)
app.planq_runtime = None
app.planq_windows = {}
app.planq_reserve = None
app.planq_remote_control = frozenset(comma_separated(settings.remote_control))
app.planq_runner = None
app.planq_lifecycle = None


class WakeTask(Task):
    """A task whose `run` is a coroutine function: the asyncio pool awaits it, a prefork process on its own loop."""

    abstract = True
    Request = "planq.worker.celery.consumer:StepRequest"
    throws = (WorkFailed,)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _process_runner().run(self.run(*args, **kwargs))


def _dispatcher() -> Loop:
    runtime: WorkerRuntime | None = app.planq_runtime
    if runtime is None or runtime.dispatcher is None:
        raise RuntimeError(
            "this process runs no planq worker; start workers with `planq worker io` or `planq worker cpu`"
        )
    return runtime.dispatcher


async def _carry_out(wake: Wake) -> str:
    """Carry out a wake-up; return the task's result or raise `WorkFailed`. A poisoned process ends here."""
    if headers := message_headers.get(None):
        wake = replace(wake, links=read_links(headers), tenant=read_tenant(headers))
        app.planq_lists.note((headers.get("delivery_info") or {}).get("routing_key", ""), wake.tenant)
    carried = await _dispatcher().run(wake)
    if carried.poisoned:
        os._exit(_POISONED_EXIT)
    if carried.error is not None:
        # The message may quote a provider or a tool, including prompts and keys: it stays in the database.
        raise WorkFailed(carried.error.code)
    return carried.text


def _process_runner() -> asyncio.Runner:
    """Return this process's loop; open the runtime on it at first use, again after an error."""
    runner: asyncio.Runner | None = app.planq_runner
    if runner is None:
        runner = asyncio.Runner()
        try:
            runner.run(app.planq_runtime.open())
        except BaseException:
            runner.close()
            raise
        app.planq_runner = runner
    return runner


async def _run(
    job: str,
    round: int,
    steps: list[tuple[int, str | None]],
    pool: str,
    priority: str = Priority.INTERACTIVE,
    **_newer: Any,
) -> str:
    return await _carry_out(decode_wake(job, round, steps, pool, priority))


planner, executor, respond = (app.task(_run, name=name, base=WakeTask) for name in names.TASKS)
"""One task under three names, so that monitors show what is done."""
