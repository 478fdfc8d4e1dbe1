"""The database's clock is one function: leases, deadlines, timers and retries go by what a test makes of it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.limits import Limits
from planq.shared.kernel.states import JobStatus, Pool
from planq.shared.platform.errors import ErrorRecord
from planq.worker.tools import tool
from tests.support.claiming import claim_stage, claim_step
from tests.support.clock import move_clock
from tests.support.harness import LEASE, Harness, ScriptedModel, make_tool

Play = Callable[..., Any]

SECOND = timedelta(seconds=1)
FAILED = ErrorRecord("tool_error", "not yet", retryable=True)


@tool(effect="pure")
async def double(number: float) -> dict[str, float]:
    """Return twice the number."""
    return {"result": number * 2}


MODEL = ScriptedModel.planning(("double", {"number": 4}))
TOOLS = [make_tool(double)]


async def claimed(harness: Harness) -> Any:
    """Submit a job, accept its plan, and claim its step."""
    job_id = await harness.submit()
    stage = await claim_stage(harness.store, job_id, [JobStatus.QUEUED])
    assert stage is not None
    await harness.carry_out(stage)
    harness.published.clear()
    step = await claim_step(harness.store, StepRef(job_id, 0, 0))
    assert step is not None
    return step


def test_a_job_that_nobody_begins_expires_when_its_time_in_the_queue_is_over(play: Play) -> None:
    wait = timedelta(seconds=Limits().queue_timeout_seconds)

    async def scenario(harness: Harness) -> Any:
        job_id = await harness.submit()
        harness.published.clear()
        await move_clock(harness.database, wait - SECOND)
        in_time = await harness.worker_registry.expired_jobs(10)
        await move_clock(harness.database, wait + SECOND)
        await harness.sweeper.sweep()
        return in_time, (await harness.requests.job("default", job_id))[0]

    in_time, job = play(scenario, MODEL)
    assert in_time == []
    assert (job["status"], job["error"]["code"]) == ("failed", "queue_timeout")


def test_a_lease_ends_when_no_heartbeat_came_for_its_length(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        step = await claimed(harness)
        found = []
        for later in (LEASE - SECOND, LEASE + SECOND):
            await move_clock(harness.database, later)
            found.append([lost.ref for lost in await harness.worker_registry.lost_steps(10, timedelta(hours=1))])
        return step.ref, found

    ref, (before, after) = play(scenario, MODEL, TOOLS)
    assert (before, after) == ([], [ref])


def test_a_step_is_tried_again_when_its_pause_is_over_by_a_claim_and_by_the_sweeper(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        step = await claimed(harness)
        await harness.store.fail_step(step, FAILED, timedelta(hours=1))
        await move_clock(harness.database, timedelta(minutes=59))
        early = await claim_step(harness.store, step.ref), await harness.worker_registry.take_due_wakes(10)
        await move_clock(harness.database, timedelta(minutes=61))
        assert await harness.worker_registry.heartbeat(harness.worker_id, timedelta(0))
        return early, await harness.worker_registry.take_due_wakes(10), await claim_step(harness.store, step.ref)

    early, wakes, again = play(scenario, MODEL, TOOLS)
    assert early == (None, [])
    assert [(wake.ref.index, wake.pool) for wake in wakes] == [(0, Pool.IO)]
    assert again.attempt == 2
