"""Group commit: concurrent calls of one kind ride in one statement and one commit.

Nothing waits for a timer: a call that finds the way free goes at once, alone; while it is under way the next ones
gather, and go together. So a batch is as large as the database is busy, and a lone call is as fast as ever.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from typing import Generic, TypeVar

import psycopg

from shared.domain.errors import DatabaseUnavailable

MOST = 64
"""Items of a batch: far beyond where the cost of a commit matters, and soon over for the rows that it holds."""

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


class Group(Generic[Item, Outcome]):
    """Calls of one kind, of one event loop.

    `carry_out` gets the items of a batch and returns their outcomes in the same order, all in one commit. When it
    fails, every caller of the batch is told so; but when PostgreSQL refuses the batch for a defect, nothing of it has
    happened, and each item is tried alone, so that the defective one fails nobody else.
    """

    def __init__(
        self,
        carry_out: Callable[[Sequence[Item]], Awaitable[Sequence[Outcome]]],
        *,
        at_once: int = 1,
        most: int = MOST,
        weigh: Callable[[Item], int] = lambda _: 1,
    ) -> None:
        """At most `at_once` batches are under way, each of one item or of several that weigh no more than `most`."""
        self._carry_out = carry_out
        self._free = at_once
        self._most = most
        self._weigh = weigh
        self._waiting: deque[tuple[Item, asyncio.Future[Outcome]]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    async def do(self, item: Item) -> Outcome:
        """Carry out one item; raises what its own carrying out raises.

        When the caller is cancelled, an item that waits is dropped, one that is under way may still happen.
        """
        if self._free > 0 and not self._waiting:
            self._free -= 1
            try:
                return (await self._carry_out([item]))[0]
            finally:
                self._go_on()
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, answer))
        return await answer

    def _go_on(self) -> None:
        """Let the next batch go, if any waits; else the way is free."""
        batch = self._next()
        if not batch:
            self._free += 1
            return
        task = asyncio.get_running_loop().create_task(self._carry_batch(batch))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _next(self) -> list[tuple[Item, asyncio.Future[Outcome]]]:
        batch: list[tuple[Item, asyncio.Future[Outcome]]] = []
        weight = 0
        while self._waiting:
            item, answer = self._waiting[0]
            if answer.done():  # its caller was cancelled
                self._waiting.popleft()
                continue
            weight += self._weigh(item)
            if batch and weight > self._most:
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _carry_batch(self, batch: Sequence[tuple[Item, asyncio.Future[Outcome]]]) -> None:
        try:
            await self._carry_together(batch)
        finally:
            for _, answer in batch:
                answer.cancel()  # nobody waits for ever; what has an answer keeps it
            self._go_on()

    async def _carry_together(self, batch: Sequence[tuple[Item, asyncio.Future[Outcome]]]) -> None:
        try:
            outcomes = await self._carry_out([item for item, _ in batch])
        except psycopg.Error as error:
            if len(batch) > 1:
                await self._carry_one_by_one(batch)
            else:
                _fail(batch, error)
        except Exception as error:
            _fail(batch, error)
        else:
            for (_, answer), outcome in zip(batch, outcomes, strict=True):
                if not answer.done():
                    answer.set_result(outcome)

    async def _carry_one_by_one(self, batch: Sequence[tuple[Item, asyncio.Future[Outcome]]]) -> None:
        for position, (item, answer) in enumerate(batch):
            try:
                outcome = (await self._carry_out([item]))[0]
            except DatabaseUnavailable as error:
                _fail(batch[position:], error)
                return
            except Exception as error:
                _fail([(item, answer)], error)
            else:
                if not answer.done():
                    answer.set_result(outcome)


def _fail(batch: Sequence[tuple[Item, asyncio.Future[Outcome]]], error: Exception) -> None:
    for _, answer in batch:
        if not answer.done():
            # One each: an exception that several tasks raise would gather the traces of all of them.
            answer.set_exception(copy(error))
