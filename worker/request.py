"""Celery's view of a message in the `cpu` worker's parent process: it sees when the child that ran it has died."""

from __future__ import annotations

from typing import Any

from billiard.exceptions import WorkerLostError
from celery.worker.request import Request


class StepRequest(Request):
    """Reports a process that was killed (by the kernel for its memory, say) to the worker's lifecycle.

    One that planq killed itself comes as `Terminated` and is not reported: what it carried out was over before.
    """

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> None:
        """Do what Celery does, then let the step be taken back at once instead of after its time-out."""
        super().on_failure(exc_info, send_failed_event, return_ok)
        error = getattr(exc_info.exception, "exc", exc_info.exception)
        lifecycle = getattr(self.app, "planq_lifecycle", None)
        if isinstance(error, (WorkerLostError, SystemExit)) and lifecycle is not None and self.worker_pid:
            lifecycle.process_died(self.worker_pid)
