"""Texts of running calls: written only where somebody follows, without a gap, the newer in the place of the older."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from uuid import UUID

from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.store.worker_registry import WorkerRegistry
from planq.shared.platform.database import Database
from planq.shared.subjects.streams.contract import Epoch, LiveText, TextPiece
from planq.shared.subjects.streams.followers import StreamStore
from planq.shared.subjects.streams.store import PostgresTexts
from tests.support.clock import move_clock

EVERYTHING = 2**63


def played(url: str, play: Callable[[StreamStore, PostgresTexts, Database], Awaitable[None]]) -> None:
    async def run() -> None:
        async with Database(url, max_connections=2) as database:
            await play(StreamStore(database), PostgresTexts(database), database)

    asyncio.run(run())


def said(job: UUID, start: int, text: str, *, attempt: int = 1, number: int = 1) -> TextPiece:
    return TextPiece(Epoch(job, attempt, number), "default", "responding", start, text)


def test_a_job_is_followed_until_nobody_says_so_any_more(database_url: str) -> None:
    job, other, process = new_id(), new_id(), new_id()

    async def play(streams: StreamStore, texts: PostgresTexts, database: Database) -> None:
        assert await texts.followed([job, other]) == set()
        await streams.watch([job], process, 30)
        await streams.watch([job], new_id(), 10)
        assert await texts.followed([job, other]) == {job}
        await streams.unwatch([job], process)
        assert await texts.followed([job, other]) == {job}, "another process follows it, too"
        await streams.watch([other], process, 10)
        await streams.watch([other], process, 30)
        await move_clock(database, timedelta(seconds=11))
        assert await texts.followed([job, other]) == {other}

    played(database_url, play)


def test_a_text_has_no_gap_whatever_was_lost_or_is_sent_twice(database_url: str) -> None:
    job = new_id()

    async def play(streams: StreamStore, texts: PostgresTexts, database: Database) -> None:
        epoch = Epoch(job, 1, 1)
        assert await texts.write([said(job, 0, "Rö\u00a0m ")]) == {epoch: 5}
        assert await texts.write([said(job, 0, "Rö\u00a0m ")]) == {epoch: 5}, "the same once more"
        assert await texts.write([said(job, 9, "late")]) == {epoch: 5}, "what lies between is missing"
        assert await texts.write([said(job, 5, "is.")]) == {epoch: 8}
        assert await streams.live_text("default", job, EVERYTHING) == LiveText(epoch, "responding", "Rö\u00a0m is.")
        assert await streams.live_text("another", job, EVERYTHING) is None
        assert await streams.live_text("default", job, 3) is None, "nobody that old has written it"
        # A crash of the server empties the table; the worker begins again from its own memory.
        async with database.connection() as connection:
            await connection.execute("TRUNCATE text_deltas")
        assert await texts.write([said(job, 8, " Or was.")]) == {epoch: 0}

    played(database_url, play)


def test_a_newer_epoch_takes_the_place_of_the_older_ones_and_none_comes_back(database_url: str) -> None:
    job, other = new_id(), new_id()

    async def play(streams: StreamStore, texts: PostgresTexts, database: Database) -> None:
        await texts.write([said(job, 0, "broken", number=7), said(other, 0, "kept")])
        assert await texts.write([said(job, 3, "ed on", number=8)]) == {Epoch(job, 1, 8): 0}
        broken = LiveText(Epoch(job, 1, 7), "responding", "broken")
        assert await streams.live_text("default", job, EVERYTHING) == broken, "it stands until there is a newer one"
        await texts.write([said(job, 0, "again", number=8)])
        await texts.write([said(job, 0, "elsewhere", attempt=2, number=1)])
        assert await texts.write([said(job, 5, " and again", number=8)]) == {}, "its attempt is over"
        newest = LiveText(Epoch(job, 2, 1), "responding", "elsewhere")
        assert await streams.live_text("default", job, EVERYTHING) == newest
        kept = LiveText(Epoch(other, 1, 1), "responding", "kept")
        assert await streams.live_text("default", other, EVERYTHING) == kept
        looks = [("default", job), ("another", other), ("default", new_id()), ("default", other)]
        together = await asyncio.gather(*(streams.live_text(*look, EVERYTHING) for look in looks))
        assert together == [newest, None, None, kept], "who looks at the same time has what is its own"

    played(database_url, play)


def test_what_nobody_adds_to_any_more_is_tidied(database_url: str) -> None:
    job = new_id()

    async def play(streams: StreamStore, texts: PostgresTexts, database: Database) -> None:
        await streams.watch([job], new_id(), 30)
        await texts.write([said(job, 0, "old")])
        await move_clock(database, timedelta(seconds=3_601))
        await WorkerRegistry(database, timedelta(seconds=15)).tidy()
        async with database.connection() as connection:
            for table in (b"text_deltas", b"watches"):
                counted = await (await connection.execute(b"SELECT count(*) FROM " + table)).fetchone()
                assert counted == {"count": 0}

    played(database_url, play)
