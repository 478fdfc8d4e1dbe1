"""A worker's lease, and the fence: where it could not be renewed, writes stop before anybody may do the same.

The worker's own clock decides, within the lease's margin. At its beginning the calls are cancelled (the processes of
the `cpu` pool killed). Where one has not ended after half of it, because a thread of it runs or the event loop hangs,
the process ends. After three quarters the guard kills it (`planq.deploy.local.guard`, Linux), also a process that is
stopped, in which no thread runs. A process without such calls lives on, and waits. A separate thread sees that a
lease is over: the loop may hang, and the heartbeat thread with it.

The mark of the lease lies in anonymous shared memory, which child processes inherit; the clock is the same for all of
them, and counts the time for which the machine slept. Only the heartbeat thread moves the mark, after each heartbeat
and the comparison that follows it. The mark is the moment before a renewal was asked for, and the database counts
from a later one. So by this clock a lease is over before it is by the database's, by its margin at least.

`Writes` counts the running calls of tools that write (`idempotent` and `unsafe`), and an `Owner` lets a call act. A
call runs until its asyncio task and every thread that it started have ended; cancellation stops no thread. Code must
ask here before it reports an attempt as stopped.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
import os
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta

from planq.shared.kernel.claims import Claim
from planq.shared.kernel.ids import Attempt
from planq.shared.kernel.states import Effect, Recovery
from planq.shared.platform.beats import boot_clock
from planq.shared.platform.errors import DatabaseUnavailable, OwnershipLost

_log = logging.getLogger("planq.fence")

FENCED_EXIT = 76
"""Exit code of a process that ended because a write of it could not be stopped (EX_PROTOCOL of sysexits.h)."""

_LOOK_SECONDS = 0.1
_END_SHARE = 0.5
_KILL_SHARE = 0.75


class Fence:
    """One for a worker, in the process whose end ends its calls; `is_acting` is for any thread."""

    def __init__(self, lease: Lease, guard: Callable[[float, bool], None] = lambda *_: None) -> None:
        """`guard` gets when the process must be gone, on the lease's clock, and whether writes act now."""
        self._lease = lease
        self._guard = guard
        self._stop: Callable[[], None] = lambda: None
        self._busy = threading.Event()
        self._lock = threading.Lock()
        lease.on_renewal = self._renewed

    def start(self, stop: Callable[[], None]) -> None:
        """Begin to watch. `stop` ends the calls, or begins to; it is called from a thread of its own, and again."""
        self._stop = stop
        threading.Thread(target=self._watch, name="planq-fence", daemon=True).start()

    def is_acting(self, acting: bool) -> None:
        """Take note that calls of writes may act from now on, or that none does any more."""
        with self._lock:
            if acting:
                self._busy.set()
            else:
                self._busy.clear()
            self._notify_guard()

    def _renewed(self) -> None:
        with self._lock:
            self._notify_guard()

    def _notify_guard(self) -> None:
        self._guard(self._at(_KILL_SHARE), self._busy.is_set())

    def _at(self, share: float) -> float:
        return self._lease.ends_at + share * self._lease.margin_seconds

    def _watch(self) -> None:
        while True:
            self._busy.wait()
            left = self._lease.ends_at - self._lease.clock()
            if left < 0:
                self._close()
            else:
                # No longer sleep: the clock of a sleep stands still while the machine sleeps.
                time.sleep(min(left, _LOOK_SECONDS) + 0.001)

    def _close(self) -> None:
        """Stop what acts; end the process where that does not stop in time."""
        _log.warning("lease_over", extra={"margin_seconds": self._lease.margin_seconds})
        self._stop()
        while self._busy.is_set() and not self._lease.is_fresh:
            if self._lease.clock() > self._at(_END_SHARE):
                _log.critical("writes_not_stopped")
                os._exit(FENCED_EXIT)
            time.sleep(_LOOK_SECONDS / 10)


_POLL_SECONDS = 0.2

_FORMAT = "d"


class Lease:
    """The worker's own view of its lease. Make it before any child is forked.

    `on_renewal` may be set once: it is called after each renewal, in the same thread.
    """

    def __init__(
        self, duration: timedelta, margin: timedelta = timedelta(0), clock: Callable[[], float] = boot_clock
    ) -> None:
        """The worker's own lease ends `margin` before the database's. `clock` is the same in all its processes."""
        self._seconds = (duration - margin).total_seconds()
        self.margin_seconds = margin.total_seconds()
        self.clock = clock
        self.on_renewal: Callable[[], None] = lambda: None
        self._mark = mmap.mmap(-1, struct.calcsize(_FORMAT))
        self.renewed(clock())

    def renewed(self, at: float) -> None:
        """Note a renewal that was asked for at `at` on the clock, its consequences drawn; from one thread only."""
        struct.pack_into(_FORMAT, self._mark, 0, at)
        self.on_renewal()

    @property
    def ends_at(self) -> float:
        """The moment, on the clock, from which on this worker must not act on its lease any more."""
        (at,) = struct.unpack_from(_FORMAT, self._mark, 0)
        return float(at) + self._seconds

    @property
    def is_fresh(self) -> bool:
        """False when others may soon take over, or have taken over, what this worker holds."""
        (at,) = struct.unpack_from(_FORMAT, self._mark, 0)  # asked for at each claim and conclusion
        return self.clock() < float(at) + self._seconds

    async def until_fresh(self) -> None:
        """Return at once while the lease is fresh, else when it has been renewed; cancel to give up."""
        while True:  # the mark is moved by another thread or process, which can set no event here
            if self.is_fresh:
                return
            await asyncio.sleep(_POLL_SECONDS)


_STOPPED_LOOK_SECONDS = 0.05

WRITES = frozenset({Effect.IDEMPOTENT, Effect.UNSAFE})


def is_looked_into(claim: Claim) -> bool:
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
        return list(self._calls)

    def is_acting(self, attempt: Attempt) -> bool:
        return attempt in self._calls

    async def until_stopped(self, attempt: Attempt) -> None:
        """Return when the call of an attempt can act no more; nobody knows how long a thread takes."""
        while True:
            if not self.is_acting(attempt):
                return
            await asyncio.sleep(_STOPPED_LOOK_SECONDS)

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
    """The right of one call to act (`planq.shared.agentic.tools.contract.Ownership`).

    `until` is when the call's time runs out, on the lease's clock; `is_over`: nobody waits for it any more.
    """

    def __init__(
        self, claim: Claim, lease: Lease | None, writes: Writes, is_held: Callable[[], Awaitable[bool]]
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
        if self._lease is not None and self.until is not None:
            self.until = self._lease.clock() + seconds

    def calling(self, timeout_seconds: float) -> AbstractContextManager[None]:
        """Return the block in which the call is made, in its asyncio task; its time runs from now on."""
        if self._lease is not None:
            self.until = self._lease.clock() + timeout_seconds
        return self._writes.calling(self._attempt) if self._is_write else nullcontext()
