"""Timers in memory for what an attempt has scheduled: the end of a step's wait, the retry of a step or a stage.

The sweeper finds both too, later. A timer makes them happen on time, as long as this process lives.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial

from planq.shared.kernel.claims import Claim, StepClaim
from planq.shared.kernel.follow_ups import after_end, after_step
from planq.shared.kernel.job_store import JobStore
from planq.shared.kernel.states import TERMINAL_JOB
from planq.shared.kernel.wakes import Publisher, Wake, links_after, wake_of
from planq.worker.engine.chain import in_messages

SetTimer = Callable[[float, Callable[[], Awaitable[object]]], None]
"""Calls something in so many seconds, or leaves that to the sweeper (`planq.shared.platform.timers`)."""


class Alarms:
    """Of one process; those of a process that has gone are the sweeper's."""

    def __init__(
        self, store: JobStore, publisher: Publisher, set_timer: SetTimer, workers: Callable[[], int] = lambda: 1
    ) -> None:
        """`workers` says how many workers of the pool live, as far as is known."""
        self._store = store
        self._publisher = publisher
        self._set_timer = set_timer
        self._workers = workers

    def after_wait(self, claim: StepClaim, delay: timedelta) -> None:
        """End the wait of a step that has just been suspended, and wake what follows it, or its job's end."""
        self._set_timer(delay.total_seconds(), partial(self._end_wait, claim))

    def after_retry(self, claim: Claim, delay: timedelta) -> None:
        again = wake_of(replace(claim, attempt=claim.attempt + 1), links_after(claim, 1))
        self._set_timer(delay.total_seconds(), partial(self._publish, [again]))

    async def _end_wait(self, claim: StepClaim) -> None:
        result = await self._store.fire_timer(claim)
        await self._publish(after_step(claim.ref, result, claim))
        if result.job_status in TERMINAL_JOB and claim.is_awaited:
            await self._publish(after_end(await self._store.serve_end(claim.ref.job_id), claim))

    async def _publish(self, wakes: Sequence[Wake]) -> None:
        if wakes:
            await self._publisher.publish(in_messages(wakes, self._workers()))
