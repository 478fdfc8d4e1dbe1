"""Slots bound what a process carries out at once, and are given in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from worker.engine.chain import Slots


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
    assert slots.free == 2


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
        assert slots.free == 0

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
        assert slots.free == 1

    play(story)
