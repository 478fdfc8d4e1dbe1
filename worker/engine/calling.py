"""The call of a tool under its timeout, in an asyncio task of its own, so that one which ignores it is left behind.

Whatever comes before the call is done in the same task. Otherwise a thousand steps that begin together would all be
prepared before the first of them calls its tool, and then end together as well, after a time in which nobody worked.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from time import monotonic
from typing import Any

from shared.domain.errors import InternalFault, TimedOut
from shared.domain.retry import Phase
from shared.domain.tool import LATENCIES_SECONDS
from shared.ports import StepClaim
from worker.engine.writes import Owner

_ABANDON_SECONDS = 2.0
"""How long a cancelled tool may take to clean up before its step goes on without it."""


class Calling:
    """One attempt on its way to the tool's answer; `phase` says how far it has come.

    `is_abandoned`: a tool that was cancelled at its timeout. It may still run.
    """

    __slots__ = ("_asked_at", "_claim", "_news", "is_abandoned", "owner", "phase")

    def __init__(self, claim: StepClaim, owner: Owner) -> None:
        """Call it on the event loop. Once nobody waits for the call, its `owner` is told that it is over."""
        self._claim = claim
        self.owner = owner
        self._news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.phase = Phase.PREPARING
        self.is_abandoned = False
        self._asked_at: float | None = None

    def count(self, counts: Counter[tuple[str, ...]], outcome: str) -> None:
        """Count a call of the tool that came to `outcome`, and how long it took; nothing where there was none.

        Keys: `tool_call` by tool and outcome, `tool_seconds` by tool and the bucket that it falls into, the sum of
        `tool_ms` by tool.
        """
        if self._asked_at is None or self.phase not in (Phase.CALLING, Phase.GATHERED):
            return
        seconds, tool = monotonic() - self._asked_at, self._claim.tool_name
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
            await self._news
        except asyncio.CancelledError:
            self._end()
            await _abandon(task)
            raise
        self._end()
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
        raise TimedOut(f"tool {self._claim.tool_name!r} did not answer within {self._claim.timeout_seconds:g} s")

    async def ask(self, tool: Coroutine[Any, Any, Any]) -> Any:
        """Return the tool's answer; from now on its time runs. Only for the attempt that `answer` awaits."""
        self._asked_at = monotonic()
        timer = asyncio.get_running_loop().call_later(self._claim.timeout_seconds, self._wake)
        try:
            return await tool
        finally:
            timer.cancel()

    def _end(self) -> None:
        self.owner.is_over = True

    def _wake(self, _: object = None) -> None:
        if not self._news.done():
            self._news.set_result(None)


async def _abandon(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait([task], timeout=_ABANDON_SECONDS)
    if task.done() and not task.cancelled():
        task.exception()  # seen, so that asyncio does not report it as never retrieved
