"""Batcher commit: concurrent calls of one kind ride in one statement and one commit.

No timer holds a call back: a call that finds no batch under way goes at once, alone. Calls that come meanwhile form
the next batch. So a batch is as large as the database is busy, and a lone call loses no time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from typing import Generic, TypeVar

import psycopg

from planq.shared.domain.errors import DatabaseUnavailable

MAX_ITEMS = 64
"""Items of a batch: more would not make commits noticeably cheaper, and would hold row locks for longer."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class Batcher(Generic[Item, Result]):
    """Batches calls of one kind, on one event loop.

    `carry_out` takes the items of a batch and returns their results in the same order, all in one commit. When it
    fails, every call of the batch raises its error. When PostgreSQL refuses the batch for a defect, nothing of it was
    stored, and each item is tried alone, so that the defective one fails no other.
    """

    def __init__(
        self,
        carry_out: Callable[[Sequence[Item]], Awaitable[Sequence[Result]]],
        *,
        at_once: int = 1,
        max_weight: int = MAX_ITEMS,
        weigh: Callable[[Item], int] = lambda _: 1,
    ) -> None:
        """At most `at_once` batches are under way; several items of one weigh no more than `max_weight`."""
        self._carry_out = carry_out
        self._free = at_once
        self._max_weight = max_weight
        self._weigh = weigh
        self._waiting: deque[tuple[Item, asyncio.Future[Result]]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    async def do(self, item: Item) -> Result:
        """Carry out one item and return its result; raises what `carry_out` raises for it.

        When the caller is cancelled, an item that still waits is dropped; one under way may still be carried out.
        """
        if self._free > 0 and not self._waiting:
            self._free -= 1
            try:
                return (await self._carry_out([item]))[0]
            finally:
                self._go_on()
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, answer))
        return await answer

    def _go_on(self) -> None:
        """Start the next batch, if any item waits."""
        batch = self._next()
        if not batch:
            self._free += 1
            return
        task = asyncio.get_running_loop().create_task(self._carry_batch(batch))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _next(self) -> list[tuple[Item, asyncio.Future[Result]]]:
        batch: list[tuple[Item, asyncio.Future[Result]]] = []
        weight = 0
        while self._waiting:
            item, answer = self._waiting[0]
            if answer.done():  # its caller was cancelled
                self._waiting.popleft()
                continue
            weight += self._weigh(item)
            if batch and weight > self._max_weight:
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _carry_batch(self, batch: Sequence[tuple[Item, asyncio.Future[Result]]]) -> None:
        try:
            await self._carry_together(batch)
        finally:
            for _, answer in batch:
                answer.cancel()  # no caller waits for ever; without effect on a future that is done
            self._go_on()

    async def _carry_together(self, batch: Sequence[tuple[Item, asyncio.Future[Result]]]) -> None:
        try:
            results = await self._carry_out([item for item, _ in batch])
        except psycopg.Error as error:
            if len(batch) > 1:
                await self._carry_one_by_one(batch)
            else:
                _fail(batch, error)
        except Exception as error:
            _fail(batch, error)
        else:
            for (_, answer), result in zip(batch, results, strict=True):
                if not answer.done():
                    answer.set_result(result)

    async def _carry_one_by_one(self, batch: Sequence[tuple[Item, asyncio.Future[Result]]]) -> None:
        for position, (item, answer) in enumerate(batch):
            try:
                result = (await self._carry_out([item]))[0]
            except DatabaseUnavailable as error:
                _fail(batch[position:], error)
                return
            except Exception as error:
                _fail([(item, answer)], error)
            else:
                if not answer.done():
                    answer.set_result(result)


def _fail(batch: Sequence[tuple[Item, asyncio.Future[Result]]], error: Exception) -> None:
    for _, answer in batch:
        if not answer.done():
            # A copy each: an exception that several tasks raise would collect the tracebacks of all of them.
            answer.set_exception(copy(error))
