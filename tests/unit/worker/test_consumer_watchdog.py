"""When an idle worker takes itself for deaf: not while a broker that was away has only just come back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from planq.shared.kernel.states import Pool
from planq.worker.runtime import lifecycle
from planq.worker.runtime.lifecycle import ConsumerWatchdog


class Registry:
    """Says how much was published in vain so far."""

    def __init__(self) -> None:
        self.unheard = 0

    async def unanswered_wakes(self, pool: Pool, idle: timedelta, settled: timedelta, only: object) -> int:
        return self.unheard


@pytest.mark.parametrize(
    ("unheard_from", "seen_lost_at"),
    [
        (range(5, 200), 60),  # published in vain while it stood idle
        (range(58, 200), 88),  # the broker was away until just now: the consumer has 30 s to come back
        ([*range(58, 73), *range(76, 200)], 88),  # it was published again, which is not in vain at once
        ([*range(32, 40), *range(105, 200)], 135),  # another worker took it; what is published much later counts anew
        (range(58, 80), None),  # the consumer came back
    ],
)
def test_a_worker_is_lost_when_it_missed_wake_ups_for_half_its_patience(
    monkeypatch: pytest.MonkeyPatch, unheard_from: Sequence[int], seen_lost_at: int | None
) -> None:
    assert lost_at(monkeypatch, unheard_from, received=lambda now: 7) == seen_lost_at


def test_a_worker_that_takes_a_message_is_not_deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lost_at(monkeypatch, range(200), received=lambda now: now // 59) is None


def lost_at(
    monkeypatch: pytest.MonkeyPatch, unheard_from: Sequence[int], received: Callable[[int], int]
) -> int | None:
    """Return the second in which a worker with a patience of a minute takes itself for deaf."""

    async def seconds() -> int | None:
        registry: Any = Registry()
        now = 0
        monkeypatch.setattr(lifecycle, "monotonic", lambda: float(now))
        watchdog = ConsumerWatchdog(registry, Pool.IO, timedelta(seconds=60), lambda: received(now))
        for now in range(200):
            registry.unheard = 2 if now in unheard_from else 0
            if await watchdog.is_lost(in_flight=0):
                return now
        return None

    return asyncio.run(seconds())
