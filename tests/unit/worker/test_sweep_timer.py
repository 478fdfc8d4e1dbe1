"""The pause of the sweeper ends when something is due, and no sooner than it can bear."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic

import pytest

from planq.worker.runtime.lifecycle import SweepTimer

LONG = 3600.0


async def soon(pause: Awaitable[None]) -> None:
    """Wait for a pause that ends long before its time."""
    await asyncio.wait_for(pause, 60)


def test_a_pause_lasts_as_long_as_it_is_asked_for() -> None:
    asyncio.run(soon(SweepTimer().pause(0.001)))


@pytest.mark.parametrize(
    "ask", [lambda timer: timer.due_in(0.001), lambda timer: [timer.due_in(seconds) for seconds in (9, 0.01, 5)]]
)
def test_what_was_due_before_a_pause_begins_ends_it(ask: Callable[[SweepTimer], object]) -> None:
    async def scenario() -> None:
        timer = SweepTimer()
        ask(timer)
        await soon(timer.pause(LONG))

    asyncio.run(scenario())


def test_what_becomes_due_while_it_lasts_ends_it() -> None:
    async def scenario() -> None:
        timer = SweepTimer()
        timer.due_in(LONG)
        pausing = asyncio.create_task(timer.pause(LONG))
        await asyncio.sleep(0)
        timer.due_in(0.01)
        await soon(pausing)

    asyncio.run(scenario())


def test_what_is_due_ends_one_pause_and_what_is_due_later_the_next() -> None:
    async def scenario() -> None:
        timer = SweepTimer()
        timer.due_in(0.01)
        timer.due_in(0.3)
        await soon(timer.pause(LONG))
        await soon(timer.pause(LONG))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(timer.pause(LONG), 0.2)

    asyncio.run(scenario())


def test_however_much_is_due_there_is_a_pause() -> None:
    async def scenario() -> float:
        timer = SweepTimer()
        for number in range(1000):
            timer.due_in(number / 100_000)
        begun = monotonic()
        await soon(timer.pause(LONG))
        return monotonic() - begun

    assert asyncio.run(scenario()) >= 0.05
