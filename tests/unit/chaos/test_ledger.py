from __future__ import annotations

import os
from pathlib import Path

from tests.chaos import ledger
from tests.chaos.ledger import EFFECT, FINISH, START, UNSAFE, Entry


def entry(
    phase: str,
    key: str,
    attempt: int = 1,
    *,
    at: float = 1.0,
    pid: int = 1,
    effect: str = UNSAFE,
    tool: str = "tool",
) -> Entry:
    return Entry(at, phase, key, attempt, pid, effect, tool)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    assert ledger.read(path) == []
    ledger.write(path, START, "job/0", 2, UNSAFE, "tool")
    ledger.write(path, FINISH, "job/0", 2, UNSAFE, "tool")

    begun, done = ledger.read(path)

    assert (begun.phase, begun.key, begun.attempt, begun.pid, begun.effect) == (
        START,
        "job/0",
        2,
        os.getpid(),
        UNSAFE,
    )
    assert (done.phase, done.tool) == (FINISH, "tool")
    assert ledger.read_tail(path) == [begun, done]
    assert ledger.read_tail(path, size=len(done.line) + 5) == [done]


def test_a_call_that_is_never_repeated_is_a_duplicate_when_it_began_twice() -> None:
    begun = [entry(START, key, n, tool=ledger.NEVER_REPEATED) for key, n in (("a/0", 1), ("a/0", 2), ("b/0", 1))]

    assert ledger.duplicate_effects(begun) == ["a/0"]
    assert ledger.duplicate_effects([entry(START, "a/0", n) for n in (1, 2)]) == []


def test_an_effect_that_happened_twice_is_a_duplicate_whoever_looked() -> None:
    entries = [entry(phase, key, n) for n in (1, 2) for phase, key in ((START, "a/0"), (EFFECT, "a/0"))]
    entries += [entry(START, "b/0", 1), entry(START, "b/0", 2), entry(EFFECT, "b/0", 2)]

    assert ledger.duplicate_effects(entries) == ["a/0"]
    assert ledger.finishes(entries) == {"a/0": 2, "b/0": 1}


def test_a_process_leaves_open_what_it_did_not_finish() -> None:
    entries = [
        entry(START, "a/0", pid=1),
        entry(START, "a/1", pid=1),
        entry(FINISH, "a/0", pid=1),
        entry(START, "a/2", pid=2),
    ]

    assert [one.key for one in ledger.open_calls(entries, 1)] == ["a/1"]


def test_a_call_after_the_success_of_its_step_is_a_repeat() -> None:
    succeeded = {"later/0": (1, 5.0), "twice/0": (1, 5.0), "after/0": (3, 5.0), "fine/0": (2, 5.0)}
    entries = [
        entry(START, "later/0", 1),
        entry(START, "later/0", 2, at=4.0),
        entry(START, "twice/0", 1),
        entry(START, "twice/0", 1),
        entry(START, "after/0", 2, at=6.0),
        entry(START, "fine/0", 1),
        entry(START, "fine/0", 2),
        entry(START, "unknown/0", 9, at=9.0),
    ]

    assert ledger.repeated_after_success(entries, succeeded) == ["after/0", "later/0", "twice/0"]


def test_one_pure_call_that_was_thrown_away_with_its_unit_is_no_repeat() -> None:
    succeeded = {"unit/0": (1, 5.0), "twice/0": (1, 5.0), "after/0": (1, 5.0)}
    entries = [
        *[entry(START, "unit/0", 1, effect="pure")] * 2,
        *[entry(START, "twice/0", 1, effect="pure")] * 3,
        entry(START, "after/0", 1, effect="pure"),
        entry(START, "after/0", 1, at=6.0, effect="pure"),
    ]

    assert ledger.repeated_after_success(entries, succeeded) == ["after/0", "twice/0"]


def test_a_pure_call_of_a_process_that_was_frozen_after_its_claim_is_no_repeat() -> None:
    """Its step was taken back meanwhile, and a later attempt has succeeded."""
    succeeded = {"pure/0": (2, 5.0), "read/0": (2, 5.0), "same/0": (2, 5.0)}
    entries = [
        entry(START, "pure/0", 1, at=6.0, effect="pure"),
        entry(START, "read/0", 1, at=6.0, effect="read"),
        entry(START, "same/0", 2, at=6.0, effect="pure"),
    ]

    assert ledger.repeated_after_success(entries, succeeded) == ["read/0", "same/0"]
