"""What is kept for a moment: asked for beside its readers while it is in use, and never older than promised."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from planq.shared.platform import refreshing_cache
from planq.shared.platform.refreshing_cache import RefreshingCache
from tests.support.waiting import until


class Source:
    """Answers with the number of the question; may be made to wait or to fail."""

    def __init__(self) -> None:
        self.asked = 0
        self.goes = asyncio.Event()
        self.goes.set()
        self.fails = False

    async def ask(self, key: str) -> str:
        self.asked += 1
        number = self.asked
        await self.goes.wait()
        if self.fails:
            raise ConnectionError(key)
        return f"{key}{number}"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, as its only element."""
    now = [1_000.0]
    monkeypatch.setattr(refreshing_cache, "monotonic", lambda: now[0])
    return now


def run(work: Callable[[RefreshingCache[str, str], Source], Awaitable[None]]) -> None:
    async def inside() -> None:
        source = Source()
        await work(RefreshingCache(source.ask, 1.0), source)

    asyncio.run(inside())


def test_what_is_in_use_is_asked_for_beside_its_readers(clock: list[float]) -> None:
    async def work(kept: RefreshingCache[str, str], source: Source) -> None:
        assert kept.peek("a") is None
        assert await kept.of("a") == "a1"
        clock[0] += 0.49
        assert (await kept.of("a"), kept.peek("a")) == ("a1", "a1")
        assert source.asked == 1
        clock[0] += 0.02
        assert kept.peek("a") is None
        source.goes.clear()
        assert [await kept.of("a"), await kept.of("a")] == ["a1", "a1"]  # nobody waits, and one question suffices
        source.goes.set()
        await until(lambda: source.asked == 2)
        clock[0] += 0.48
        assert await kept.of("a") == "a2"  # the old one would still be kept

    run(work)


def test_nothing_older_than_promised_is_returned_by_when_it_was_asked_for(clock: list[float]) -> None:
    async def work(kept: RefreshingCache[str, str], source: Source) -> None:
        source.goes.clear()
        first = asyncio.create_task(kept.of("a"))
        await until(lambda: source.asked == 1)
        clock[0] += 1.0  # the answer may be as old as its question
        source.goes.set()
        assert await first == "a1"
        assert await kept.of("a") == "a2"

    run(work)


def test_those_who_wait_share_one_question_and_its_error(clock: list[float]) -> None:
    async def work(kept: RefreshingCache[str, str], source: Source) -> None:
        source.fails = True
        results = await asyncio.gather(*(kept.of("a") for _ in range(5)), return_exceptions=True)
        assert [type(one) for one in results] == [ConnectionError] * 5
        assert source.asked == 1
        source.fails = False
        assert await kept.of("a") == "a2"

    run(work)


def test_a_failed_look_beside_a_reader_is_repeated_and_an_old_value_never_returned(clock: list[float]) -> None:
    async def work(kept: RefreshingCache[str, str], source: Source) -> None:
        assert await kept.of("a") == "a1"
        source.fails = True
        clock[0] += 0.6
        assert await kept.of("a") == "a1"
        await until(lambda: source.asked == 2)
        clock[0] += 0.4
        with pytest.raises(ConnectionError):
            await kept.of("a")

    run(work)


def test_a_reader_who_goes_away_takes_nothing_from_the_others(clock: list[float]) -> None:
    async def work(kept: RefreshingCache[str, str], source: Source) -> None:
        source.goes.clear()
        gone, stays = asyncio.create_task(kept.of("a")), asyncio.create_task(kept.of("a"))
        await until(lambda: source.asked == 1)
        gone.cancel()
        source.goes.set()
        assert await stays == "a1"

    run(work)


def test_what_strangers_ask_for_does_not_fill_the_memory(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refreshing_cache, "MOST_KEPT", 3)

    async def work(kept: RefreshingCache[str, str], source: Source) -> None:
        for key in "abc":
            await kept.of(key)
        clock[0] += 2.0
        await kept.of("d")
        assert set(kept._kept) == {"d"}
        for key in "efg":
            await kept.of(key)
        assert len(kept._kept) <= 3

    run(work)


def test_what_was_read_a_moment_ago_is_asked_for_without_a_reader(clock: list[float]) -> None:
    async def work() -> None:
        source = Source()
        kept = RefreshingCache(source.ask, 0.01, young_for=5.0)
        await kept.of("a")
        await until(lambda: source.asked >= 3)
        clock[0] += 5.0
        await until(lambda: not kept._read_at)
        assert not kept._asking
        await kept.of("a")  # it begins again
        clock[0] += 1.0
        source.fails = True
        asked = source.asked
        await until(lambda: source.asked > asked and not kept._asking)
        assert kept._kept["a"][0] < clock[0]  # the old one is not shown as young
        source.fails = False
        assert await kept.of("a") == f"a{source.asked}"

    asyncio.run(work())


def test_few_are_asked_for_without_a_reader(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refreshing_cache, "MOST_YOUNG", 2)

    async def work() -> None:
        kept = RefreshingCache(Source().ask, 1.0, young_for=5.0)
        for key in "abac":
            await kept.of(key)
        assert set(kept._read_at) == {"a", "c"}

    asyncio.run(work())


def test_a_loop_that_ends_cancels_what_would_ask_without_a_reader() -> None:
    """A timer asked when all tasks of the loop had been cancelled: the collector found its task in another test."""

    async def work() -> asyncio.Task[None]:
        kept = RefreshingCache(Source().ask, 1_000.0, young_for=5.0)
        await kept.of("a")
        [pause] = asyncio.all_tasks() - {asyncio.current_task()}
        return pause

    assert asyncio.run(work()).cancelled()
