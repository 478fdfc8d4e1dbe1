"""When a process for suspects ends."""

from __future__ import annotations

import asyncio
from typing import cast
from uuid import UUID

from planq.worker.engine import Dispatcher
from planq.worker.engine.chain import WakeOutcome
from planq.worker.runtime.quarantine import carry_out_suspects

GROUP = UUID(int=1)


class Groups:
    """Carries out group after group, `waiting` of them."""

    def __init__(self, waiting: int) -> None:
        self.waiting = waiting

    async def run_suspects(self, group: UUID | None) -> WakeOutcome:
        """Take the next one."""
        found = min(self.waiting, 1)
        self.waiting -= found
        return WakeOutcome(steps=found)


def left_after(waiting: int, threads: int) -> int:
    groups = Groups(waiting)
    engine = cast(Dispatcher, groups)
    asyncio.run(carry_out_suspects(engine, GROUP, 1.0, asyncio.Event(), lambda: threads))
    return groups.waiting


def test_a_process_carries_out_whatever_waits() -> None:
    assert left_after(waiting=3, threads=0) == 0


def test_a_process_in_which_a_call_computes_that_nobody_waits_for_ends() -> None:
    """Its step has timed out or was cancelled. No thread can be stopped; it would compute beside other steps."""
    assert left_after(waiting=3, threads=1) == 2
