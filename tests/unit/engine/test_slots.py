"""Slots bound what a process carries out at once, and are given in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from shared.domain.jobs.states import Priority
from worker.engine.chain import Slots, bulk_slots

BULK = Priority.BULK


def play(story: Callable[[], Awaitable[None]]) -> None:
    async def inside() -> None:
        async with asyncio.timeout(5):
            await story()

    asyncio.run(inside())


async def settle() -> None:
    """Let everything go on that can."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_no_more_is_reserved_than_is_free() -> None:
    slots = Slots(3)
    assert (slots.reserve(2), slots.reserve(2), slots.reserve(1), slots.reserve(-1)) == (2, 1, 0, 0)
    slots.release(2)
    assert slots.free() == 2


def test_whoever_waits_takes_all_that_has_become_free_by_then() -> None:
    async def story() -> None:
        slots = Slots(4)
        assert await slots.wait(10) == 4
        waiting = asyncio.ensure_future(slots.wait(3))
        await settle()
        assert not waiting.done()
        slots.release()
        slots.release()
        assert await waiting == 2, "one claim of two, not two claims"
        assert slots.free() == 0

    play(story)


def test_slots_are_given_in_turn_and_nobody_overtakes() -> None:
    async def story() -> None:
        slots = Slots(2)
        assert slots.reserve(2) == 2
        served: list[str] = []

        async def wait(name: str, most: int) -> None:
            await slots.wait(most)
            served.append(name)

        waiting = [asyncio.ensure_future(wait(name, most)) for name, most in (("a", 1), ("b", 2), ("c", 1))]
        await settle()
        slots.release(2)
        assert slots.reserve(1) == 0, "others wait for theirs"
        await settle()
        assert served == ["a", "b"]
        slots.release()
        await asyncio.gather(*waiting)
        assert served == ["a", "b", "c"]

    play(story)


def test_bulk_work_takes_its_share_and_leaves_the_rest() -> None:
    async def story() -> None:
        slots = Slots(4, 3)
        assert slots.reserve(4, BULK) == 3
        assert (slots.free(BULK), slots.free()) == (0, 1)
        bulk = asyncio.ensure_future(slots.wait(2, BULK))
        await settle()
        assert slots.reserve(2) == 1, "bulk work that waits keeps nobody interactive"
        interactive = asyncio.ensure_future(slots.wait())
        await settle()
        slots.release(1, BULK)
        await settle()
        assert (interactive.done(), bulk.done()) == (True, False)
        slots.release(2, BULK)
        assert await bulk == 2
        slots.release(2)
        slots.release(2, BULK)
        assert (slots.free(), slots.free(BULK)) == (4, 3)

    play(story)


def test_a_slot_that_bulk_work_was_called_for_may_be_gone_before_it_comes() -> None:
    async def story() -> None:
        slots = Slots(1, 1)
        assert slots.reserve(1) == 1
        bulk = asyncio.ensure_future(slots.wait(1, BULK))
        await settle()
        slots.release()
        assert slots.reserve(1) == 1, "somebody interactive is quicker"
        interactive = asyncio.ensure_future(slots.wait())
        await asyncio.sleep(0)
        slots.release()
        await settle()
        assert (interactive.done(), bulk.done()) == (True, False)
        slots.release()
        assert await bulk == 1

    play(story)


def test_one_who_gives_up_waiting_holds_up_nobody_behind() -> None:
    """Also when the call has come already: a slot that is free then belongs to the next."""

    async def story() -> None:
        slots = Slots(1)
        assert slots.reserve(1) == 1
        first, second, third = (asyncio.ensure_future(slots.wait()) for _ in range(3))
        await settle()
        second.cancel()
        slots.release()
        first.cancel()
        assert await third == 1
        assert first.cancelled()
        assert second.cancelled()
        slots.release()
        assert slots.free() == 1

    play(story)


def test_the_share_of_bulk_work_is_one_slot_at_least_and_leaves_one_where_it_can() -> None:
    assert [bulk_slots(slots, 0.75) for slots in (1, 2, 4, 300)] == [1, 1, 3, 225]
    assert bulk_slots(2, 1.0) == 2
