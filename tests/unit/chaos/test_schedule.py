from __future__ import annotations

from collections import Counter

from tests.chaos.schedule import APIS, TARGETS, WORKERS, Kind, schedule


def test_the_same_seed_gives_the_same_faults_against_the_same_processes() -> None:
    assert schedule(7, 100) == schedule(7, 100)
    assert schedule(7, 100) != schedule(8, 100)


def test_a_longer_run_begins_like_a_shorter_one() -> None:
    assert schedule(7, 300)[:50] == schedule(7, 50)


def test_ticks_are_counted_from_zero() -> None:
    assert [fault.tick for fault in schedule(1, 5)] == [0, 1, 2, 3, 4]


def test_every_kind_comes_before_any_comes_again() -> None:
    faults = schedule(3, 4 * len(Kind))

    for start in range(0, len(faults), len(Kind)):
        assert Counter(fault.kind for fault in faults[start : start + len(Kind)]) == Counter(Kind)


def test_faults_strike_whom_their_kind_allows_and_in_the_end_everybody() -> None:
    faults = schedule(5, 50 * len(Kind))

    for fault in faults:
        assert fault.target in TARGETS.get(fault.kind, ("broker", "database"))
    assert {fault.target for fault in faults} == {*WORKERS, *APIS, "broker", "database"}
