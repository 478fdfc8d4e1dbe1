"""A sweeper knows what is about to run out of time, so that it need not wait for its turn to end it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from planq.shared.kernel.limits import Limits
from planq.worker.engine import Sweeper
from planq.worker.tools import tool
from tests.support.agents import rows
from tests.support.harness import SWEEP, Harness, ScriptedModel, make_tool

Play = Callable[..., Any]

SOON = Limits(job_timeout_seconds=4)
PLAN_SOON = Limits(plan_timeout_seconds=5)
PLAN = {"calls": [{"tool_name": "double", "arguments": {"number": 1}}]}


@tool(effect="pure")
async def double(number: float) -> dict[str, float]:
    """Return twice the number."""
    return {"result": number * 2}


async def told(harness: Harness, ahead: float) -> list[float]:
    """Sweep once, and return in how many seconds the sweeper wants to look again."""
    due: list[float] = []
    sweeper = Sweeper(
        SWEEP,
        harness.worker_registry,
        harness,
        harness,
        harness.silent.job_ended,
        lambda: 0.0,
        interrupt=lambda _: None,
        due_in=due.append,
        ahead=lambda: timedelta(seconds=ahead),
    )
    await sweeper.sweep()
    return due


async def executing(harness: Harness, limits: Limits) -> None:
    """Submit a job and accept its plan, whose step nobody begins."""
    job_id = await harness.submit("", plan=PLAN, limits=limits)
    await rows(
        harness,
        "UPDATE jobs SET status = 'executing', open_steps = 1, deadline = now() + make_interval(secs => %s) "
        "WHERE id = %s RETURNING id",
        limits.plan_timeout_seconds,
        job_id,
    )


@pytest.mark.parametrize(("limits", "seconds"), [(SOON, 4), (PLAN_SOON, 5)], ids=["job", "plan"])
def test_what_runs_out_of_time_before_the_next_sweep_is_told(play: Play, limits: Limits, seconds: float) -> None:
    async def scenario(harness: Harness) -> Any:
        await harness.submit()
        await executing(harness, limits)
        return await told(harness, 60), await told(harness, 1)

    soon, too_far = play(scenario, ScriptedModel(), [make_tool(double)])
    assert [0 < due <= seconds for due in soon] == [True]
    assert too_far == []


def test_the_time_of_a_paused_job_does_not_run_out(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        for limits in (SOON, PLAN_SOON):
            await executing(harness, limits)
        await rows(harness, "UPDATE jobs SET paused_at = now() RETURNING id")
        return await told(harness, 60)

    assert play(scenario, ScriptedModel(), [make_tool(double)]) == []


def test_a_stage_that_is_claimed_tells_how_long_its_job_may_take(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        ends: list[float] = []
        harness.dispatcher.in_flight.ends_in = ends.append
        for limits in (SOON, PLAN_SOON):
            await harness.submit("", plan=PLAN, limits=limits)
            await harness.drain()
        return ends

    assert set(play(scenario, ScriptedModel(), [make_tool(double)])) == {4.0, 5.0}
