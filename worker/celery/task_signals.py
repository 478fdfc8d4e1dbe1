"""Celery's signals of a task (`task_prerun`, `task_success`, `task_failure`, `task_postrun`) in the asyncio pool.

Celery's tracer sends them in its own pools; instrumentation libraries rely on them. Receivers run on the loop, in the
context of the task, so context variables that they set apply to the whole task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any

from billiard.einfo import ExceptionInfo
from celery import Task, signals, states
from celery.app.task import Context


@dataclass(slots=True)
class TaskEnd:
    """The result of a task; set by the user of `task_signals`."""

    value: Any = None


@contextmanager
def task_signals(
    task: Task, id: str, headers: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[TaskEnd]:
    """Send the signals of a task before and after the block, if there are receivers; a cancelled one is `REVOKED`."""
    end = TaskEnd()
    shown = [signals.task_prerun, signals.task_success, signals.task_failure, signals.task_postrun]
    if not any(signal.receivers for signal in shown):
        yield end
        return
    # Celery's name for what receivers find at `task.request`. It belongs to the thread, which runs many tasks, so it
    # is set only while receivers run; they do not wait.
    request = {**headers, "id": id, "args": args, "kwargs": kwargs, "called_directly": False, "is_eager": False}

    def send(signal: Any, **fields: Any) -> None:
        task.request_stack.push(Context(request))
        try:
            signal.send(sender=task, **fields)
        finally:
            task.request_stack.pop()

    named = {"task_id": id, "task": task, "args": args, "kwargs": kwargs}
    send(signals.task_prerun, **named)
    began = monotonic()
    state, value = states.REVOKED, None
    try:
        yield end
        state, value = states.SUCCESS, end.value
        send(signals.task_success, result=value, runtime=monotonic() - began)
    except asyncio.CancelledError:
        raise
    except Exception as error:
        state, value = states.FAILURE, error
        info = ExceptionInfo()
        failed = {"task_id": id, "args": args, "kwargs": kwargs}
        send(signals.task_failure, **failed, exception=error, traceback=info.tb, einfo=info)
        raise
    finally:
        send(signals.task_postrun, **named, retval=value, state=state)
