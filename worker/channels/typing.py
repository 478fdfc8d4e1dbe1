"""Shows "typing" in a chat while an attempt at its turn is in flight in this worker.

Telegram shows it for 5 s; this renews it. Nothing is stored: it expires by itself.
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
"""Maximum time of one round: pending calls are given up before the next round."""

_MOST = 50
_EACH = 8
"""Maximum concurrent calls of one tenant."""

_log = logging.getLogger("planq.channels")


class TypingNotices:
    """The typing notices of one worker, for the `attempts` that it runs; lives on one event loop.

    They are separate from everything else: a chat that hangs delays no other tenant, delivery or turn.
    """

    def __init__(
        self,
        attempts: Callable[[], Collection[Attempt]],
        chats: FindsChats,
        shows: Mapping[str, ShowsTyping],
        *,
        most_seconds: float = _MOST_SECONDS,
    ) -> None:
        """`shows` maps a kind of channel to the call that shows the notice once in a thread of a tenant."""
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
        """Show it in every chat whose turn is in flight here; raise `DatabaseUnavailable`."""
        if not (jobs := {attempt.job_id for attempt in self._attempts()}):
            return
        places: dict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(_EACH))
        found = await self._chats(jobs, self._shows.keys(), _MOST)
        await asyncio.gather(
            *(self._show_one(places[tenant], kind, tenant, thread) for kind, tenant, thread in found)
        )

    async def _show_one(self, places: asyncio.Semaphore, kind: str, tenant_id: str, thread: str) -> None:
        # A failure is ignored: the delivery of the reply reports problems of a channel.
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
