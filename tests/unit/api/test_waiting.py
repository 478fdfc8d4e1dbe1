"""The register of who waits: no ending is missed, nobody stays behind."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from uuid import UUID, uuid4

import pytest
from starlette.types import Message

from planq.api.streams import waiting
from planq.api.streams.waiting import Waiter, Waiters
from planq.shared.kernel.ids import TENANT
from planq.shared.platform.errors import DatabaseUnavailable

JOB, OTHER = uuid4(), uuid4()


async def nobody(_: Collection[UUID]) -> set[UUID]:
    return set()


async def stays() -> Message:
    """A client that says nothing, and does not leave."""
    return await asyncio.get_running_loop().create_future()


def test_only_those_who_wait_for_the_job_are_woken_and_all_of_them() -> None:
    async def run() -> None:
        waiters = Waiters(nobody, 60)
        with waiters.watch(JOB) as first, waiters.watch(JOB) as second, waiters.watch(OTHER) as third:
            assert len(waiters) == 3
            waiters.heard(JOB)
            waiters.heard(JOB)
            assert (first.is_woken, second.is_woken, third.is_woken) == (True, True, False)
        assert len(waiters) == 0
        waiters.heard(OTHER)

    asyncio.run(run())


def test_closing_lets_everybody_go_also_those_who_come_later() -> None:
    async def run() -> None:
        waiters = Waiters(nobody, 60)
        with waiters.watch(JOB) as early:
            waiters.close()
            assert early.is_woken
        with waiters.watch(JOB) as late:
            assert late.is_woken

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
            assert await first.wait(10, stays)
            assert (first.is_woken, other.is_woken) == (True, False)
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
            assert await done.wait(10, stays)
            assert done.is_woken
        poll.cancel()
        await asyncio.wait((poll,))

    asyncio.run(run())


def test_a_client_that_leaves_ends_the_wait() -> None:
    async def run() -> bool:
        messages = [{"type": "http.request", "body": b"", "more_body": False}, {"type": "http.disconnect"}]

        async def receive() -> Message:
            return messages.pop(0)

        return await Waiter().wait(60, receive)

    assert asyncio.run(run()) is False


def test_a_wait_is_over_when_its_time_is_and_may_be_woken_at_that_very_moment() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        waiter = Waiter()
        # Both fall due in one turn of the loop: first the time, then the waking, and only then the task goes on.
        waiting = asyncio.ensure_future(waiter.wait(0.0, stays))
        await asyncio.sleep(0)
        loop.call_soon(waiter.wake)
        assert await waiting is True

    asyncio.run(run())


def test_who_is_woken_before_the_wait_does_not_wait() -> None:
    async def receive() -> Message:
        raise AssertionError("nobody may wait any more")

    async def run() -> bool:
        waiter = Waiter()
        waiter.wake()
        return await waiter.wait(60, receive)

    assert asyncio.run(run()) is True


def test_a_request_that_is_cancelled_while_it_waits_stays_cancelled() -> None:
    async def run() -> None:
        waiter = Waiter()
        waiting = asyncio.ensure_future(waiter.wait(60, stays))
        await asyncio.sleep(0)
        waiting.cancel()
        waiter.wake()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(run())


def test_a_new_job_has_not_ended_until_that_is_heard() -> None:
    waiters = Waiters(nobody, 60)
    assert not waiters.has_surely_not_ended(JOB, TENANT)

    waiters.submitted(JOB, TENANT)
    waiters.submitted(OTHER, TENANT)
    waiters.heard(JOB)

    assert [waiters.has_surely_not_ended(job, TENANT) for job in (JOB, OTHER)] == [False, True]


def test_another_tenants_new_job_is_looked_at() -> None:
    waiters = Waiters(nobody, 60)
    waiters.submitted(JOB, "other")

    assert not waiters.has_surely_not_ended(JOB, TENANT)
    assert waiters.has_surely_not_ended(JOB, "other")


def test_after_a_lost_connection_no_job_counts_as_new() -> None:
    waiters = Waiters(nobody, 60)
    waiters.submitted(JOB, TENANT)

    waiters.heard(None)

    assert not waiters.has_surely_not_ended(JOB, TENANT)


def test_a_job_is_new_for_a_while_only_and_few_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000.0]
    monkeypatch.setattr(waiting, "monotonic", lambda: now[0])
    monkeypatch.setattr(waiting, "_MOST_NEW", 2)
    waiters = Waiters(nobody, 60)
    jobs = [uuid4() for _ in range(3)]

    for job in jobs:
        waiters.submitted(job, TENANT)

    assert [waiters.has_surely_not_ended(job, TENANT) for job in jobs] == [False, True, True]
    now[0] += waiting._NEW_SECONDS
    assert not any(waiters.has_surely_not_ended(job, TENANT) for job in jobs)
