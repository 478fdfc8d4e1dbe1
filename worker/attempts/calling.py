"""One attempt on its way to its tool's answer: its time, what it reports, and how it is counted."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Any

from planq.shared.domain.errors import InternalFault, TimedOut
from planq.shared.domain.jobs.retry import Phase
from planq.shared.domain.tools.definition import LATENCIES_SECONDS
from planq.shared.ports import StepClaim
from planq.worker.attempts.progress import CallProgress
from planq.worker.attempts.secrets import CallSecrets
from planq.worker.engine.fence import Owner

_ABANDON_SECONDS = 2.0
"""How long a cancelled tool may take to clean up before its step goes on without it."""


_MOST_TOOLS = 200
"""So many tools are counted by their names in one process, however many its servers offer in the course of time."""


class Calling:
    """One attempt on its way to the tool's answer; `phase` says how far it has come.

    `is_abandoned`: a tool that was cancelled at its timeout. It may still run. `seconds` is what it gets. It takes
    the reports of its tool (`planq.shared.ports.tools.Reports`), for which `begin_progress` is called once.
    """

    __slots__ = (
        "_asked_at",
        "_claim",
        "_done_or_timeout",
        "_is_prolonged",
        "_loop",
        "_timer",
        "begin_progress",
        "is_abandoned",
        "owner",
        "phase",
        "progress",
        "seconds",
        "secrets",
    )

    def __init__(self, claim: StepClaim, owner: Owner, secrets: CallSecrets) -> None:
        """Call it on the event loop. Once nobody waits for the call, its `owner` learns that it is over."""
        self._claim = claim
        self.owner = owner
        self.secrets = secrets
        self._loop = asyncio.get_running_loop()
        self._done_or_timeout: asyncio.Future[None] = self._loop.create_future()
        self.begin_progress: Callable[[], CallProgress] | None = None
        self.progress: CallProgress | None = None
        self.phase = Phase.PREPARING
        self.is_abandoned = False
        self.seconds = claim.timeout_seconds
        self._asked_at: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_prolonged = False

    def count(self, counts: Counter[tuple[str, ...]], outcome: str) -> None:
        """Count a call of the tool that came to `outcome`, and how long it took; nothing where there was none.

        Keys: `tool_call` by tool and outcome, `tool_seconds` by tool and the bucket that it falls into, the sum of
        `tool_ms` by tool.
        """
        if self._asked_at is None or self.phase not in (Phase.CALLING, Phase.GATHERED):
            return
        seconds, tool = monotonic() - self._asked_at, self._claim.tool_name
        if ("tool_ms", tool) not in counts and sum(name == "tool_ms" for name, *_ in counts) >= _MOST_TOOLS:
            tool = "other"
        bucket = next((str(bound) for bound in LATENCIES_SECONDS if seconds <= bound), "+Inf")
        counts["tool_call", tool, outcome] += 1
        counts["tool_seconds", tool, bucket] += 1
        counts["tool_ms", tool] += round(seconds * 1000)

    async def answer(self, attempt: Coroutine[Any, Any, Any]) -> Any:
        """Return what `attempt` returns, which asks the tool through `ask`; raises what it raises.

        Raises `TimedOut` when the tool does not answer in time. When the caller is cancelled, so is the attempt.
        """
        task = asyncio.create_task(attempt)
        task.add_done_callback(self._wake)
        try:
            await self._done_or_timeout
        except asyncio.CancelledError:
            self.owner.is_over = True
            await _abandon(task)
            raise
        self.owner.is_over = True
        if task.cancelled():
            # Not from here: passed on, it would look like this process stopping, and be repeated for ever.
            raise InternalFault(f"tool {self._claim.tool_name!r} cancelled itself")
        if task.done():
            try:
                return task.result()
            finally:
                del task  # what it raised refers to this frame: left here, only the garbage collector would free both
        self.is_abandoned = True
        await _abandon(task)
        raise TimedOut(f"tool {self._claim.tool_name!r} did not {self._waited_for}")

    async def ask(self, tool: Coroutine[Any, Any, Any]) -> Any:
        """Return the tool's answer; from now on its time runs. Only for the attempt that `answer` awaits."""
        self._asked_at = monotonic()
        self._timer = self._loop.call_later(self.seconds, self._wake)
        try:
            return await tool
        finally:
            self._timer.cancel()

    def prolong(self, seconds: float) -> None:
        """Let the call go on for so many seconds from now: it has reported."""
        if self._timer is not None and not self._timer.cancelled():
            self._timer.cancel()
            self._timer = self._loop.call_later(seconds, self._wake)
            self.owner.prolong(seconds)
            self._is_prolonged = True

    def report(self, done: float | None, message: str) -> None:
        """Take a report of the tool, which nobody hears once the call is over."""
        if self.progress is None:
            if self.begin_progress is None:  # nobody waits for the call any more
                return
            self.progress = self.begin_progress()
        self.progress.report(done, message)

    def report_from_thread(self, done: float | None, message: str) -> None:
        """Do what `report` does, in a thread of the call."""
        asyncio.run_coroutine_threadsafe(self._report(done, message), self._loop).result()

    def end_reports(self) -> None:
        """Write nothing more of what the tool reports."""
        if self.progress is not None:
            self.progress.close()
        self.begin_progress = self.progress = None  # which refer to this call: only the collector would free them

    async def _report(self, done: float | None, message: str) -> None:
        self.report(done, message)

    @property
    def _waited_for(self) -> str:
        if self._is_prolonged:
            took = 0.0 if self._asked_at is None else monotonic() - self._asked_at
            return f"report within {self._claim.timeout_seconds:g} s, or end in time: it ran for {took:.0f} s"
        return f"answer within {self.seconds:g} s"

    def _wake(self, _: object = None) -> None:
        if not self._done_or_timeout.done():
            self._done_or_timeout.set_result(None)


async def _abandon(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait([task], timeout=_ABANDON_SECONDS)
    if task.done() and not task.cancelled():
        task.exception()  # seen, so that asyncio does not report it as never retrieved
