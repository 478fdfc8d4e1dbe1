"""When work counts as published in vain, so that an idle worker that heard nothing of it takes itself for deaf."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from planq.shared.kernel.states import Pool, Priority
from planq.shared.platform.database import Database
from tests.integration.store.test_control import Rows

IDLE, SETTLED = timedelta(minutes=5), timedelta(seconds=3)


@pytest.mark.parametrize("is_taken", [True, False], ids=["the broker took it", "the broker was away"])
@pytest.mark.parametrize("kind", ["step", "stage"])
def test_what_the_broker_did_not_take_was_not_published(database_url: str, kind: str, is_taken: bool) -> None:
    """It was published before the outage, in a long queue, and is returned again and again while it lasts."""

    async def scenario(rows: Rows) -> int:
        await (rows.executing("read") if kind == "step" else rows.submit())
        table = "steps" if kind == "step" else "jobs"
        await rows.run(f"UPDATE {table} SET wakes = 3, wake_at = now()")
        wakes = await rows.worker_registry.take_due_wakes(10)
        assert len(wakes) == 1
        if not is_taken:
            await rows.worker_registry.return_wakes(wakes)
            assert await rows.worker_registry.take_due_wakes(10) == wakes, "it is due again at once"
            await rows.worker_registry.return_wakes(wakes)
        await rows.run(f"UPDATE {table} SET wake_at = wake_at - interval '1 minute'")
        unanswered = rows.worker_registry.unanswered_wakes
        assert await unanswered(Pool.IO, IDLE, SETTLED, Priority.BULK) == 0, "a worker of bulk work alone is not deaf"
        assert await unanswered(Pool.IO, IDLE, SETTLED, Priority.INTERACTIVE) == int(is_taken)
        return await unanswered(Pool.IO, IDLE, SETTLED)

    async def inside() -> int:
        database = Database(database_url, max_connections=1)
        await database.open()
        try:
            return await scenario(Rows(database))
        finally:
            await database.close()

    assert asyncio.run(inside()) == (1 if is_taken else 0)
