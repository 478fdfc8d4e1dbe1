"""A wake-up that finds nothing to claim costs no slot: doubled wake-ups must not make a worker deaf."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import Pool
from planq.shared.kernel.wakes import Wake
from planq.worker.tools.builtin.pure import calculate
from tests.support.harness import Harness, ScriptedModel, make_tool

Play = Callable[..., Any]

JOB = new_id()
PLAN = {"calls": [{"tool_name": "calculate", "arguments": {"expression": "6*7"}}]}
VAIN: dict[str, Wake] = {
    "a stage": Wake.plan(JOB),
    "a step": Wake(StepRef(JOB, 0, 0), Pool.IO, "calculate"),
    "several steps": Wake(StepRef(JOB, 0, 0), Pool.IO, "calculate", more=((1, "calculate"),)),
}


@pytest.mark.parametrize("name", VAIN)
def test_wake_ups_for_nothing_leave_the_slots_free(play: Play, name: str) -> None:
    async def story(harness: Harness) -> None:
        async with asyncio.timeout(60):
            for _ in range(3):
                await harness.dispatcher.run(VAIN[name])
            assert harness.model.asked == []
            job, _ = await harness.run("", plan=PLAN)
        assert job["status"] == "completed"

    play(story, ScriptedModel(), [make_tool(calculate)], slots=1)
