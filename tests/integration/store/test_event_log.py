"""The event log: what is committed late is read all the same, once, and from any position."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from uuid import UUID

import psycopg

from planq.shared.kernel.limits import Limits
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import Strategy
from planq.shared.kernel.submission import Submission
from planq.shared.platform.database import Database
from planq.shared.subjects.events.position import BEGINNING, END, Position
from planq.shared.subjects.events.store import EventLog, LoggedEvent
from tests.support.requests import OpenRequestStore

Tell = Callable[..., Awaitable[None]]


def played(url: str, play: Callable[[Database, EventLog, UUID], Awaitable[None]]) -> None:
    async def run() -> None:
        async with Database(url, max_connections=2) as database:
            job = Submission(new_id(), "default", "x", Strategy.PLAN, "offline", Limits())
            await OpenRequestStore(database).submit(job)
            await play(database, EventLog(database), job.id)

    asyncio.run(run())


async def tell(connection: psycopg.AsyncConnection, job_id: UUID, kind: str) -> None:
    await connection.execute("SELECT planq_append_event('default', %s, %s, NULL)", [job_id, kind])


async def rest(log: EventLog, job_id: UUID, after: Position = BEGINNING, limit: int = 100) -> list[LoggedEvent]:
    """Read what there is after a position, in pages."""
    found: list[LoggedEvent] = []
    while page := await log.of_job("default", job_id, found[-1].position if found else after, limit):
        found += page
    return found


def kinds(events: list[LoggedEvent]) -> list[str]:
    return [event.kind for event in events]


def test_an_event_that_is_committed_after_a_later_one_is_read_once(database_url: str) -> None:
    """A worker draws a number, another one draws the next and commits; only then the first one commits."""

    async def play(database: Database, log: EventLog, job: UUID) -> None:
        read = await rest(log, job)
        assert kinds(read) == ["job_submitted"]
        async with await psycopg.AsyncConnection.connect(database_url) as late:
            await tell(late, job, "drawn_first")
            async with database.connection() as early:
                await tell(early, job, "committed_first")
                cursor = await early.execute("SELECT count(*) AS n FROM events WHERE kind = 'committed_first'")
                assert await cursor.fetchone() == {"n": 1}, "everybody sees it"

            held = await rest(log, job, read[-1].position)
            assert held == [], "what may still come before it holds it back"
            await late.commit()

        assert kinds(await rest(log, job, read[-1].position)) == ["drawn_first", "committed_first"]

    played(database_url, play)


def test_an_event_that_is_never_committed_holds_nothing_back(database_url: str) -> None:
    async def play(database: Database, log: EventLog, job: UUID) -> None:
        async with await psycopg.AsyncConnection.connect(database_url) as undone:
            await tell(undone, job, "undone")
            async with database.connection() as other:
                await tell(other, job, "kept")
            await undone.rollback()

        assert kinds(await rest(log, job)) == ["job_submitted", "kept"]

    played(database_url, play)


def test_who_asks_at_the_same_time_has_its_own_page(database_url: str) -> None:
    """One statement reads them: of another tenant, from another position, with another length."""

    async def play(database: Database, log: EventLog, job: UUID) -> None:
        other = Submission(new_id(), "default", "x", Strategy.PLAN, "offline", Limits())
        await OpenRequestStore(database).submit(other)
        async with database.connection() as connection:
            for n in range(3):
                await tell(connection, job, f"event_{n}")
        first, *_ = await rest(log, job)

        pages = await asyncio.gather(
            log.of_job("default", job, BEGINNING, 100),
            log.of_job("another", job, BEGINNING, 100),
            log.of_job("default", job, first.position, 2),
            log.of_job("default", job, BEGINNING, 100, to=first.position),
            log.of_job("default", other.id, BEGINNING, 100),
            log.of_job("default", new_id(), BEGINNING, 100),
        )

        assert [[(event.job_id, event.kind) for event in page] for page in pages] == [
            [(job, "job_submitted"), *((job, f"event_{n}") for n in range(3))],
            [],
            [(job, "event_0"), (job, "event_1")],
            [(job, "job_submitted")],
            [(other.id, "job_submitted")],
            [],
        ]

    played(database_url, play)


def test_from_each_position_the_rest_is_read_in_pages_of_any_size(database_url: str) -> None:
    async def play(database: Database, log: EventLog, job: UUID) -> None:
        async with database.connection() as connection:
            for batch in range(3):
                async with connection.transaction():
                    for n in range(3):
                        await tell(connection, job, f"event_{batch}_{n}")
        whole = await rest(log, job)
        assert len(whole) == 10

        for n, event in enumerate(whole):
            for limit in (1, 4, 100):
                assert await rest(log, job, event.position, limit) == whole[n + 1 :]
        assert await log.of_job("acme", job, BEGINNING, 10) == [], "another tenant's"

    played(database_url, play)


def test_events_of_another_server_are_told_until_they_are_put_in_order(database_url: str) -> None:
    """The statement is the one of the page on operations."""

    async def play(database: Database, log: EventLog, job: UUID) -> None:
        assert await log.ahead() == 0
        async with database.connection() as connection:
            await tell(connection, job, "restored")
            await connection.execute("UPDATE events SET xid = '9000000000000' WHERE kind = 'restored'")
            assert await log.ahead() == 1
            assert kinds(await rest(log, job)) == ["job_submitted"]

            await connection.execute("UPDATE events SET xid = '0'")

        assert await log.ahead() == 0
        assert kinds(await rest(log, job)) == ["job_submitted", "restored"]

    played(database_url, play)


def test_events_are_read_in_the_order_of_their_numbers_and_not_of_the_digits(database_url: str) -> None:
    """`ORDER BY xid` was the text that is shown: a reader at transaction 10 had missed those of transaction 9."""

    async def play(database: Database, log: EventLog, job: UUID) -> None:
        async with database.connection() as connection:
            for xid in ("9", "10"):
                await connection.execute(
                    "INSERT INTO events (xid, tenant_id, job_id, kind) VALUES (%s::xid8, 'default', %s, %s)",
                    [xid, job, f"of_{xid}"],
                )

        assert kinds(await rest(log, job, limit=1)) == ["of_9", "of_10", "job_submitted"]
        page = await log.of_tenant("default", BEGINNING, 2)
        assert kinds(list(page)) == ["of_9", "of_10"]
        assert kinds(list(await log.last_of_tenant("default", END, 2))) == ["job_submitted", "of_10"]

    played(database_url, play)
