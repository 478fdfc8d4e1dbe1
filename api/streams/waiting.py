"""Waiting for jobs without a thread, task or connection for each: one timer a waiter, one LISTEN and one poll.

A notification may get lost. So a waiter registers before it reads the job, and one query every few seconds serves all
waiters. A job that this process has just stored is not read.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterator
from time import monotonic
from uuid import UUID

from starlette.types import Receive

from planq.shared.platform.timers import every, woken_by

WAITED = "planq.waited_seconds"
"""Key of the scope: how much of a request was waiting for a job, which says nothing about the API's speed."""

_NEW_SECONDS = 30.0
_MOST_NEW = 10_000
"""Most clients wait for a job right after submitting it; these bound what is remembered for them."""


class Waiter:
    """A waiting client. It waits in its own task, until the job or its connection ends."""

    __slots__ = ("_deadline", "is_woken")

    def __init__(self) -> None:
        self.is_woken = False
        self._deadline: asyncio.Timeout | None = None

    def wake(self) -> None:
        if not self.is_woken and self._deadline is not None and not self._deadline.expired():
            self._deadline.reschedule(asyncio.get_running_loop().time())
        self.is_woken = True

    async def wait(self, seconds: float, receive: Receive) -> bool:
        """Return True once woken, or after `seconds`; False as soon as the client has gone."""
        if self.is_woken:
            return True
        try:
            async with asyncio.timeout(seconds) as self._deadline:
                while (await receive())["type"] != "http.disconnect":
                    pass
        except TimeoutError:
            return True
        finally:
            self._deadline = None
        return False


class Waiters:
    """The waiters of each job, for one event loop; `ended` returns which of some jobs have ended."""

    def __init__(self, ended: Callable[[Collection[UUID]], Awaitable[set[UUID]]], poll_seconds: float) -> None:
        self._ended = ended
        self._poll_seconds = poll_seconds
        self._waiting: dict[UUID, set[Waiter]] = {}
        self._count = 0
        self._new: OrderedDict[UUID, tuple[str, float]] = OrderedDict()
        self._poll_now = asyncio.Event()
        self.is_closed = False

    def __len__(self) -> int:
        return self._count

    @contextlib.contextmanager
    def watch(self, job_id: UUID) -> Iterator[Waiter]:
        """Register a waiter for a job; it is woken once the job may have ended, or the process stops.

        Read the job after this call: otherwise its end may be missed.
        """
        waiter = Waiter()
        waiter.is_woken = self.is_closed
        mine = self._waiting.setdefault(job_id, set())
        mine.add(waiter)
        self._count += 1
        try:
            yield waiter
        finally:
            self._count -= 1
            mine.discard(waiter)
            if not mine:
                del self._waiting[job_id]

    def submitted(self, job_id: UUID, tenant_id: str) -> None:
        """Note that this process has just stored a job; call it before its wake-up is published."""
        self._new[job_id] = tenant_id, monotonic() + _NEW_SECONDS
        if len(self._new) > _MOST_NEW:
            self._new.popitem(last=False)

    def has_surely_not_ended(self, job_id: UUID, tenant_id: str) -> bool:
        """True if a registered waiter need not read a new job: no notification of its end has come.

        A job of another tenant is always read, so the answer does not reveal that it exists. The poll finds a lost
        notification.
        """
        whose, until = self._new.get(job_id, ("", 0.0))
        return whose == tenant_id and until > monotonic()

    def heard(self, job_id: UUID | None) -> None:
        """Wake the waiters of a job; None (notifications may be lost) starts the poll at once."""
        if job_id is None:
            self._new.clear()
            self._poll_now.set()
            return
        self._new.pop(job_id, None)
        for waiter in self._waiting.get(job_id, ()):
            waiter.wake()

    def close(self) -> None:
        """Wake every waiter, now and from now on: the process stops."""
        self.is_closed = True
        for job_id in list(self._waiting):
            self.heard(job_id)

    async def poll(self) -> None:
        """Query the jobs of all waiters every `poll_seconds`; cancel to stop."""
        pause = woken_by(self._poll_now)
        await every(self._poll_seconds, self._poll_once, name="waits", pause=pause, waits_first=True)

    async def _poll_once(self) -> None:
        if self._waiting:
            for job_id in await self._ended(list(self._waiting)):
                self.heard(job_id)
