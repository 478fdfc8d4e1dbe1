"""Timers that are near act, the others are left to the sweep; duties go on through outages and errors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from planq.shared.platform.errors import DatabaseUnavailable
from planq.shared.platform.timers import NearTimers, every, woken_by

PATIENCE_SECONDS = 60.0


def play(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await scenario()

    asyncio.run(bounded())


def test_those_that_are_near_act() -> None:
    acted: list[str] = []

    async def scenario() -> None:
        timers, later, now = NearTimers(), asyncio.Event(), asyncio.Event()
        timers.set(0.2, _noting(acted, "later", later.set))
        timers.set(0.0, _noting(acted, "now", now.set))
        await now.wait()
        await later.wait()

    play(scenario)
    assert sorted(acted) == ["later", "now"]


def test_one_that_is_too_far_away_and_one_too_many_are_left_to_the_sweep() -> None:
    acted: list[str] = []

    async def scenario() -> None:
        timers, is_over = NearTimers(within_seconds=0.5, most=1), asyncio.Event()
        timers.set(0.6, _noting(acted, "too far"))
        timers.set(0.0, _noting(acted, "near", is_over.set))
        timers.set(0.0, _noting(acted, "one too many"))
        await is_over.wait()
        await timers.close()

    play(scenario)
    assert acted == ["near"]


@pytest.mark.parametrize(
    ("error", "logged"), [(DatabaseUnavailable("away"), []), (RuntimeError("a defect"), ["timer_failed"])]
)
def test_what_fails_disturbs_no_other(error: Exception, logged: list[str], caplog: pytest.LogCaptureFixture) -> None:
    acted: list[str] = []

    async def scenario() -> None:
        timers, failed, is_over = NearTimers(), asyncio.Event(), asyncio.Event()

        async def fail() -> None:
            failed.set()
            raise error

        timers.set(0.0, fail)
        timers.set(0.0, _noting(acted, "the other", is_over.set))
        await failed.wait()
        await is_over.wait()

    with caplog.at_level(logging.INFO):
        play(scenario)
    assert acted == ["the other"]
    assert [record.message for record in caplog.records if record.name == "planq.timers"] == logged


def test_closing_forgets_what_is_to_come() -> None:
    acted: list[str] = []

    async def scenario() -> None:
        timers = NearTimers()
        timers.set(5.0, _noting(acted, "never"))
        await timers.close()
        assert len(asyncio.all_tasks()) == 1

    play(scenario)
    assert acted == []


def _noting(acted: list[str], what: str, then: Callable[[], None] = lambda: None) -> Callable[[], Awaitable[None]]:
    async def act() -> None:
        acted.append(what)
        then()

    return act


def test_a_duty_goes_on_through_outages_and_errors(caplog: pytest.LogCaptureFixture) -> None:
    results: list[Exception | None] = [
        DatabaseUnavailable("away"),
        DatabaseUnavailable("away"),
        None,
        ValueError("a"),
    ]
    pauses: list[float] = []
    done = asyncio.Event()

    async def duty() -> None:
        if not results:
            done.set()
        elif (error := results.pop(0)) is not None:
            raise error

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.sleep(0)

    async def scenario() -> None:
        task = asyncio.create_task(every(30.0, duty, name="look", pause=pause, waits_first=True))
        await done.wait()
        task.cancel()
        await asyncio.wait([task])

    with caplog.at_level(logging.WARNING, "planq.timers"):
        play(scenario)

    assert pauses[:5] == [30.0, 1.0, 1.0, 30.0, 30.0], "an outage is looked at again sooner"
    assert [record.getMessage() for record in caplog.records] == ["database_unavailable", "duty_failed"]


def test_an_event_ends_the_pause_and_one_that_is_set_meanwhile_the_next() -> None:
    seen: list[int] = []

    async def scenario() -> None:
        event, done = asyncio.Event(), asyncio.Event()

        async def duty() -> None:
            seen.append(len(seen))
            (done if len(seen) == 3 else event).set()

        task = asyncio.create_task(every(3_600.0, duty, name="look", pause=woken_by(event)))
        await done.wait()
        task.cancel()
        await asyncio.wait([task])

    play(scenario)
    assert seen == [0, 1, 2]
