"""The scheduled retention: its pace, what it tells, and what it makes of a storage that does not answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from planq.shared.kernel.sweep import RemovalBatch
from planq.shared.platform.errors import DatabaseUnavailable, Unavailable
from planq.worker.engine import Retainer


class Batches:
    """A store with two batches, that then ends as it is told; each batch takes a moment of its own clock."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.now = 0.0

    async def remove(self) -> AsyncIterator[RemovalBatch]:
        for seconds, batch in ((0.5, RemovalBatch("completed", 100)), (0.25, RemovalBatch("completed", 7))):
            self.now += seconds
            yield batch
        if self.error is not None:
            raise self.error

    def clock(self) -> float:
        return self.now


async def no_rest(_: float) -> None:
    """Goes on at once."""


def test_it_rests_as_long_as_each_batch_took_and_tells_the_sum(caplog: pytest.LogCaptureFixture) -> None:
    store = Batches()
    rests: list[float] = []

    async def rest(seconds: float) -> None:
        rests.append(seconds)

    with caplog.at_level(logging.INFO, "planq.retention"):
        removed = asyncio.run(Retainer(store, store.clock, rest).retain())

    assert removed == {"completed": 107}
    assert rests == [0.5, 0.25]
    assert [record.message for record in caplog.records] == ["retention_removed"]
    assert caplog.records[0].__dict__["removed"] == {"completed": 107}


def test_a_database_that_goes_away_ends_the_pass_and_what_was_done_is_told(caplog: pytest.LogCaptureFixture) -> None:
    store = Batches(DatabaseUnavailable("away"))

    with caplog.at_level(logging.INFO, "planq.retention"), pytest.raises(DatabaseUnavailable):
        asyncio.run(Retainer(store, store.clock, no_rest).retain())

    assert [record.message for record in caplog.records] == ["retention_removed"]


def test_an_object_store_that_does_not_answer_is_left_for_the_next_pass(caplog: pytest.LogCaptureFixture) -> None:
    store = Batches(Unavailable("the object store does not answer"))

    with caplog.at_level(logging.INFO, "planq.retention"):
        assert asyncio.run(Retainer(store, store.clock, no_rest).retain()) == {"completed": 107}

    assert [record.message for record in caplog.records] == ["retention_interrupted", "retention_removed"]
