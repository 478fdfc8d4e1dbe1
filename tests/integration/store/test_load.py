"""How many bulk jobs there may be: as many as live workers have room for, fewer while interactive work waits."""

from __future__ import annotations

from typing import Any

import pytest

from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import Pool, Priority
from tests.integration.store.test_control import Rows, play  # noqa: F401

A_MOMENT_AGO = "UPDATE {} SET wake_at = wake_at - interval '1.1 seconds'"


async def worker(rows: Rows, *pools: Pool, bulk: int = 75) -> Any:
    worker_id = new_id()
    await rows.worker_registry.register(worker_id, "w", pools, [], 100, "1", bulk_capacity=bulk)
    return worker_id


async def window(rows: Rows) -> int:
    counts = {row["status"]: row["n"] for row in await rows.worker_registry.unfinished() if row["kind"] == "bulk"}
    return int(counts["window"])


def test_the_window_follows_the_workers_that_live_and_keep_up(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        found = [await window(rows)]
        first, second = await worker(rows, Pool.IO), await worker(rows, Pool.IO, bulk=10)
        await worker(rows, Pool.CPU)
        await worker(rows)
        found.append(await window(rows))
        await rows.run("UPDATE workers SET lag_ms = 500 WHERE id = %s", first)
        found.append(await window(rows))
        await rows.run("UPDATE workers SET heartbeat_at = now() - interval '16 s' WHERE id = %s", second)
        found.append(await window(rows))
        assert found == [0, 170, 95, 75]

    play(scenario)


def test_a_worker_of_one_priority_makes_room_for_that_one_alone(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        for only, bulk in ((Priority.INTERACTIVE, 0), (Priority.BULK, 100)):
            await rows.worker_registry.register(
                new_id(), str(only), [Pool.IO], [], 100, "1", bulk_capacity=bulk, only=only
            )
        found = [
            row["planq_window"]
            for priority in Priority
            for row in await rows.database.call_table("planq_window", str(priority))
        ]
        assert found == [200, 200]

    play(scenario)


@pytest.mark.parametrize("kind", ["a stage", "a step"])
@pytest.mark.parametrize("priority", list(Priority))
def test_interactive_work_that_waits_halves_the_window(
    play: Any,  # noqa: F811
    kind: str,
    priority: Priority,
) -> None:
    async def scenario(rows: Rows) -> None:
        await worker(rows, Pool.IO)
        if kind == "a stage":
            job = await rows.submit(priority=priority)
        else:
            job = await rows.executing("read", priority=priority)
        found = [await window(rows)]
        await rows.run(A_MOMENT_AGO.format("jobs" if kind == "a stage" else "steps"))
        found.append(await window(rows))
        await rows.requests.pause("default", job)
        found.append(await window(rows))
        assert found == ([150, 75, 150] if priority is Priority.INTERACTIVE else [150, 150, 150])

    play(scenario)
