"""Wake-ups that nobody will carry out: taken by a worker that died or froze, or lost with the broker's memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.states import Pool, Priority, WakeQueue
from planq.shared.kernel.wakes import Wake
from tests.integration.engine.test_sweep import CHAIN, TOOLS, accepted
from tests.support.harness import Harness, ScriptedModel

Play = Callable[..., Any]


async def published_ago(harness: Harness, table: str, seconds: float) -> None:
    """Let what is unclaimed look as if it had been published so long ago."""
    async with harness.database.connection() as connection:
        statement = (
            f"UPDATE {table} SET wakes = 0, wake_at = now() + planq_wake_grace() - make_interval(secs => %s) "
            "WHERE wake_at IS NOT NULL"
        )
        await connection.execute(statement.encode(), [seconds])


@pytest.mark.parametrize("table", ["jobs", "steps"])
def test_a_lost_wake_up_is_published_again_as_soon_as_the_queue_is_empty(play: Play, table: str) -> None:
    async def scenario(harness: Harness) -> Any:
        job_id = await accepted(harness) if table == "steps" else await harness.submit()
        counts = []
        for seconds, is_empty in ((0.5, True), (3.0, False), (3.0, True), (0.0, True)):
            # What still lies in the queue is not lost, however long it waits there; what is in none soon is.
            harness.published = [] if is_empty else [Wake.plan(job_id)]
            if seconds:
                await published_ago(harness, table, seconds)
            await harness.sweeper.sweep()
            counts.append(len(harness.published) - (not is_empty))
        return counts

    assert play(scenario, ScriptedModel.planning(*CHAIN), TOOLS) == [0, 0, 1, 0]


def test_of_what_was_lost_together_older_jobs_are_published_first(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        older, younger = await accepted(harness), await harness.submit()
        harness.published = []
        await published_ago(harness, "jobs", 3.0)
        await published_ago(harness, "steps", 3.0)
        await harness.sweeper.sweep()
        published = [wake.ref.job_id if not wake.ref.is_stage else wake.job_id for wake in harness.published]
        return published, sorted([older, younger])

    published, by_age = play(scenario, ScriptedModel.planning(*CHAIN), TOOLS)
    assert published == by_age, "a stage of a younger job waits for a step of an older one"


def test_a_paused_job_is_not_looked_at_again_and_again(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        job_id = await accepted(harness)
        await harness.requests.pause("default", job_id)
        await published_ago(harness, "steps", 3.0)
        harness.published = []
        assert (await harness.worker_registry.look(timedelta(0), timedelta(0))).unclaimed == set()
        assert await harness.worker_registry.take_due_wakes(10, [WakeQueue("io")]) == []
        async with harness.database.connection() as connection:
            rows = await connection.execute("SELECT wake_at - now() AS rest FROM steps WHERE status = 'ready'")
            return [row["rest"] for row in await rows.fetchall()]

    assert all(rest > timedelta(minutes=9) for rest in play(scenario, ScriptedModel.planning(*CHAIN), TOOLS))


@pytest.mark.parametrize("table", ["jobs", "steps"])
def test_what_waits_in_the_queue_of_one_priority_says_nothing_of_the_other(play: Play, table: str) -> None:
    async def scenario(harness: Harness) -> Any:
        bulk = {"priority": Priority.BULK}
        lost = await (accepted(harness, **bulk) if table == "steps" else harness.submit(**bulk))
        waiting = Wake.plan(await harness.submit())
        harness.published = [waiting]
        await published_ago(harness, "jobs", 3.0)
        await published_ago(harness, "steps", 3.0)
        await harness.sweeper.sweep()
        assert harness.published[0] == waiting
        step = Wake(StepRef(lost, 0, 0), Pool.IO, "double", 1, Priority.BULK)
        assert harness.published[1:] == [step if table == "steps" else Wake.plan(lost, priority=Priority.BULK)]
        # What other parts of a sweep found to publish is told its priority before it is.
        return await harness.worker_registry.with_jobs([waiting, Wake.plan(lost), replace(step, attempt=2)])

    found = play(scenario, ScriptedModel.planning(*CHAIN), TOOLS)
    assert [wake.priority for wake in found] == [Priority.INTERACTIVE, Priority.BULK, Priority.BULK]
