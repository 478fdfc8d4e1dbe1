"""Workers take turns: together they keep the pace of a duty, however many they are; a lost one costs its turns."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import Pool
from planq.worker.runtime.turns import Turns

MINUTE = 60.0


def looks(pools: Sequence[Pool], *, lost: int = 0, pace: float = 0.5) -> tuple[int, float]:
    """Return how often workers of these pools look in a minute, without the first `lost`, and the longest gap."""
    ids = sorted((new_id() for _ in pools), key=str)
    alive: list[dict[str, Any]] = [{"id": str(id), "pools": [pool]} for id, pool in zip(ids, pools, strict=True)]
    times = []
    for id in ids[lost:]:
        now = 1000.0
        turns = Turns(lambda: now)  # noqa: B023 - it is the time of this worker
        turns.learn(id, alive)
        while (now := now + turns.until_next(pace)) < 1000.0 + MINUTE:
            times.append(now)
    return len(times), max(later - one for one, later in itertools.pairwise(sorted(times)))


@pytest.mark.parametrize("workers", [1, 2, 3, 10])
def test_workers_look_together_as_often_as_one_does(workers: int) -> None:
    count, gap = looks([Pool.IO] * workers)
    assert count in range(118, 121)
    assert gap == pytest.approx(0.5)


def test_a_lost_worker_costs_its_turn_until_its_lease_has_ended() -> None:
    assert looks([Pool.IO] * 3, lost=1)[1] == pytest.approx(1.0)


def test_workers_of_other_pools_look_every_tenth_time_while_there_is_one_for_io() -> None:
    with_io, _ = looks([Pool.IO, Pool.CPU])
    assert with_io in range(129, 133)
    assert looks([Pool.CPU] * 2)[0] in range(118, 121)


def test_each_of_many_workers_looks_every_tenth_time() -> None:
    count, gap = looks([Pool.IO] * 40)
    assert count == pytest.approx(4 * 120, abs=40)
    assert gap == pytest.approx(0.5)


def test_a_timer_that_ends_before_its_turn_brings_no_second_one() -> None:
    turns = Turns(lambda: 999.999)
    assert turns.until_next(0.5) == pytest.approx(0.501)
