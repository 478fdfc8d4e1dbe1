"""Whether insights help: intervals, verdicts, and when nothing can be said."""

from __future__ import annotations

from random import Random

import pytest

from planq.shared.subjects.insights.report import (
    MEANS,
    TOO_FEW,
    Block,
    Usefulness,
    compare,
    compare_means,
    compare_rates,
    wilson,
)


def test_wilson_is_as_the_tables_say() -> None:
    assert wilson(10, 20) == pytest.approx((0.2993, 0.7007), abs=1e-4)
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson(0, 0) == (0.0, 1.0)


def test_newcombe_is_as_in_its_paper() -> None:
    """Example (a) of table II: 56 of 70 and 48 of 80, by method 10."""
    found = compare_rates(56, 70, 48, 80)
    assert found.difference is not None
    assert (found.difference.low, found.difference.high) == pytest.approx((0.0524, 0.3339), abs=1e-4)
    assert found.verdict is Usefulness.HELPS


def test_too_few_jobs_say_nothing() -> None:
    assert compare_rates(TOO_FEW - 1, TOO_FEW - 1, 0, 1_000).verdict is Usefulness.TOO_FEW
    assert compare_rates(1, 1, 0, 0).difference is None
    whole, found = compare([], [])
    assert whole is Usefulness.TOO_FEW
    assert {one.verdict for one in found.values()} == {Usefulness.TOO_FEW}


def blocks(values: list[float]) -> list[Block]:
    return [Block(1, tool_failures=value) for value in values]


def test_less_is_better_of_means() -> None:
    chance = Random(1)
    few = blocks([chance.random() for _ in range(100)])
    many = blocks([chance.random() + 1 for _ in range(100)])
    of = MEANS["tool_failures"]
    assert compare_means(of, few, many).verdict is Usefulness.HELPS
    assert compare_means(of, many, few).verdict is Usefulness.HARMS
    assert compare_means(of, few, few[::-1]).verdict is Usefulness.NO_DIFFERENCE
    assert compare_means(of, blocks([1.0] * 50), blocks([1.0] * 50)).verdict is Usefulness.NO_DIFFERENCE


def test_a_bootstrap_holds_the_mean_about_as_often_as_it_says() -> None:
    chance, held = Random(7), 0
    for _ in range(100):
        found = compare_means(MEANS["seconds"], _exponential(chance), _exponential(chance))
        assert found.with_insights is not None
        held += found.with_insights.low <= 1 <= found.with_insights.high
    assert 85 <= held <= 100


def _exponential(chance: Random) -> list[Block]:
    return [Block(1, seconds=chance.expovariate(1)) for _ in range(60)]
