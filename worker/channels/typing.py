"""Shows in a chat that its turn is being worked on, as long as something of it is in flight in this worker.

Telegram shows it for 5 s. The answer to the message begins it; this renews it. Nothing is written down: when the turn
waits for a person, or ends, or the worker does, nobody renews it and it is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from uuid import UUID

from planq.shared.kernel.ids import Attempt
from planq.shared.platform.errors import DatabaseUnavailable, PlanqError

FindsChats = Callable[[Collection[UUID], Collection[str], int], Awaitable[Sequence[tuple[str, str, str]]]]
"""`(jobs, kinds, limit) -> (kind, tenant, thread) of the turns among them`; raises `DatabaseUnavailable`."""

ShowsTyping = Callable[[str, str], Awaitable[None]]

_TICK_SECONDS = 4.5
_MOST_SECONDS = 4.0
"""Of one round: whatever hangs is given up before the next one begins."""

_MOST = 50
_EACH = 8
"""At once of one tenant."""

_log = logging.getLogger("planq.channels")


class TypingNotices:
    """The typing notices of one worker, for the `attempts` that it carries out; lives on one event loop.

    They pass beside everything else: a chat that hangs holds up no other tenant's, no delivery and no turn.
    """

    def __init__(
        self,
        attempts: Callable[[], Collection[Attempt]],
        chats: FindsChats,
        shows: Mapping[str, ShowsTyping],
        *,
        most_seconds: float = _MOST_SECONDS,
    ) -> None:
        """`shows` has by kind of channel what shows it once, in a thread of a tenant's channel."""
        self._attempts = attempts
        self._chats = chats
        self._shows = shows
        self._most_seconds = most_seconds
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._running = asyncio.create_task(self._run())

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def renew(self) -> None:
        """Show it in every chat whose turn is in flight here; raises `DatabaseUnavailable`."""
        if not (jobs := {attempt.job_id for attempt in self._attempts()}):
            return
        places: dict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(_EACH))
        found = await self._chats(jobs, self._shows.keys(), _MOST)
        await asyncio.gather(
            *(self._show_one(places[tenant], kind, tenant, thread) for kind, tenant, thread in found)
        )

    async def _show_one(self, places: asyncio.Semaphore, kind: str, tenant_id: str, thread: str) -> None:
        # Nobody misses one: the delivery of the reply tells what is wrong with a channel.
        with contextlib.suppress(TimeoutError, PlanqError, ValueError):
            async with asyncio.timeout(self._most_seconds), places:
                await self._shows[kind](tenant_id, thread)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            since = loop.time()
            try:
                await self.renew()
            except DatabaseUnavailable:
                pass  # whoever needs it says so
            except Exception:
                _log.exception("typing_broke")
            await asyncio.sleep(max(_TICK_SECONDS - (loop.time() - since), 0.0))
