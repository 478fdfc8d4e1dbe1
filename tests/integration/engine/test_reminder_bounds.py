"""What reminders may not pass, whoever asks at once: their number, and the budget of the tree that asked for them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from planq.shared.platform.errors import BudgetExceeded, InvalidArguments
from tests.integration.engine.test_kept import begun, context_of, furnish
from tests.integration.engine.test_schedules import DUE, MADE, Play, Read, read
from tests.support.harness import Harness, ScriptedModel

__all__ = ["read"]


def test_calls_at_once_do_not_pass_the_limit_together(play: Play, read: Read) -> None:
    asked = {"description": "a", "delay_seconds": 60}

    async def scenario(harness: Harness) -> list[Any]:
        await furnish(harness, max_reminders=2)
        claims = [await begun(harness, ("remind_me", asked)) for _ in range(8)]
        tool = harness.registry.find("remind_me")
        assert tool is not None
        calls = (tool.call(asked, context_of(claim)) for claim in claims)
        return await asyncio.gather(*calls, return_exceptions=True)

    came = play(scenario, ScriptedModel())

    assert len(read("SELECT 1 FROM schedules")) == 2
    refused = [one for one in came if isinstance(one, InvalidArguments)]
    assert len(refused) == 6
    assert "2 reminders already" in refused[0].message


def test_the_same_reminder_asked_for_at_once_is_one_and_refused_to_nobody(play: Play, read: Read) -> None:
    asked = {"description": "a", "delay_seconds": 60}

    async def scenario(harness: Harness) -> list[Any]:
        await furnish(harness, max_reminders=1)
        context = context_of(await begun(harness, ("remind_me", asked)))
        tool = harness.registry.find("remind_me")
        assert tool is not None
        return await asyncio.gather(*(tool.call(asked, context) for _ in range(5)))

    came = play(scenario, ScriptedModel())

    assert len({one["next_at"] for one in came}) == 1
    assert len(read("SELECT 1 FROM schedules")) == 1


BUDGET = {"max_tokens": 100, "max_cost_usd": 0.5, "max_model_calls": 3, "max_steps": 4, "soft": 0.5}
USE = "UPDATE jobs SET input_tokens = %s, model_calls = %s, cost_usd = 0.125 WHERE id = %s"
END = """
UPDATE jobs SET status = 'completed', finished_at = now(), wake_at = NULL WHERE metadata ->> 'schedule' IS NOT NULL
"""


def left(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [tuple(row["budget"][name] for name in BUDGET) for row in rows]


def test_the_jobs_of_a_reminder_share_what_the_tree_had_left(play: Play, read: Read) -> None:
    async def scenario(harness: Harness) -> None:
        await furnish(harness)
        claim = await begun(harness, ("remind_me", {"description": "a", "crontab": "0 9 * * *"}))
        read("UPDATE jobs SET budget = %s::json WHERE id = %s", json.dumps(BUDGET), claim.ref.job_id)
        read(USE, 40, 1, claim.ref.job_id)
        tool = harness.registry.find("remind_me")
        assert tool is not None
        await tool.call({"description": "a", "crontab": "0 9 * * *"}, context_of(claim))
        for _ in range(2):
            read(DUE)
            await harness.sweeper.sweep()
            read(USE, 30, 1, read(MADE)[-1]["id"])
            read(END)
        read(DUE)
        assert await harness.sweeper.sweep() == 0

    play(scenario, ScriptedModel())

    assert left(read(MADE)) == [(60, 0.375, 2, 3, 0.5), (30, 0.25, 1, 3, 0.5)]
    (schedule,) = read("SELECT * FROM schedules")
    assert (schedule["is_active"], "used up the budget" in schedule["error"]) == (False, True)


def test_what_a_job_may_still_use_is_not_given_to_the_next_one_as_well(play: Play, read: Read) -> None:
    async def scenario(harness: Harness) -> list[int]:
        await furnish(harness)
        claim = await begun(harness, ("remind_me", {"description": "a", "crontab": "* * * * *"}))
        read("UPDATE jobs SET budget = %s::json WHERE id = %s", json.dumps(BUDGET), claim.ref.job_id)
        tool = harness.registry.find("remind_me")
        assert tool is not None
        await tool.call({"description": "a", "crontab": "* * * * *"}, context_of(claim))
        made = []
        for _ in range(2):
            read(DUE)
            await harness.sweeper.sweep()
            made.append(len(read(MADE)))
        read(USE, 60, 1, read(MADE)[0]["id"])
        read(END)
        await harness.sweeper.sweep()
        return [*made, len(read(MADE))]

    made = play(scenario, ScriptedModel())

    assert made == [1, 1, 2]
    assert left(read(MADE)) == [(100, 0.5, 3, 3, 0.5), (40, 0.375, 2, 3, 0.5)]


def test_a_tree_with_nothing_left_is_refused_a_reminder(play: Play, read: Read) -> None:
    async def scenario(harness: Harness) -> None:
        await furnish(harness)
        claim = await begun(harness, ("remind_me", {"description": "a", "delay_seconds": 60}))
        read("UPDATE jobs SET budget = %s::json WHERE id = %s", json.dumps(BUDGET), claim.ref.job_id)
        read(USE, 100, 1, claim.ref.job_id)
        tool = harness.registry.find("remind_me")
        assert tool is not None
        with pytest.raises(BudgetExceeded, match="nothing left"):
            await tool.call({"description": "a", "delay_seconds": 60}, context_of(claim))

    play(scenario, ScriptedModel())

    assert read("SELECT 1 FROM schedules") == []


def test_what_a_job_used_stays_off_the_budget_when_the_job_is_deleted(play: Play, read: Read) -> None:
    async def scenario(harness: Harness) -> None:
        job_id = await harness.submit()
        read(USE, 30, 1, job_id)
        read(
            "INSERT INTO schedules (id, tenant_id, input, next_at, is_active, budget, last_job_id) "
            "VALUES (gen_random_uuid(), 'default', 'x', now(), true, %s::json, %s)",
            json.dumps(BUDGET),
            job_id,
        )
        for _ in range(2):
            await harness.database.execute("charge_schedules", ids=[job_id])

    play(scenario, ScriptedModel())

    (schedule,) = rows = read("SELECT * FROM schedules")
    assert left(rows) == [(70, 0.375, 2, 4, 0.5)]
    assert schedule["last_job_id"] is None
