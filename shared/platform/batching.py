"""Group commit: concurrent calls of one kind share one statement and one commit.

No timer delays a call: without a batch in flight it goes alone at once, and calls that arrive meanwhile form the next
batch. A caller who has nothing in the batch in flight may pass it.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from copy import copy
from typing import Generic, TypeVar

import psycopg

from planq.shared.platform.errors import DatabaseUnavailable

MAX_ITEMS = 64
"""More items would hardly make commits cheaper, and hold row locks longer."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class Batcher(Generic[Item, Result]):
    """Batches calls of one kind, on one event loop.

    `carry_out` returns the results of its items in order, all in one commit; if it fails, every call raises its
    error. If PostgreSQL refuses the batch for a defect, nothing was stored, and each item is tried alone.
    """

    def __init__(
        self,
        carry_out: Callable[[Sequence[Item]], Awaitable[Sequence[Result]]],
        *,
        at_once: int = 1,
        max_weight: int = MAX_ITEMS,
        weigh: Callable[[Item], int] = lambda _: 1,
        owner_of: Callable[[Item], str] | None = None,
    ) -> None:
        """Run `at_once` batches at most; several items weigh at most `max_weight`.

        With `owner_of` one more batch may pass, of owners without items in flight.
        """
        self._carry_out = carry_out
        self._free = at_once
        self._max_weight = max_weight
        self._weigh = weigh
        self._owner_of = owner_of
        self._may_pass = owner_of is not None
        self._owners = Counter[str]()
        """Whose the items under way are; of nobody without `owner_of`."""
        self._waiting: deque[tuple[Item, asyncio.Future[Result]]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    async def do(self, item: Item) -> Result:
        """Carry out one item and return its result, or raise its error.

        If the caller is cancelled, a waiting item is dropped; one in flight may still be carried out.
        """
        passes = not (self._free > 0 and not self._waiting)
        if not passes or self._passes(item):
            self._begin([item], passes=passes)
            try:
                return (await self._carry_out([item]))[0]
            finally:
                self._end([item], passes=passes)
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, answer))
        return await answer

    def _passes(self, item: Item) -> bool:
        return self._may_pass and self._owner_of is not None and self._owner_of(item) not in self._owners

    def _begin(self, items: Iterable[Item], *, passes: bool) -> None:
        if passes:
            self._may_pass = False
        else:
            self._free -= 1
        if self._owner_of is not None:
            self._owners.update(map(self._owner_of, items))

    def _end(self, items: Iterable[Item], *, passes: bool) -> None:
        """End a batch, and begin the next if items wait."""
        if self._owner_of is not None:
            self._owners -= Counter(map(self._owner_of, items))
        if passes:
            self._may_pass = True
        else:
            self._free += 1
        if not self._waiting or not (batch := self._next(passes=passes)):
            return
        self._begin([item for item, _ in batch], passes=passes)
        task = asyncio.get_running_loop().create_task(self._carry_batch(batch, passes=passes))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _next(self, *, passes: bool) -> list[tuple[Item, asyncio.Future[Result]]]:
        """Take the next batch in order; with `passes` only items of owners without items in flight."""
        batch: list[tuple[Item, asyncio.Future[Result]]] = []
        left: deque[tuple[Item, asyncio.Future[Result]]] = deque()
        weight = 0
        while self._waiting:
            item, answer = self._waiting.popleft()
            if answer.done():  # its caller was cancelled
                continue
            if passes and not self._passes(item):
                left.append((item, answer))
                continue
            weight += self._weigh(item)
            if batch and weight > self._max_weight:
                self._waiting.appendleft((item, answer))
                break
            batch.append((item, answer))
        self._waiting.extendleft(reversed(left))
        return batch

    async def _carry_batch(self, batch: Sequence[tuple[Item, asyncio.Future[Result]]], *, passes: bool) -> None:
        try:
            await self._carry_together(batch)
        finally:
            for _, answer in batch:
                answer.cancel()  # no caller waits for ever; without effect on a future that is done
            self._end([item for item, _ in batch], passes=passes)

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
