"""Reminders: stored by a tool, fired by the sweeper, one job for each due time, whoever races or was away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.rows import dict_row

from planq.shared.kernel.limits import Limits
from planq.shared.kernel.states import Priority
from planq.shared.kernel.wakes import Wake
from planq.shared.platform.database import Database, as_json
from planq.shared.subjects.agents.store import DocumentStore
from planq.shared.subjects.schedules.store import ScheduleSweep
from tests.integration.engine.test_kept import begun, context_of, furnish, outputs
from tests.integration.engine.test_sweeps_in_time import told
from tests.support.harness import Harness, ScriptedModel

Play = Callable[..., Any]
Read = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def read(database_url: str) -> Read:
    """`read(statement, *values)`: the rows of a statement."""

    def run(statement: str, *values: Any) -> list[dict[str, Any]]:
        with psycopg.connect(database_url, row_factory=dict_row, autocommit=True) as connection:
            cursor = connection.execute(statement, values)
            return cursor.fetchall() if cursor.description else []

    return run


DUE = "UPDATE schedules SET next_at = now() - interval '1 second' WHERE is_active"
MADE = "SELECT * FROM jobs WHERE metadata ->> 'schedule' IS NOT NULL ORDER BY id"


async def remind(harness: Harness, **arguments: Any) -> Any:
    """Call `remind_me` for ada; returns its output, or its error."""
    (output,) = await outputs(
        harness,
        ("remind_me", {"description": "water the plants", **arguments}),
        user_id="ada",
        limits=Limits(max_tool_steps=7),
        model="openai:gpt-test",
    )
    return output


def test_reminders_of_a_disabled_tenant_wait_until_it_is_enabled(play: Play, read: Read) -> None:
    async def scenario(harness: Harness) -> None:
        await furnish(harness)
        await remind(harness, delay_seconds=3600)
        read(DUE)
        read("UPDATE tenants SET is_disabled = true")
        await harness.sweeper.sweep()
        assert read(MADE) == []
        read("UPDATE tenants SET is_disabled = false")
        await harness.sweeper.sweep()
        assert len(read(MADE)) == 1

    play(scenario, ScriptedModel())


def test_a_reminder_becomes_one_job_when_its_time_has_come(play: Play, read: Read) -> None:
    async def scenario(harness: Harness) -> tuple[Any, int, int, list[Any]]:
        await furnish(harness)
        output = await remind(harness, delay_seconds=3600, name="Plants")
        early = await harness.sweeper.sweep()
        read(DUE)
        await harness.sweeper.sweep()
        wakes = list(harness.published)
        return output, early, await harness.sweeper.sweep(), wakes

    output, early, again, wakes = play(scenario, ScriptedModel())

    assert (output["recurrence"], output["name"], output["status"]) == ("once", "Plants", "success")
    ahead = datetime.fromisoformat(output["next_at"]) - datetime.now(UTC)
    assert timedelta(minutes=58) < ahead < timedelta(minutes=61)
    assert (early, again) == (0, 0)
    (job,) = read(MADE)
    assert wakes == [Wake.plan(job["id"])]
    assert (job["input"], job["user_id"], job["model"], job["status"]) == (
        "water the plants",
        "ada",
        "openai:gpt-test",
        "queued",
    )
    assert (job["limits"]["max_tool_steps"], job["depth"], job["root_job_id"]) == (7, 0, job["id"])
    assert job["metadata"]["schedule"]["id"] == output["reminder_id"]
    assert job["expires_at"] > job["created_at"]
    assert [e["kind"] for e in read("SELECT kind FROM events WHERE job_id = %s", job["id"])] == ["job_submitted"]
    (schedule,) = read("SELECT * FROM schedules")
    assert (schedule["is_active"], schedule["next_at"], schedule["last_job_id"]) == (False, None, job["id"])


def test_the_sweeper_knows_when_the_next_one_is_due(play: Play) -> None:
    async def scenario(harness: Harness) -> tuple[list[float], list[float]]:
        await furnish(harness)
        await remind(harness, delay_seconds=3600)
        return await told(harness, 7200), await told(harness, 1)

    soon, too_far = play(scenario, ScriptedModel())
    assert [0 < due <= 3600 for due in soon] == [True]
    assert too_far == []


def test_a_reminder_has_the_loop_of_the_job_that_asked_and_an_agent_its_own(play: Play, read: Read) -> None:
    block = {"max_rounds": 2, "policy": {"mail_*": "deny"}}
    document = '{"name": "looper", "strategy": "loop", "loop": {"max_rounds": 3, "prompt": "plan-it"}}'

    async def scenario(harness: Harness) -> None:
        await furnish(harness)
        await DocumentStore(harness.database, "skill").put("default", "plan-it", "Plan {{query}}.")
        await DocumentStore(harness.database, "agent").put("default", "looper", document, skills=[])
        call = ("remind_me", {"description": "x", "delay_seconds": 60})
        await outputs(harness, call, loop=block)
        await outputs(harness, (call[0], {**call[1], "agent": "looper"}), loop=block)
        read(DUE)
        await harness.sweeper.sweep()

    play(scenario, ScriptedModel())
    found = {job["agent_name"]: (job["strategy"], job["loop_block"]) for job in read(MADE)}
    assert found == {
        None: ("plan", block),
        "looper": (
            "loop",
            {
                "max_rounds": 3,
                "prompt": {"name": "plan-it", "text": "Plan {{query}}."},
                "policy": {"mail_*": "deny"},
            },
        ),
    }


def test_a_reminder_has_the_priority_of_the_job_that_asked(play: Play, read: Read) -> None:
    async def scenario(harness: Harness) -> None:
        await furnish(harness)
        call = ("remind_me", {"description": "x", "delay_seconds": 60})
        await outputs(harness, call, priority=Priority.BULK)
        read(DUE)
        await harness.sweeper.sweep()

    play(scenario, ScriptedModel())
    assert [job["priority"] for job in read(MADE)] == ["bulk"]


def test_the_job_that_was_made_runs_as_any_other(play: Play, read: Read) -> None:
    async def scenario(harness: Harness) -> None:
        await furnish(harness)
        (output,) = await outputs(harness, ("remind_me", {"description": "say hello", "delay_seconds": 60}))
        assert output["status"] == "success"
        read(DUE)
        await harness.sweeper.sweep()
        await harness.drain()

    play(scenario, ScriptedModel("hello"))
    (job,) = read(MADE)
    assert (job["status"], job["answer"]) == ("completed", "hello")


def test_what_was_missed_fires_once_and_then_it_goes_on(play: Play, read: Read) -> None:
    async def scenario(harness: Harness) -> Any:
        await furnish(harness)
        output = await remind(harness, crontab="*/10  * * * *", timezone="Europe/Berlin")
        read("UPDATE schedules SET next_at = now() - interval '3 days'")
        for _ in range(3):
            await harness.sweeper.sweep()
        return output

    output = play(scenario, ScriptedModel())

    assert (output["recurrence"], output["schedule"], output["timezone"]) == (
        "recurring",
        "*/10 * * * *",
        "Europe/Berlin",
    )
    assert len(read(MADE)) == 1
    (schedule,) = read("SELECT next_at, is_active, now() AS now FROM schedules")
    assert schedule["is_active"]
    assert timedelta() < schedule["next_at"] - schedule["now"] <= timedelta(minutes=10)


def test_sweepers_that_race_make_one_job_for_each_time(play: Play, read: Read, database_url: str) -> None:
    """All of them have found the same schedules before the first one fires."""

    async def scenario(harness: Harness) -> list[UUID | None]:
        await furnish(harness)
        calls: list[tuple[str, Mapping[str, Any]]] = [
            ("remind_me", {"description": f"n {n}", "crontab": "0 9 * * *"}) for n in range(8)
        ]
        await outputs(harness, *calls)
        read(DUE)
        databases = [Database(database_url, max_connections=2) for _ in range(4)]
        await asyncio.gather(*(database.open() for database in databases))
        fleets = [ScheduleSweep(database) for database in databases]
        found = await asyncio.gather(*(sweep.due(100) for sweep in fleets))
        assert [len(due) for due in found] == [8] * 4
        fired = await asyncio.gather(
            *(sweep.fire(due) for sweep, all_due in zip(fleets, found, strict=True) for due in all_due)
        )
        await asyncio.gather(*(database.close() for database in databases))
        return [None if one is None else one.job_id for one in fired]

    fired = play(scenario, ScriptedModel())

    assert sorted(str(job) for job in fired if job is not None) == [str(row["id"]) for row in read(MADE)]
    assert len(read(MADE)) == 8
    assert len({row["input"] for row in read(MADE)}) == 8


def test_a_repeated_attempt_schedules_nothing_twice(play: Play, read: Read) -> None:
    """Not even when the reminder has been fired between the attempts."""
    asked = {"description": "once", "delay_seconds": 60}

    async def scenario(harness: Harness) -> list[Any]:
        await furnish(harness)
        claim = await begun(harness, ("remind_me", asked))
        tool = harness.registry.find("remind_me")
        assert tool is not None
        first = await tool.call(asked, context_of(claim))
        second = await tool.call(asked, context_of(claim))
        read(DUE)
        await harness.sweeper.sweep()
        return [first, second, await tool.call(asked, context_of(claim))]

    first, second, third = play(scenario, ScriptedModel())

    assert first == second
    assert (third["reminder_id"], third["next_at"]) == (first["reminder_id"], None)
    assert (len(read(MADE)), len(read("SELECT 1 FROM schedules"))) == (1, 1)


AGENT = '{"name": "gardener", "description": "You water plants.", "model": "openai:gpt-garden", "skills": ["water"]}'


def test_the_job_of_an_agent_pins_what_is_newest_when_it_is_made(play: Play, read: Read) -> None:
    async def scenario(harness: Harness) -> Any:
        await furnish(harness)
        agents, skills = DocumentStore(harness.database, "agent"), DocumentStore(harness.database, "skill")
        await skills.put("default", "water", "slowly")
        await agents.put("default", "gardener", AGENT, skills=["water"])
        output = await remind(harness, delay_seconds=60, agent="gardener")
        await skills.put("default", "water", "quickly")
        await agents.put("default", "gardener", AGENT.replace("plants", "flowers"), skills=["water"])
        read(DUE)
        await harness.sweeper.sweep()
        await harness.drain()
        return output

    assert play(scenario, ScriptedModel("watered", "watered"))["status"] == "success"
    (job,) = read(MADE)
    assert (job["status"], job["answer"]) == ("completed", "watered")
    assert (job["agent_name"], job["agent_version"], job["skill_versions"], job["model"]) == (
        "gardener",
        2,
        [2],
        "openai:gpt-garden",
    )


def test_a_reminder_may_do_no_more_than_the_job_that_asked(play: Play, read: Read) -> None:
    """It goes back to the agent that asked, and to the tools that its job was allowed."""

    async def scenario(harness: Harness) -> list[Any]:
        await furnish(harness)
        await DocumentStore(harness.database, "agent").put("default", "gardener", '{"name": "gardener"}', skills=[])
        call = ("remind_me", {"description": "a", "delay_seconds": 60})
        (of_agent,) = await outputs(harness, call, agent="gardener", agent_version=1)
        (restricted,) = await outputs(harness, call, tools=["remind_me", "now"])
        read(DUE)
        await harness.sweeper.sweep()
        return [of_agent["agent"], restricted["agent"]]

    assert play(scenario, ScriptedModel()) == ["gardener", None]
    made = [(job["agent_name"], job["tools"]) for job in read(MADE)]
    assert sorted(made, key=str) == [("gardener", None), (None, ["remind_me", "now"])]


def test_a_schedule_whose_agent_is_gone_is_switched_off_and_says_why(play: Play, read: Read) -> None:
    async def scenario(harness: Harness) -> None:
        await furnish(harness)
        agents = DocumentStore(harness.database, "agent")
        await agents.put("default", "gardener", '{"name": "gardener"}', skills=[])
        assert (await remind(harness, crontab="0 9 * * *", agent="gardener"))["status"] == "success"
        await agents.retire("default", "gardener")
        read(DUE)
        assert await harness.sweeper.sweep() == 0
        assert await harness.sweeper.sweep() == 0

    play(scenario, ScriptedModel())
    assert read(MADE) == []
    (schedule,) = read("SELECT * FROM schedules")
    assert not schedule["is_active"]
    assert "'gardener' is retired" in schedule["error"]


def test_one_that_cannot_be_fired_does_not_keep_the_others(play: Play, read: Read) -> None:
    async def scenario(harness: Harness) -> None:
        await furnish(harness)
        await outputs(
            harness,
            ("remind_me", {"description": "broken", "crontab": "0 9 * * *"}),
            ("remind_me", {"description": "whole", "crontab": "0 9 * * *"}),
        )
        read(DUE)
        # What no tool of ours ever stores.
        read("UPDATE schedules SET cron = '0 9 * *', next_at = next_at - interval '1 day' WHERE input = 'broken'")
        read("UPDATE schedules SET timezone = 'Nowhere/Land' WHERE input = 'broken'")
        await harness.sweeper.sweep()

    play(scenario, ScriptedModel())
    assert [job["input"] for job in read(MADE)] == ["whole"]
    (broken,) = read("SELECT * FROM schedules WHERE NOT is_active")
    assert "timezone" in broken["error"]


def test_limits_and_budget_of_the_outermost_job_go_with_every_job_that_is_made(play: Play, read: Read) -> None:
    async def scenario(harness: Harness) -> None:
        await furnish(harness)
        root = await harness.submit()
        claim = await begun(harness, ("remind_me", {"description": "a", "delay_seconds": 60}))
        limits = {**Limits(max_tool_steps=7).to_json(), "job_timeout_seconds": 60}
        async with harness.database.connection() as connection:
            await connection.execute("UPDATE jobs SET root_job_id = %s WHERE id = %s", (root, claim.ref.job_id))
            await connection.execute(
                "UPDATE jobs SET budget = %s, limits = %s WHERE id = %s",
                (as_json({"max_tokens": 5}), as_json(limits), root),
            )
        tool = harness.registry.find("remind_me")
        assert tool is not None
        await tool.call({"description": "a", "delay_seconds": 60}, context_of(claim))
        read(DUE)
        await harness.sweeper.sweep()

    play(scenario, ScriptedModel())
    (job,) = read(MADE)
    assert (job["budget"], job["limits"]["max_tool_steps"]) == ({"max_tokens": 5}, 7)
    assert (job["root_job_id"], job["parent_job_id"], job["depth"]) == (job["id"], None, 0)
    assert job["expires_at"] - job["created_at"] == timedelta(seconds=60)


def test_a_user_has_so_many_reminders_and_no_more(play: Play) -> None:
    async def scenario(harness: Harness) -> list[Any]:
        await furnish(harness, max_reminders=2)
        return [await remind(harness, delay_seconds=60) for _ in range(3)]

    *_, last = play(scenario, ScriptedModel())
    assert last["code"] == "invalid_arguments"
    assert "2 reminders already" in last["message"]


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "found none of them"),
    ({"delay_seconds": 5, "crontab": "* * * * *"}, "found delay_seconds and crontab"),
    ({"delay_seconds": 0}, "delay_seconds"),
    ({"delay_seconds": 1e12}, "delay_seconds"),
    ({"at": "2001-01-01T00:00:00Z"}, "future time"),
    ({"at": "9999-12-31T23:59:59"}, "within 3660 days"),
    ({"at": "tomorrow"}, "ISO 8601"),
    ({"crontab": "* * * *"}, "five fields"),
    ({"crontab": "61 * * * *"}, "minute"),
    ({"crontab": "0 0 30 2 *"}, "day-of-month"),
    ({"crontab": "* * */20 * 1L"}, "not due in the next 50 years"),
    ({"crontab": "0 9 * * *", "timezone": "Mars/Olympus"}, "timezone"),
    ({"crontab": "0 9 * * *", "timezone": "../../etc/passwd"}, "timezone"),
    ({"crontab": "0 9 * * *", "timezone": "Europe"}, "timezone"),
    ({"delay_seconds": 5, "agent": "nobody"}, "does not exist"),
]


def test_bad_arguments_are_told_and_store_nothing(play: Play, read: Read) -> None:
    async def scenario(harness: Harness) -> list[str]:
        await furnish(harness)
        told = []
        for arguments, _ in BAD:
            call = {"tool_name": "remind_me", "arguments": {"description": "a", **arguments}}
            job, steps = await harness.run(plan={"type": "tool_calls", "calls": [call]})
            told.append(steps[0]["error"]["message"] if steps else str(job["plan_errors"]))
        return told

    for (arguments, expected), message in zip(BAD, play(scenario, ScriptedModel()), strict=True):
        assert expected in message, arguments
    assert read("SELECT 1 FROM schedules") == []


def test_schedules_cost_a_sweep_nothing_at_rest(play: Play, read: Read) -> None:
    """However many are over or still to come, a look at what is due touches one page of one partial index."""
    read(
        "INSERT INTO schedules (id, tenant_id, input, next_at, is_active) SELECT gen_random_uuid(), 'default', 'x', "
        "CASE WHEN mod(n, 2) = 0 THEN now() + n * interval '1 minute' END, mod(n, 2) = 0 "
        "FROM generate_series(1, 20000) n"
    )
    read("VACUUM ANALYZE schedules")

    async def scenario(harness: Harness) -> int:
        return await harness.sweeper.sweep()

    assert play(scenario, ScriptedModel()) == 0
    (row,) = read(
        "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "
        "SELECT 1 WHERE EXISTS (SELECT FROM schedules WHERE is_active AND next_at <= now())"
    )
    explained = str(row["QUERY PLAN"])
    assert "ix_schedules_next_at" in explained
    assert row["QUERY PLAN"][0]["Plan"]["Shared Hit Blocks"] + row["QUERY PLAN"][0]["Plan"]["Shared Read Blocks"] <= 4


def test_what_is_over_is_forgotten_after_a_month(play: Play, read: Read) -> None:
    read(
        "INSERT INTO schedules (id, tenant_id, input, is_active, next_at, created_at) "
        "SELECT gen_random_uuid(), 'default', 'x', n = 3, CASE WHEN n = 3 THEN now() + interval '1 day' END, "
        "now() - n * interval '20 days' FROM generate_series(1, 3) n"
    )

    async def scenario(harness: Harness) -> None:
        await harness.worker_registry.tidy()

    play(scenario, ScriptedModel())
    assert [row["is_active"] for row in read("SELECT is_active FROM schedules ORDER BY created_at")] == [True, False]
