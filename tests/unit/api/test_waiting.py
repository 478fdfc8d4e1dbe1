"""The register of who waits: no ending is missed, nobody stays behind."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from uuid import UUID, uuid4

from api.waiting import Waiters, wait_or_leave
from shared.domain.errors import DatabaseUnavailable

JOB, OTHER = uuid4(), uuid4()


async def nobody(_: Collection[UUID]) -> set[UUID]:
    return set()


def test_only_those_who_wait_for_the_job_are_woken_and_all_of_them() -> None:
    async def run() -> None:
        waiters = Waiters(nobody, 60)
        with waiters.watch(JOB) as first, waiters.watch(JOB) as second, waiters.watch(OTHER) as third:
            assert len(waiters) == 3
            waiters.heard(JOB)
            waiters.heard(JOB)
            assert (first.done(), second.done(), third.done()) == (True, True, False)
        assert len(waiters) == 0
        waiters.heard(OTHER)

    asyncio.run(run())


def test_closing_lets_everybody_go_also_those_who_come_later() -> None:
    async def run() -> None:
        waiters = Waiters(nobody, 60)
        with waiters.watch(JOB) as early:
            waiters.close()
            assert early.done()
        with waiters.watch(JOB) as late:
            assert late.done()

    asyncio.run(run())


def test_one_poll_asks_for_everybody_and_survives_a_database_that_is_away() -> None:
    asked: list[set[UUID]] = []

    async def ended(jobs: Collection[UUID]) -> set[UUID]:
        asked.append(set(jobs))
        if len(asked) == 1:
            raise DatabaseUnavailable("away")
        return {JOB}

    async def run() -> None:
        waiters = Waiters(ended, 0.001)
        poll = asyncio.ensure_future(waiters.poll())
        with waiters.watch(JOB) as first, waiters.watch(JOB), waiters.watch(OTHER) as other:
            await asyncio.wait_for(first, 10)
            assert not other.done()
        poll.cancel()
        await asyncio.wait((poll,))

    asyncio.run(run())

    assert asked[:2] == [{JOB, OTHER}, {JOB, OTHER}]


def test_a_lost_connection_makes_the_poll_look_at_once() -> None:
    async def ended(jobs: Collection[UUID]) -> set[UUID]:
        return set(jobs)

    async def run() -> None:
        waiters = Waiters(ended, 3_600)
        poll = asyncio.ensure_future(waiters.poll())
        with waiters.watch(JOB) as done:
            waiters.heard(None)
            await asyncio.wait_for(done, 10)
        poll.cancel()
        await asyncio.wait((poll,))

    asyncio.run(run())


def test_a_client_that_leaves_ends_the_wait() -> None:
    async def run() -> bool:
        messages = [{"type": "http.request", "body": b"", "more_body": False}, {"type": "http.disconnect"}]

        async def receive() -> dict[str, object]:
            return messages.pop(0)

        return await wait_or_leave(asyncio.get_running_loop().create_future(), 60, receive)

    assert asyncio.run(run()) is False
