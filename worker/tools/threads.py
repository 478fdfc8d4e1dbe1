"""Threads for synchronous tools: bounded, and abandoned once their caller has gone.

A thread cannot be stopped. When a step's timeout cancels its call, the thread is abandoned and counted until it ends
by itself. If too many hang, further calls fail as transient, so a hanging tool cannot use up the process. Threads are
daemons: a hanging one does not delay the worker's exit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

from planq.shared.agentic.tools.contract import Ownership
from planq.shared.platform.errors import Transient


class ToolThreads:
    """The threads of a registry: at most `running` calls at a time per loop, `alive` threads in all."""

    def __init__(self, running: int = 32, alive: int = 128) -> None:
        self._running = running
        self._most_alive = alive
        self._limiter: RunVar[anyio.CapacityLimiter] = RunVar("planq.tools.threads")
        self._lock = threading.Lock()
        self.alive = 0

    async def call(
        self, function: Callable[..., Any], arguments: dict[str, Any], owner: Ownership | None = None
    ) -> Any:
        """Call `function(**arguments)` in a thread that cancelling abandons; raise `Transient` if too many live."""
        try:
            limiter = self._limiter.get()
        except LookupError:
            limiter = anyio.CapacityLimiter(self._running)
            self._limiter.set(limiter)
        return await anyio.to_thread.run_sync(
            self._counted, function, arguments, owner, abandon_on_cancel=True, limiter=limiter
        )

    def _counted(self, function: Callable[..., Any], arguments: dict[str, Any], owner: Ownership | None) -> Any:
        with self._lock:
            if self.alive >= self._most_alive:
                raise Transient(
                    f"{self._most_alive} synchronous tool calls are still running in this worker, timed-out ones "
                    "included: a tool hangs; look for steps that failed with `timeout`, and restart the worker"
                )
            self.alive += 1
        try:
            with nullcontext() if owner is None else owner.in_thread():
                return function(**arguments)
        finally:
            with self._lock:
                self.alive -= 1
