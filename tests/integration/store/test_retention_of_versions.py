"""Retention of what is no job: old versions of agents and skills; and what is counted of each kind."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import psycopg
import pytest

from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import TERMINAL_JOB
from planq.shared.platform.database import Database
from planq.shared.subjects.conversations.store import Arrival, InboundResult
from planq.shared.subjects.retention import store as retention_module
from planq.shared.subjects.retention.store import BATCHES, CONVERSATIONS, DELIVERIES, MESSAGES, VERSIONS, Retention
from tests.integration.store.test_retention import Run, connection, run
from tests.support.batches import item, stored_batch
from tests.support.conversations import Thread
from tests.support.ended import ended
from tests.support.waiting import eventually

__all__ = ["connection", "run"]


PIN = "UPDATE jobs SET agent_name = 'poet', agent_version = 2, skill_versions = ARRAY[1, 2] WHERE id = ANY (%s)"


@pytest.fixture
def documents(connection: psycopg.Connection[Any]) -> None:
    """Four versions of an agent, three of each of its skills: 100 days old, each 20 days younger than the last."""
    connection.execute(
        """INSERT INTO agents (tenant_id, name, version, document, skills, digest, created_at, retired_at)
           SELECT 'default', 'poet', n, '{}', ARRAY['rhyme', 'metre'], '',
                  now() - interval '1 day' * (120 - 20 * n), now()
           FROM generate_series(1, 4) n"""
    )
    connection.execute(
        """INSERT INTO skills (tenant_id, name, version, text, digest, created_at)
           SELECT 'default', name, n, '', '', now() - interval '1 day' * (120 - 20 * n)
           FROM generate_series(1, 3) n, unnest(ARRAY['metre', 'rhyme']) name"""
    )


def versions(connection: psycopg.Connection[Any]) -> list[tuple[str, list[int]]]:
    return connection.execute(
        """SELECT name, array_agg(version ORDER BY version) FROM (
               SELECT name, version FROM agents UNION ALL SELECT name, version FROM skills) d
           GROUP BY name ORDER BY name"""
    ).fetchall()


@pytest.mark.usefixtures("documents")
def test_a_version_goes_some_time_after_the_next_one_and_the_newest_stays(
    connection: psycopg.Connection[Any], run: Run
) -> None:
    """Nothing bounded them. The newest of a name stays though it is retired: no other gets its number."""
    assert run({VERSIONS: 81}) == []
    assert run({VERSIONS: 70}) == [(VERSIONS, 3)]
    assert versions(connection) == [("metre", [2, 3]), ("poet", [2, 3, 4]), ("rhyme", [2, 3])]
    connection.execute("""UPDATE tenants SET config = '{"retention": {"versions_days": 10}}' WHERE id = 'default'""")
    assert run({}) == [(VERSIONS, 4)]
    assert versions(connection) == [("metre", [3]), ("poet", [4]), ("rhyme", [3])]
    assert run({}) == []


@pytest.mark.usefixtures("documents")
def test_a_version_that_a_job_pins_stays_with_it(connection: psycopg.Connection[Any], run: Run) -> None:
    pinned = ended(connection, days=1, count=2)
    for others in ([], [1], [3, 3]):  # other combinations come before and after it
        given = {"ids": ended(connection, days=1), "skills": others, "version": 1 if others == [3, 3] else None}
        connection.execute(
            "UPDATE jobs SET agent_name = 'poet', agent_version = %(version)s, skill_versions = %(skills)s"
            " WHERE id = ANY (%(ids)s)",
            given,
        )
    connection.execute(PIN, [pinned])

    assert run({VERSIONS: 10}, use=due_versions) == [3]
    assert run({VERSIONS: 10}) == [(VERSIONS, 3)]
    assert versions(connection) == [("metre", [2, 3]), ("poet", [1, 2, 4]), ("rhyme", [1, 3])]
    connection.execute("DELETE FROM jobs")
    assert run({VERSIONS: 10}) == [(VERSIONS, 4)]


async def due_versions(retention: Retention) -> list[int]:
    return [(await retention.due())[VERSIONS].count]


@pytest.mark.usefixtures("documents")
@pytest.mark.parametrize("pins", ["batch", "message"])
def test_a_version_stays_that_something_may_name_of_which_a_job_is_still_to_be_made(
    connection: psycopg.Connection[Any], run: Run, pins: str
) -> None:
    """Lines of a batch, and a message that merges, keep what they pinned when they came, 70 days ago here."""
    if pins == "batch":
        connection.execute(
            "UPDATE batches SET created_at = now() - interval '70 days' WHERE id = %s",
            [stored_batch(connection, [item("a")])],
        )
    else:
        conversation = new_id()
        connection.execute(
            "INSERT INTO conversations (id, tenant_id, channel, thread) VALUES (%s, 'default', 'api', 't')",
            [conversation],
        )
        connection.execute(
            """INSERT INTO conversation_messages
                   (conversation_id, sequence, id, tenant_id, channel, direction, status, created_at)
               VALUES (%s, 1, planq_new_id(), 'default', 'api', 'inbound', 'merging', now() - interval '70 days')""",
            [conversation],
        )

    assert run({VERSIONS: 10}) == [(VERSIONS, 3)]  # what was replaced 80 days ago
    assert versions(connection) == [("metre", [2, 3]), ("poet", [2, 3, 4]), ("rhyme", [2, 3])]


@pytest.mark.newest_server
@pytest.mark.usefixtures("documents")
def test_what_is_due_of_each_kind_is_counted_up_to_a_bound(
    connection: psycopg.Connection[Any], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A count of all of it read as many rows, for minutes."""
    keep = dict.fromkeys([*TERMINAL_JOB, CONVERSATIONS, DELIVERIES, VERSIONS], 10.0)
    for status in sorted(TERMINAL_JOB):
        ended(connection, status, days=90, count=7)
    connection.execute(
        """INSERT INTO conversations (id, tenant_id, channel, thread, created_at)
           SELECT uuidv7(-interval '90 days'), 'default', 'api', n::text, now() - interval '90 days'
           FROM generate_series(1, 12) n"""
    )
    connection.execute(
        """INSERT INTO conversation_messages (conversation_id, sequence, id, tenant_id, channel, direction)
           SELECT id, 1, uuidv7(-interval '90 days'), tenant_id, channel, 'inbound'
           FROM conversations ORDER BY id LIMIT 6"""
    )
    connection.execute(
        """INSERT INTO deliveries (id, tenant_id, recipient, target, event, body, status, finished_at)
           SELECT planq_new_id(), 'default', 'a', 'https://a', 'job.completed', '', 'sent', now() - interval '90 days'
           FROM generate_series(1, 8)"""
    )
    for _ in range(9):
        connection.execute(
            "UPDATE batches SET status = 'failed', finished_at = now() - interval '90 days' WHERE id = %s",
            [stored_batch(connection, [item("a")])],
        )
    kinds = {MESSAGES: 6, CONVERSATIONS: 6, DELIVERIES: 8, BATCHES: 9, VERSIONS: 7, **dict.fromkeys(TERMINAL_JOB, 7)}

    async def counted(retention: Retention) -> list[dict[str, int]]:
        return [{kind: due.count for kind, due in (await retention.due()).items() if kind in kinds}]

    assert run(keep, use=counted) == [kinds]
    monkeypatch.setattr(retention_module, "MOST_COUNTED", 5)
    assert run(keep, use=counted) == [dict.fromkeys(kinds, 5)]
    monkeypatch.undo()
    assert Counter(dict(run(keep, use=removed))) == {**kinds, CONVERSATIONS: 12}
    assert run(keep, use=counted) == [dict.fromkeys(kinds, 0)]


async def removed(retention: Retention) -> list[tuple[str, int]]:
    found: Counter[str] = Counter()
    async for one in retention.remove():
        found[one.kind] += one.count
    return list(found.items())


def test_a_message_to_a_conversation_that_is_just_being_removed_begins_a_new_one(
    connection: psycopg.Connection[Any], database_url: str
) -> None:
    """The statement is undone, and repeated: it found no row where it had just found one."""

    async def work() -> InboundResult:
        async with Database(database_url, max_connections=2) as database:
            thread = Thread(database)
            old = await thread.says("once")
            connection.execute("DELETE FROM conversation_messages")
            with psycopg.connect(database_url) as remover:
                remover.execute("DELETE FROM conversations WHERE id = %s", [old.conversation_id])
                writing = asyncio.create_task(thread.says("again"))
                await asyncio.to_thread(eventually, waits, what="the message to wait for the conversation")
                assert not writing.done()
            received = await writing
            assert received.conversation_id != old.conversation_id
            return received

    def waits() -> bool:
        row = connection.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'").fetchone()
        return row == (1,)

    received = asyncio.run(work())
    assert (received.outcome, received.begins, received.sequence) == (Arrival.ACCEPTED, True, 1)
    kept = connection.execute("SELECT conversation_id, text FROM conversation_messages").fetchall()
    assert kept == [(received.conversation_id, "again")]


@pytest.mark.usefixtures("documents")
def test_a_version_that_a_conversation_keeps_stays_with_it(connection: psycopg.Connection[Any], run: Run) -> None:
    connection.execute(
        """WITH c AS (
               INSERT INTO conversations (id, tenant_id, channel, thread)
               VALUES (%s, 'default', 'api', 't') RETURNING id
           )
           INSERT INTO conversation_agents (conversation_id, agent, tenant_id, version)
           SELECT id, 'poet', 'default', 1 FROM c""",
        [new_id()],
    )

    run({VERSIONS: 10})
    assert ("poet", [1, 4]) in versions(connection)
    connection.execute("DELETE FROM conversations")
    assert run({VERSIONS: 10}) == [(VERSIONS, 1)]
    assert ("poet", [4]) in versions(connection)
