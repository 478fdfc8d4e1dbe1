"""A worker whose claims get no answer takes no more: others may still reach the database."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from planq.shared.kernel.ids import PLAN, StepRef
from planq.shared.platform.errors import DatabaseUnavailable
from planq.worker.engine.running import InFlightWork

REFS = (StepRef(uuid4(), 0, PLAN),)


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class SilentStore:
    """Answers claims only when told to."""

    def __init__(self) -> None:
        self.answer = asyncio.Event()

    async def claim(self, refs: Any) -> None:
        await self.answer.wait()


@pytest.mark.parametrize(("waited", "refused"), [(1.0, False), (2.0, True)])
def test_claims_are_refused_while_an_earlier_one_waits_for_too_long(waited: float, refused: bool) -> None:
    async def story() -> None:
        clock, store = Clock(), SilentStore()
        in_flight = InFlightWork(clock=clock)
        claim = partial(in_flight.claim, store.claim)
        first = asyncio.ensure_future(claim(REFS))
        await asyncio.sleep(0)
        clock.now = waited

        assert in_flight.is_stalled is refused
        second = asyncio.ensure_future(claim(REFS))
        await asyncio.sleep(0)
        assert second.done() is refused
        if refused:
            with pytest.raises(DatabaseUnavailable, match="still waits"):
                second.result()

        store.answer.set()
        await first
        assert not in_flight.is_stalled
        await claim(REFS)

    asyncio.run(story())


def test_a_claim_that_failed_is_not_waited_for() -> None:
    class AwayStore:
        async def claim(self, refs: Any) -> None:
            raise DatabaseUnavailable("away")

    async def story() -> None:
        clock = Clock()
        in_flight = InFlightWork(clock=clock)
        claim = partial(in_flight.claim, AwayStore().claim)
        with pytest.raises(DatabaseUnavailable, match="away"):
            await claim(REFS)
        clock.now = 60.0

        assert not in_flight.is_stalled

    asyncio.run(story())
