from __future__ import annotations

from collections import Counter

from tests.chaos.schedule import APIS, IO_WORKERS, SHORT_SEED, TARGETS, WORKERS, Kind, schedule


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
        assert fault.target in TARGETS.get(fault.kind, ("broker", "database", "storage", "flood", "hostile"))
    assert {fault.target for fault in faults} == {
        *WORKERS,
        *APIS,
        *("broker", "database", "storage", "flood", "hostile"),
    }


def test_the_short_run_strikes_io_workers_and_leaves_each_pool_somebody_to_go_on() -> None:
    faults = schedule(SHORT_SEED, 30)
    away = [
        fault
        for fault in faults
        if fault.kind in (Kind.KILL_WORKER, Kind.FREEZE_WORKER, Kind.TERMINATE) and fault.target in WORKERS
    ]
    interrupting = [fault for fault in away if fault.kind is not Kind.TERMINATE and fault.target in IO_WORKERS]

    assert len(interrupting) >= 4
    assert [
        (one, other)
        for one in away
        for other in away
        if one.target[:2] == other.target[:2] and one.tick < other.tick <= one.tick + 4
    ] == []
