"""Reminders that were asked for in a conversation answer there: in its order, whoever races, and weeks later, too."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from planq.shared.agentic.agents.checks import NamedAgent
from planq.shared.agentic.models.exchange import ToolCallRequest
from planq.shared.agentic.turns.channel_kinds import ChannelKind
from planq.shared.agentic.turns.messages import Policy
from planq.shared.platform.database import Database
from planq.shared.subjects.agents.store import DocumentStore
from planq.shared.subjects.channels.store import ChannelStore
from planq.shared.subjects.retention.store import CONVERSATIONS, Retention
from planq.shared.subjects.schedules.store import ScheduleSweep
from tests.integration.engine.test_conversations import says
from tests.integration.engine.test_kept import begun, context_of, furnish
from tests.integration.engine.test_schedules import DUE
from tests.integration.store.test_retention import NoPayloads
from tests.support.conversations import Thread
from tests.support.harness import Harness, ScriptedModel

Play = Callable[..., Any]
WATER = "water the plants"
ASKED = {"description": WATER, "delay_seconds": 3600}
TELEGRAM = str(ChannelKind.TELEGRAM)


def _reminding(asked: Mapping[str, Any]) -> list[ToolCallRequest]:
    call = {
        "tool_name": "remind_me",
        "arguments": {name: value for name, value in asked.items() if value is not None},
    }
    return [ToolCallRequest("__planning__", {"type": "tool_calls", "reasoning": "it is asked for", "calls": [call]})]


class Gardener(ScriptedModel):
    """Sets a reminder where a message asks for one, and answers everything else."""

    def __init__(self, **asked: Any) -> None:
        super().__init__()
        self.reminder = {**ASKED, **asked}
        self.shown: list[list[str]] = []

    async def plan(self, ask: Any, tools: Any, **given: Any) -> Any:
        self.shown.append([message.content for message in ask.history if message.content])
        wanted = ask.input == "remind me"
        self.planned = _reminding(self.reminder) if wanted else f"heard: {ask.input}"
        self.answered = "I shall"
        return await super().plan(ask, tools, **given)


def in_thread(play: Play, scenario: Callable[[Harness, Thread], Awaitable[None]], **asked: Any) -> Gardener:
    model = Gardener(**asked)

    async def inside(harness: Harness) -> None:
        await furnish(harness)
        await scenario(harness, Thread(harness.database))

    play(inside, model)
    return model


async def asks(harness: Harness, thread: Thread, **fields: Any) -> UUID:
    """Ask for a reminder, and let its time come; returns the conversation."""
    submission = {"user_id": "ada", **fields.pop("submission", {})}
    said = await says(harness, thread, "remind me", user_id="ada", submission=submission, **fields)
    await harness.drain()
    await thread.run(DUE)
    found: UUID = said.conversation_id
    return found


async def fire(harness: Harness) -> None:
    """Sweep, and carry out what follows from it."""
    await harness.sweeper.sweep()
    await harness.drain()


async def turns(thread: Thread, conversation: UUID) -> list[tuple[str, str]]:
    return [row for row in await thread.rows(conversation) if row[0] in ("inbound", "outbound")]


async def heard(thread: Thread, conversation: UUID) -> list[str]:
    return [text for direction, text in await turns(thread, conversation) if direction == "inbound"]


def test_a_reminder_of_a_chat_is_a_turn_of_it_and_its_reply_is_sent(play: Play) -> None:
    async def scenario(harness: Harness, thread: Thread) -> None:
        await ChannelStore(harness.database).connect("default", TELEGRAM, ChannelKind.TELEGRAM, {})
        chat = await asks(harness, thread, channel=TELEGRAM)
        await fire(harness)
        assert await turns(thread, chat) == [
            ("inbound", "remind me"),
            ("outbound", "I shall"),
            ("inbound", "water the plants"),
            ("outbound", "heard: water the plants"),
        ]
        rows = await thread.run(
            "SELECT m.text, d.conversation_id FROM deliveries d JOIN conversation_messages m ON m.id = d.message_id "
            "ORDER BY d.created_at"
        )
        assert [(row["text"], row["conversation_id"]) for row in rows] == [
            ("I shall", chat),
            ("heard: water the plants", chat),
        ]
        (job,) = await thread.run("SELECT * FROM jobs WHERE metadata->>'schedule' IS NOT NULL")
        assert (job["user_id"], job["conversation_id"], job["in_message_flow"]) == ("ada", chat, True)
        (event,) = await thread.run("SELECT data FROM events WHERE job_id = %s AND kind = 'job_submitted'", job["id"])
        assert event["data"].keys() == {"conversation_id", "schedule"}
        (schedule,) = await thread.run("SELECT * FROM schedules")
        assert (schedule["is_active"], schedule["last_job_id"]) == (False, job["id"])

    model = in_thread(play, scenario)
    assert model.shown[-1][-1] == "I shall", "it is shown the turns before it"


@pytest.mark.parametrize("policy", Policy)
def test_a_reminder_waits_for_its_turn_whatever_the_policy(play: Play, policy: Policy) -> None:
    """And no message is taken in by it: it has the budget and the tools of another turn."""

    async def scenario(harness: Harness, thread: Thread) -> None:
        chat = await asks(harness, thread)
        running = await thread.says("first", user_id="ada", policy=policy)
        await harness.sweeper.sweep()
        assert await thread.active() == [running.job_id]
        late = None
        if policy in (Policy.QUEUE, Policy.MERGE):
            late = await thread.says("last", user_id="ada", policy=policy)
        await harness.publish(running.wakes)
        await harness.drain()
        answers = [text for direction, text in await turns(thread, chat) if direction == "outbound"]
        assert answers[1:3] == ["heard: first", "heard: water the plants"]
        assert answers[3:] == ([] if late is None else ["heard: last"])

    in_thread(play, scenario)


def test_sweepers_that_race_make_one_turn(play: Play, database_url: str) -> None:
    async def scenario(harness: Harness, thread: Thread) -> None:
        chat = await asks(harness, thread)
        databases = [Database(database_url, max_connections=2) for _ in range(4)]
        await asyncio.gather(*(database.open() for database in databases))
        fleets = [ScheduleSweep(database) for database in databases]
        found = [one for fleet in fleets for one in await fleet.due(10)]
        assert len(found) == 4
        fired = await asyncio.gather(*(fleet.fire(due) for fleet, due in zip(fleets, found, strict=True)))
        await asyncio.gather(*(database.close() for database in databases))
        assert len([one for one in fired if one is not None]) == 1
        assert (await heard(thread, chat))[1:] == [WATER]

    in_thread(play, scenario)


def test_one_that_recurs_waits_for_the_turn_before(play: Play) -> None:
    """Else its turns queue up behind a question that nobody answers for a week."""

    async def scenario(harness: Harness, thread: Thread) -> None:
        chat = await asks(harness, thread)
        held = await thread.says("first", user_id="ada")
        for _ in range(3):
            await harness.sweeper.sweep()
            await thread.run(DUE)
        assert (await heard(thread, chat))[2:] == [WATER]
        await harness.publish(held.wakes)
        await harness.drain()
        await fire(harness)
        assert (await heard(thread, chat))[2:] == [WATER] * 2

    in_thread(play, scenario, delay_seconds=None, crontab="0 9 * * *")


def test_the_agent_is_that_of_the_turn_in_the_version_that_its_conversation_keeps(play: Play) -> None:
    async def scenario(harness: Harness, thread: Thread) -> None:
        agents = DocumentStore(harness.database, "agent")
        for _ in range(2):
            await agents.put("default", "gardener", '{"name": "gardener", "tools": ["remind_me"]}', skills=[])
        given = {"agent": "gardener", "agent_version": 1}
        chat = await asks(harness, thread, submission=given, named_agent=NamedAgent("gardener", 1))
        await fire(harness)
        rows = await thread.run(
            "SELECT agent_name, agent_version FROM jobs WHERE conversation_id = %s ORDER BY id", chat
        )
        assert [(row["agent_name"], row["agent_version"]) for row in rows] == [("gardener", 1)] * 2

    in_thread(play, scenario)


def keeping(harness: Harness, **kept: timedelta) -> Retention:
    return Retention(harness.database, kept, NoPayloads())


def test_a_chat_in_which_nothing_was_said_for_weeks_stays_for_its_reminder(play: Play) -> None:
    async def scenario(harness: Harness, thread: Thread) -> None:
        chat = await asks(harness, thread)
        await thread.run("UPDATE schedules SET next_at = now() + interval '1 hour'")
        await thread.run("DELETE FROM jobs")
        await thread.run("DELETE FROM conversation_messages")
        retention = keeping(harness, **{CONVERSATIONS: timedelta()})
        assert (await retention.due())[CONVERSATIONS].count == 0
        assert [one async for one in retention.remove() if one.kind == CONVERSATIONS] == []
        await thread.run(DUE)
        await fire(harness)
        assert await turns(thread, chat) == [
            ("inbound", "water the plants"),
            ("outbound", "heard: water the plants"),
        ]
        await thread.run("DELETE FROM jobs")
        await thread.run("DELETE FROM conversation_messages")
        assert (await retention.due())[CONVERSATIONS].count == 1
        assert [one.count async for one in retention.remove() if one.kind == CONVERSATIONS] == [1]

    in_thread(play, scenario)


def test_with_an_erased_conversation_its_reminders_end(play: Play) -> None:
    async def scenario(harness: Harness, thread: Thread) -> None:
        chat = await asks(harness, thread)
        await thread.store.erase("default", chat)
        assert await thread.run("SELECT id FROM schedules") == []
        await fire(harness)
        assert await thread.run("SELECT id FROM jobs WHERE metadata->>'schedule' IS NOT NULL") == []

    in_thread(play, scenario)


def test_a_call_that_is_still_out_when_its_conversation_is_erased_makes_no_reminder(play: Play) -> None:
    async def scenario(harness: Harness, thread: Thread) -> None:
        claim = await begun(harness, ("remind_me", ASKED))
        said = await thread.says("other")
        await thread.run("UPDATE jobs SET conversation_id = %s WHERE id = %s", said.conversation_id, claim.ref.job_id)
        await harness.database.call("planq_cancel_job", claim.ref.job_id, "default")
        tool = harness.registry.find("remind_me")
        assert tool is not None
        with pytest.raises(Exception, match="that requested the reminder has ended"):
            await tool.call(ASKED, context_of(claim))
        assert await thread.run("SELECT id FROM schedules") == []

    in_thread(play, scenario)


def test_a_reminder_of_a_closed_conversation_is_switched_off_and_says_why(play: Play) -> None:
    async def scenario(harness: Harness, thread: Thread) -> None:
        chat = await asks(harness, thread)
        await thread.run("UPDATE conversations SET is_closed = true WHERE id = %s", chat)
        await fire(harness)
        (schedule,) = await thread.run("SELECT is_active, error FROM schedules")
        assert (schedule["is_active"], "is closed" in schedule["error"]) == (False, True)
        assert len(await turns(thread, chat)) == 2

    in_thread(play, scenario)
