"""A process of a `cpu` worker that died in an unsafe call: whatever happens next, the call is not made again."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from planq.shared.agentic.references.resolution import as_called
from planq.shared.kernel.ids import Attempt, StepRef
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.store.transitions import PostgresJobStore
from planq.shared.kernel.wakes import Wake
from planq.shared.platform.database import Database
from planq.worker.engine.lease import Lease
from planq.worker.runtime.prefork import PreforkProcesses
from planq.worker.runtime.reconcile import Reconciler
from tests.integration.store.test_control import Rows

LEASE = timedelta(seconds=15)


class Published:
    """The port `Publisher`, keeping what it is given."""

    def __init__(self) -> None:
        self.wakes: list[Wake] = []

    async def publish(self, wakes: Sequence[Wake]) -> bool:
        self.wakes += wakes
        return True


def test_a_call_whose_process_died_while_the_database_was_away_is_left_to_the_sweeper(database_url: str) -> None:
    """The worker cannot abandon the step at once; its later comparisons find it held although nothing runs it."""

    async def scenario(rows: Rows) -> Any:
        worker = new_id()
        rows.store = PostgresJobStore(rows.database, worker, as_called)
        job = await rows.executing("unsafe")
        claim = await rows.claim(job, 0)
        processes, published = PreforkProcesses(), Published()
        for kind in ("claiming", "begun"):
            processes.notify(kind, claim.ref, claim.attempt)
        assert processes.died(os.getpid()) == Attempt(claim.ref, claim.attempt)
        reconciler = Reconciler(rows.worker_registry, worker, processes, Lease(LEASE), published)
        for _ in range(3):
            await reconciler.compare()
        _, (step,) = await rows.job(job)
        lost = await rows.worker_registry.lost_steps(10, timedelta(0))
        return step["status"], step["releases"], published.wakes, [found.ref for found in lost], claim.ref

    async def inside() -> Any:
        database = Database(database_url, max_connections=2)
        await database.open()
        try:
            return await scenario(Rows(database))
        finally:
            await database.close()

    status, releases, wakes, lost, ref = asyncio.run(inside())
    assert (status, releases, wakes, lost) == ("running", 0, [], [ref])


def test_what_a_process_did_is_known_after_another_one_got_its_number() -> None:
    processes = PreforkProcesses()
    first, second = StepRef(new_id(), 0, 0), StepRef(new_id(), 0, 1)
    for kind, ref in (("claiming", first), ("begun", first), ("claiming", second)):
        processes.notify(kind, ref, 1)
    assert processes.is_here(Attempt(second, 1))
    assert not processes.is_here(Attempt(first, 1))
    assert processes.was_called(Attempt(first, 1))
