from __future__ import annotations

import pytest

from tests.chaos.memory import Memory, common_slope


def test_the_slope_is_that_of_the_line() -> None:
    assert common_slope([[(0, 5), (1, 7), (2, 9)]]) == pytest.approx(2)
    assert common_slope([[(0, 5), (10, 5)]]) == 0


def test_processes_of_one_name_share_a_slope_and_have_levels_of_their_own() -> None:
    assert common_slope([[(0, 5), (1, 6)], [(0, 100), (1, 101)]]) == pytest.approx(1)


def test_a_single_moment_has_no_slope() -> None:
    assert common_slope([]) is None
    assert common_slope([[(0, 5)], [(3, 8)]]) is None


def test_a_restart_begins_a_new_series_and_its_warm_up_is_left_out() -> None:
    memory = Memory()
    for pid, begun in ((1, 0), (2, 1000)):
        for second in range(0, 130, 10):
            memory.add("io-1", pid, begun + second, 50 if second < 30 else 100 + second / 60)

    (growth,) = memory.growth(warm_up_seconds=30)

    assert growth.processes == 2
    assert growth.slope_mb_per_minute == pytest.approx(1, abs=0.01)
    assert growth.peak_mb == growth.last_mb == 102.0
    assert growth.seen_seconds == 180


def test_what_lived_too_briefly_has_no_slope() -> None:
    memory = Memory()
    memory.add("io-1", 1, 0, 50)
    memory.add("io-1", 1, 10, 60)

    (growth,) = memory.growth(warm_up_seconds=30)

    assert growth.slope_mb_per_minute is None
    assert growth.last_mb == 60
