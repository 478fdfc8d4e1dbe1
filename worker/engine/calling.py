"""The call of a tool under its timeout, in an asyncio task of its own, so that one which ignores it is left behind.

Whatever comes before the call is done in the same task. Otherwise a thousand steps that begin together would all be
prepared before the first of them calls its tool, and then end together as well, after a time in which nobody worked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from shared.domain.errors import InternalFault, TimedOut
from shared.domain.retry import Phase
from shared.ports import StepClaim

_ABANDON_SECONDS = 2.0
"""How long a cancelled tool may take to clean up before its step goes on without it."""


class Calling:
    """One attempt on its way to the tool's answer; `phase` says how far it has come.

    `is_abandoned`: a tool that was cancelled at its timeout. It may still run.
    """

    __slots__ = ("_claim", "_news", "is_abandoned", "phase")

    def __init__(self, claim: StepClaim) -> None:
        """Call it on the event loop."""
        self._claim = claim
        self._news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.phase = Phase.PREPARING
        self.is_abandoned = False

    async def answer(self, attempt: Coroutine[Any, Any, Any]) -> Any:
        """Return what `attempt` returns, which asks the tool through `ask`; raises what it raises.

        Raises `TimedOut` when the tool does not answer in time. When the caller is cancelled, so is the attempt.
        """
        task = asyncio.create_task(attempt)
        task.add_done_callback(self._wake)
        try:
            await self._news
        except asyncio.CancelledError:
            await _abandon(task)
            raise
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
        timer = asyncio.get_running_loop().call_later(self._claim.timeout_seconds, self._wake)
        try:
            return await tool
        finally:
            timer.cancel()

    def _wake(self, _: object = None) -> None:
        if not self._news.done():
            self._news.set_result(None)


async def _abandon(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait([task], timeout=_ABANDON_SECONDS)
    if task.done() and not task.cancelled():
        task.exception()  # seen, so that asyncio does not report it as never retrieved
