"""Waiting for jobs without a thread or a connection for each: one future a waiter, one LISTEN and one poll for all.

A notification is a hint that may get lost, so whoever waits registers first and looks at the job afterwards, and one
query every few seconds asks for everybody who still waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator
from uuid import UUID

from starlette.types import Receive

from shared.domain.errors import DatabaseUnavailable

_log = logging.getLogger("planq.api")


class Waiters:
    """Who waits for which job; lives on one event loop. `ended` says which of the given jobs have ended."""

    def __init__(self, ended: Callable[[Collection[UUID]], Awaitable[set[UUID]]], poll_seconds: float) -> None:
        self._ended = ended
        self._poll_seconds = poll_seconds
        self._waiting: dict[UUID, set[asyncio.Future[None]]] = {}
        self._poll_now = asyncio.Event()
        self._is_closed = False

    def __len__(self) -> int:
        """Return how many clients wait."""
        return sum(len(futures) for futures in self._waiting.values())

    @contextlib.contextmanager
    def watch(self, job_id: UUID) -> Iterator[asyncio.Future[None]]:
        """Register for a job; the future is done once the job may have ended, or nobody may wait any more.

        Look at the job after this call: only then no ending is missed.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._is_closed:
            future.set_result(None)
        self._waiting.setdefault(job_id, set()).add(future)
        try:
            yield future
        finally:
            mine = self._waiting[job_id]
            mine.discard(future)
            if not mine:
                del self._waiting[job_id]

    def heard(self, job_id: UUID | None) -> None:
        """Wake those who wait for a job; None (anything may have been missed) makes the poll look at once."""
        if job_id is None:
            self._poll_now.set()
            return
        for future in self._waiting.get(job_id, ()):
            if not future.done():
                future.set_result(None)

    def close(self) -> None:
        """Let everybody go, now and from now on: the process stops."""
        self._is_closed = True
        for job_id in list(self._waiting):
            self.heard(job_id)

    async def poll(self) -> None:
        """Ask for everybody's jobs every `poll_seconds`, for ever; cancel to stop."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._poll_now.wait(), self._poll_seconds)
            self._poll_now.clear()
            if not self._waiting:
                continue
            try:
                for job_id in await self._ended(list(self._waiting)):
                    self.heard(job_id)
            except DatabaseUnavailable as error:
                _log.warning("database_unavailable", extra={"cause": error.message})


async def wait_or_leave(done: asyncio.Future[None], seconds: float, receive: Receive) -> bool:
    """Wait until `done`, at most so long; return False as soon as the client has gone."""
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((done, gone), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return not gone.done()
    finally:
        gone.cancel()
        await asyncio.wait((gone,))


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
