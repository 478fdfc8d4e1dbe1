"""Batches: which calls go at once, which wait, and which of them a failure concerns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import psycopg
import pytest

from planq.shared.platform.batching import MAX_ITEMS, Batcher
from planq.shared.platform.errors import DatabaseUnavailable


class Database:
    """Carries out batches as told: each waits for `go`; items in `bad` are refused, those in `away` find nobody."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.go = asyncio.Semaphore(0)
        self.second = asyncio.Event()
        self.bad: set[int] = set()
        self.away: set[int] = set()
        self.away_from = 1_000  # the number of the first batch that finds nobody
        self.broken: set[int] = set()

    async def carry_out(self, items: Sequence[int]) -> Sequence[int]:
        self.batches.append(list(items))
        if len(self.batches) == 2:
            self.second.set()
        await self.go.acquire()
        if self.away.intersection(items) or len(self.batches) >= self.away_from:
            raise DatabaseUnavailable("away")
        if self.bad.intersection(items):
            raise psycopg.errors.InvalidTextRepresentation("bad")
        if self.broken.intersection(items):
            raise RuntimeError("ours")
        return [item * 10 for item in items]


def play(scenario: Callable[[Database], Awaitable[Any]]) -> Any:
    async def inside() -> Any:
        return await scenario(Database())

    return asyncio.run(inside())


async def begun(batcher: Batcher[int, int], items: Sequence[int]) -> list[asyncio.Task[int]]:
    """Begin a call for each item, in order, as far as it gets."""
    tasks = [asyncio.ensure_future(batcher.do(item)) for item in items]
    await asyncio.sleep(0)
    return tasks


def release(database: Database, times: int = 100) -> None:
    for _ in range(times):
        database.go.release()


async def ended(tasks: Sequence[asyncio.Task[int]]) -> list[Any]:
    async with asyncio.timeout(60):
        return await asyncio.gather(*tasks, return_exceptions=True)


def test_a_lone_call_goes_at_once_and_what_comes_meanwhile_goes_together() -> None:
    async def scenario(database: Database) -> None:
        tasks = await begun(Batcher(database.carry_out), [1, 2, 3, 4])
        assert database.batches == [[1]]
        release(database)
        assert await ended(tasks) == [10, 20, 30, 40]
        assert database.batches == [[1], [2, 3, 4]]

    play(scenario)


def test_so_many_batches_are_under_way_of_so_many_items() -> None:
    async def scenario(database: Database) -> None:
        tasks = await begun(Batcher(database.carry_out, at_once=2), range(2 * MAX_ITEMS + 3))
        release(database)
        await ended(tasks)
        assert [len(batch) for batch in database.batches] == [1, 1, MAX_ITEMS, MAX_ITEMS, 1]

    play(scenario)


def test_a_batch_weighs_no_more_than_it_may_unless_one_item_does() -> None:
    async def scenario(database: Database) -> None:
        tasks = await begun(Batcher(database.carry_out, max_weight=5, weigh=lambda item: item), [1, 2, 3, 9, 1, 1])
        release(database)
        await ended(tasks)
        assert database.batches == [[1], [2, 3], [9], [1, 1]]

    play(scenario)


def test_a_defective_item_fails_nobody_else() -> None:
    async def scenario(database: Database) -> None:
        database.bad = {3}
        batcher = Batcher(database.carry_out)
        tasks = await begun(batcher, [1, 2, 3, 4])
        release(database)
        first, second, third, fourth = await ended(tasks)
        assert (first, second, fourth) == (10, 20, 40)
        assert isinstance(third, psycopg.errors.InvalidTextRepresentation)
        assert database.batches == [[1], [2, 3, 4], [2], [3], [4]]
        assert await batcher.do(5) == 50

    play(scenario)


@pytest.mark.parametrize("alone", [True, False])
def test_an_outage_reaches_every_caller_of_its_batch_and_no_other(alone: bool) -> None:
    async def scenario(database: Database) -> None:
        database.away = {1} if alone else {3}
        batcher = Batcher(database.carry_out)
        tasks = await begun(batcher, [1, 2, 3])
        release(database)
        outcomes = await ended(tasks)
        away = [isinstance(outcome, DatabaseUnavailable) for outcome in outcomes]
        assert away == ([True, False, False] if alone else [False, True, True])
        assert len({id(outcome) for outcome in outcomes}) == 3
        assert await batcher.do(5) == 50

    play(scenario)


def test_an_outage_among_single_tries_ends_them() -> None:
    async def scenario(database: Database) -> None:
        database.bad, database.away_from = {2}, 4
        tasks = await begun(Batcher(database.carry_out), [1, 2, 3, 4])
        release(database)
        outcomes = await ended(tasks)
        assert database.batches == [[1], [2, 3, 4], [2], [3]]
        assert outcomes[0] == 10
        assert isinstance(outcomes[1], psycopg.Error)
        assert [type(outcome) for outcome in outcomes[2:]] == [DatabaseUnavailable, DatabaseUnavailable]

    play(scenario)


def test_a_defect_of_ours_is_not_tried_again() -> None:
    async def scenario(database: Database) -> None:
        database.broken = {2}
        tasks = await begun(Batcher(database.carry_out), [1, 2, 3])
        release(database)
        outcomes = await ended(tasks)
        assert [type(outcome) for outcome in outcomes] == [int, RuntimeError, RuntimeError]
        assert database.batches == [[1], [2, 3]]

    play(scenario)


@pytest.mark.parametrize("position", range(3))
def test_a_caller_that_is_cancelled_harms_no_other(position: int) -> None:
    async def scenario(database: Database) -> None:
        batcher = Batcher(database.carry_out)
        tasks = await begun(batcher, [1, 2, 3])
        tasks[position].cancel()
        await asyncio.sleep(0)
        release(database)
        outcomes = await ended(tasks)
        assert isinstance(outcomes[position], asyncio.CancelledError)
        assert [o for n, o in enumerate(outcomes) if n != position] == [
            item * 10 for n, item in enumerate([1, 2, 3]) if n != position
        ]
        assert await batcher.do(4) == 40
        assert [item for batch in database.batches[1:] for item in batch].count(position + 1) == 0

    play(scenario)


def test_a_caller_that_is_cancelled_under_way_harms_no_other() -> None:
    async def scenario(database: Database) -> None:
        tasks = await begun(Batcher(database.carry_out), [1, 2, 3])
        release(database, 1)
        await database.second.wait()
        tasks[1].cancel()
        release(database)
        outcomes = await ended(tasks)
        assert (outcomes[0], outcomes[2]) == (10, 30)
        assert isinstance(outcomes[1], asyncio.CancelledError)

    play(scenario)


def crowd_and_others(number: int) -> str:
    """Items below 10 belong to a crowd, each ten of those above to somebody else."""
    return str(number // 10)


def test_what_belongs_to_nobody_under_way_passes_a_crowd() -> None:
    async def scenario(database: Database) -> None:
        batcher = Batcher(database.carry_out, owner_of=crowd_and_others)
        tasks = await begun(batcher, [1, 2, 3, 11, 12, 21])
        assert database.batches == [[1], [11]], "the first of the crowd, and beside it the first of another"
        release(database, 1)
        assert await tasks[0] == 10
        await asyncio.sleep(0)
        assert database.batches == [[1], [11], [2, 3, 12, 21]]
        tasks += await begun(batcher, [31, 41])
        assert len(database.batches) == 3, "one alone passes at a time"
        release(database)
        assert await asyncio.gather(*tasks) == [10, 20, 30, 110, 120, 210, 310, 410]
        assert database.batches[3:] == [[31, 41]]

    play(scenario)


def test_those_who_pass_go_together_and_leave_the_crowd_its_order() -> None:
    async def scenario(database: Database) -> None:
        turns = [asyncio.Event() for _ in range(4)]

        async def carry_out(items: Sequence[int]) -> Sequence[int]:
            database.batches.append(list(items))
            await turns[len(database.batches) - 1].wait()
            return list(items)

        batcher = Batcher(carry_out, owner_of=crowd_and_others)
        tasks = await begun(batcher, [1, 11, 2, 21, 3, 22])
        assert database.batches == [[1], [11]]
        turns[1].set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert database.batches[2:] == [[21, 22]], "what another waits with passes, the crowd's own does not"
        turns[0].set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert database.batches[3:] == [[2, 3]]
        for turn in turns:
            turn.set()
        assert await asyncio.gather(*tasks) == [1, 11, 2, 21, 3, 22]

    play(scenario)


def test_without_owners_nothing_passes() -> None:
    async def scenario(database: Database) -> None:
        batcher = Batcher(database.carry_out)
        tasks = await begun(batcher, [1, 11, 21])
        assert database.batches == [[1]]
        release(database)
        assert await asyncio.gather(*tasks) == [10, 110, 210]
        assert database.batches == [[1], [11, 21]]

    play(scenario)
