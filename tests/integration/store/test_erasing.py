"""A conversation is erased in pieces, each a commit: who writes to it, or to another, waits for one at most."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from uuid import UUID

import psycopg

from planq.shared.agentic.turns.messages import Policy
from planq.shared.platform.database import Database
from tests.support.conversations import Thread
from tests.support.waiting import eventually

TURNS, MESSAGES = 120, 1_700
MANY = """
INSERT INTO conversation_messages (conversation_id, sequence, id, tenant_id, channel, direction, text)
SELECT c.id, c.last_sequence + n, planq_new_id(), c.tenant_id, c.channel, 'outbound', 'a secret'
FROM conversations c, generate_series(1, %s) n"""


def play(url: str, scenario: Callable[[Thread], Awaitable[None]]) -> None:
    async def inside() -> None:
        async with Database(url, max_connections=4) as database:
            await scenario(Thread(database))

    asyncio.run(inside())


async def long_conversation(thread: Thread) -> UUID:
    """One turn that runs, others that wait for it, and much that was said before."""
    for number in range(TURNS):
        found = await thread.says(f"secret {number}", policy=Policy.QUEUE)
    await thread.run(MANY, MESSAGES)
    await thread.run("UPDATE conversations SET last_sequence = last_sequence + %s", MESSAGES)
    return found.conversation_id


async def said(thread: Thread) -> list[tuple[str, str]]:
    rows = await thread.run(
        "SELECT text, status FROM conversation_messages WHERE text <> '' OR status <> 'erased' ORDER BY sequence"
    )
    return [(row["text"], row["status"]) for row in rows]


def test_a_long_conversation_is_erased_whole_with_all_its_turns(database_url: str) -> None:
    async def scenario(thread: Thread) -> None:
        conversation = await long_conversation(thread)
        ended = await thread.store.erase("default", conversation)
        assert len(set(ended)) == TURNS
        assert await said(thread) == []
        assert await thread.active() == []
        (row,) = await thread.run("SELECT last_sequence, active_job_id FROM conversations")
        assert row == {"last_sequence": 2 * TURNS + MESSAGES, "active_job_id": None}
        assert await thread.run("SELECT id FROM jobs WHERE status <> 'cancelled' OR NOT is_joined") == []

    play(database_url, scenario)


def test_what_is_erased_shows_bit_by_bit_and_what_comes_meanwhile_stays(database_url: str) -> None:
    """One statement held the conversation and all its messages; messages to others that came with one waited."""

    async def scenario(thread: Thread) -> None:
        conversation = await long_conversation(thread)
        with psycopg.connect(database_url) as holder:
            holder.execute(
                "SELECT FROM conversation_messages WHERE sequence = %s FOR UPDATE", [TURNS + MESSAGES - 100]
            )
            erasing = asyncio.create_task(thread.store.erase("default", conversation))
            await asyncio.to_thread(eventually, lambda: waits(database_url), what="a piece to wait for the message")
            erased = await thread.run("SELECT count(*) AS n FROM conversation_messages WHERE status = 'erased'")
            assert erased[0]["n"] > MESSAGES / 2
            writing = asyncio.create_task(thread.says("and now?"))
            await asyncio.to_thread(eventually, lambda: waits(database_url) == 2, what="the message to wait, too")
        late = await writing
        assert len(set(await erasing)) == TURNS
        assert await said(thread) == [("and now?", "received")]
        assert await thread.active() == [late.job_id]

    play(database_url, scenario)


def test_the_answer_of_a_turn_that_ends_meanwhile_is_erased_too(database_url: str) -> None:
    async def scenario(thread: Thread) -> None:
        found = await thread.says("secret")
        assert await thread.database.call(*piece(found.conversation_id, None, 0, turns=1)) == {
            "until": 1,
            "after": 0,
            "is_done": False,
            "ended": [str(found.job_id)],
        }
        await thread.run("UPDATE conversation_messages SET text = 'the answer' WHERE sequence = 2")
        await thread.says("another")
        told = await thread.database.call(*piece(found.conversation_id, 1, 0, turns=1))
        assert told == {"until": 1, "after": None, "is_done": True, "ended": []}
        assert await said(thread) == [("another", "received")]

    play(database_url, scenario)


def piece(conversation: UUID, until: int | None, after: int, *, turns: int) -> tuple[object, ...]:
    return ("planq_erase_conversation", conversation, "default", until, after, turns, 500)


def waits(database_url: str) -> int:
    with psycopg.connect(database_url) as connection:
        return len(connection.execute("SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'").fetchall())
