"""When a step began, and how long it took: neither counts the time that a person, or a worker that stopped, took."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from planq.shared.kernel.states import JobStatus, Settlement
from planq.shared.platform.database import Database
from planq.shared.subjects.jobs.store import Verdict
from tests.integration.store.test_control import BOOM, Rows
from tests.support.claiming import claim_stage
from tests.support.stored import DID_IT


def play(database_url: str, scenario: Callable[[Rows], Awaitable[None]]) -> None:
    async def inside() -> None:
        database = Database(database_url, max_connections=2)
        await database.open()
        try:
            await scenario(Rows(database))
        finally:
            await database.close()

    asyncio.run(inside())


@pytest.mark.parametrize("outcome", list(Settlement))
def test_the_time_that_a_person_takes_is_not_the_time_of_the_step(database_url: str, outcome: Settlement) -> None:
    """The call began 100 s ago and was cut off 90 s ago; the answer comes now."""

    async def scenario(rows: Rows) -> None:
        job = await rows.executing("unsafe")
        assert await rows.store.ask_step(await rows.claim(job, 0), DID_IT, BOOM)
        await rows.run(
            "UPDATE steps SET started_at = now() - interval '100 s', asked_at = now() - interval '90 s' "
            "WHERE asked_at IS NOT NULL"
        )
        error = BOOM if outcome is Settlement.UNKNOWN else None
        await rows.requests.settle("default", job, 0, Verdict(outcome, output={"value": "x"}, error=error))
        if outcome is Settlement.DID_NOT_HAPPEN:
            _, (step,) = await rows.job(job)
            assert step["started_at"] is None
            await rows.succeed(job, 0)
        stage = await claim_stage(rows.store, job, [JobStatus.RESPONDING])
        assert stage is not None
        (result,) = await rows.requests.results(stage)
        if outcome is Settlement.DID_NOT_HAPPEN:
            assert result.duration_ms < 60_000
        else:
            assert result.duration_ms == 10_000

    play(database_url, scenario)


def test_a_step_that_is_handed_back_begins_anew_and_a_retried_one_does_not(database_url: str) -> None:
    async def scenario(rows: Rows) -> None:
        job = await rows.executing("read", "read")
        assert (await rows.store.release(await rows.claim(job, 0))).applied
        assert (await rows.store.fail_step(await rows.claim(job, 1), BOOM, timedelta(0))).applied
        _, (given_back, retried) = await rows.job(job)
        assert given_back["started_at"] is None
        assert retried["started_at"] is not None
        assert await rows.claim(job, 1) is not None
        assert (await rows.job(job))[1][1]["started_at"] == retried["started_at"]

    play(database_url, scenario)
