"""Counts the running calls of tools that write (`idempotent` and `unsafe`), and permits each call to begin.

A call runs until its asyncio task and every thread that it started have ended; cancellation stops no thread. Code
must ask here before it reports an attempt as stopped.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from planq.shared.domain.errors import DatabaseUnavailable, OwnershipLost
from planq.shared.domain.jobs.states import Effect, Recovery
from planq.shared.ports.jobs.claims import StepClaim
from planq.shared.ports.jobs.sweep import Attempt
from planq.worker.engine.fence import Lease

_LOOK_SECONDS = 0.05

WRITES = frozenset({Effect.IDEMPOTENT, Effect.UNSAFE})


def is_looked_into(claim: StepClaim) -> bool:
    """True when somebody will look whether a call has taken effect: it must have stopped by then."""
    return claim.effect is Effect.UNSAFE and claim.recovery is not Recovery.FAIL


@dataclass(eq=False, slots=True)
class _Acting:
    """`is_open` while its asyncio task runs; `threads` of it that do."""

    is_open: bool = True
    threads: int = 0


class Writes:
    """Those of one process; safe from any thread."""

    def __init__(self, on_change: Callable[[str, Attempt], None] = lambda *_: None) -> None:
        """`on_change` is called when the first call begins (`acting`) and when the last has ended (`still`)."""
        self._on_change = on_change
        self._lock = threading.Lock()
        self._calls: dict[Attempt, _Acting] = {}

    @property
    def acting(self) -> list[Attempt]:
        """The attempts whose calls may act now."""
        return list(self._calls)

    def is_acting(self, attempt: Attempt) -> bool:
        """True while the call of an attempt may act."""
        return attempt in self._calls

    async def until_stopped(self, attempt: Attempt) -> None:
        """Return when the call of an attempt can act no more; nobody knows how long a thread takes."""
        while True:
            if not self.is_acting(attempt):
                return
            await asyncio.sleep(_LOOK_SECONDS)

    @contextmanager
    def calling(self, attempt: Attempt) -> Iterator[None]:
        """The call of an attempt acts within this block, in the asyncio task of the call."""
        with self._lock:
            call = self._calls[attempt] = _Acting()
            if len(self._calls) == 1:
                self._on_change("acting", attempt)
        try:
            yield
        finally:
            with self._lock:
                call.is_open = False
                self._settle(attempt, call)

    @contextmanager
    def in_thread(self, attempt: Attempt) -> Iterator[None]:
        """In a thread of a call: it acts for as long. Raises `OwnershipLost` where the call was broken off before."""
        with self._lock:
            call = self._calls.get(attempt)
            if call is None or not call.is_open:
                raise OwnershipLost("the call was broken off before it had begun")
            call.threads += 1
        try:
            yield
        finally:
            with self._lock:
                call.threads -= 1
                self._settle(attempt, call)

    def _settle(self, attempt: Attempt, call: _Acting) -> None:
        if not call.is_open and not call.threads and self._calls.get(attempt) is call:
            del self._calls[attempt]
            if not self._calls:
                self._on_change("still", attempt)


class Owner:
    """The right of one call to act (`planq.shared.ports.Ownership`).

    `until` is when the call's time runs out, on the lease's clock; `is_over`: nobody waits for it any more.
    """

    def __init__(
        self, claim: StepClaim, lease: Lease | None, writes: Writes, is_held: Callable[[], Awaitable[bool]]
    ) -> None:
        """Make it on the event loop; `is_held` asks the database. Without a `lease` there is none to lose."""
        self._attempt = Attempt(claim.ref, claim.attempt)
        self._is_write = claim.effect in WRITES
        self._lease = lease
        self._writes = writes
        self._is_held = is_held
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self.is_over = False
        self.until: float | None = None

    def check(self) -> None:
        if self.is_over:
            raise OwnershipLost("the call was broken off: nothing may be done in its name any more")
        if self._lease is None:
            return
        if not self._lease.is_fresh:
            raise OwnershipLost("this worker could not renew its lease: another one may be about to do the same")
        if self.until is not None and self._lease.clock() > self.until:
            raise OwnershipLost("the time of the call has run out")

    async def ask(self) -> None:
        self.check()
        left = None if self._lease is None else self._lease.ends_at - self._lease.clock()
        try:
            async with asyncio.timeout(left):
                held = await self._is_held()
        except (DatabaseUnavailable, TimeoutError) as error:
            raise OwnershipLost("the database did not say in time whether the attempt is still the owner") from error
        if not held:
            raise OwnershipLost("the attempt is over: its step was taken over, was cancelled or has ended")
        self.check()

    def ask_from_thread(self) -> None:
        if threading.get_ident() == self._thread:
            raise RuntimeError("confirm_sync() stands on the event loop, which it would block: await confirm()")
        asyncio.run_coroutine_threadsafe(self.ask(), self._loop).result()

    def in_thread(self) -> AbstractContextManager[None]:
        return self._writes.in_thread(self._attempt) if self._is_write else nullcontext()

    def prolong(self, seconds: float) -> None:
        """Let the call act for so long from now on."""
        if self._lease is not None and self.until is not None:
            self.until = self._lease.clock() + seconds

    @contextmanager
    def calling(self, timeout_seconds: float) -> Iterator[None]:
        """The call is made within this block, in its asyncio task; its time runs from here."""
        if self._lease is not None:
            self.until = self._lease.clock() + timeout_seconds
        with self._writes.calling(self._attempt) if self._is_write else nullcontext():
            yield
