"""Whether insights help: offered jobs versus held-out jobs, with 95 % intervals.

Rates have Wilson's interval, differences Newcombe's, means a bootstrap's over at most a hundred random blocks of jobs
per side, so a million jobs cost what a hundred do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import sqrt
from typing import Any

TOO_FEW = 10
"""With fewer jobs on one side there is no verdict."""

RESAMPLES = 400
_Z = 1.959964


class Usefulness(StrEnum):
    """The verdict on insights."""

    HELPS = "helps"
    HARMS = "harms"
    NO_DIFFERENCE = "no_difference"
    TOO_FEW = "too_few"


@dataclass(frozen=True, slots=True)
class Block:
    """Sums over some jobs of one side."""

    jobs: int
    succeeded: int = 0
    tool_failures: float = 0.0
    rounds: float = 0.0
    seconds: float = 0.0
    cost_usd: float = 0.0
    tokens: float = 0.0


MEANS: Mapping[str, Callable[[Block], float]] = {
    "tool_failures": lambda block: block.tool_failures,
    "rounds": lambda block: block.rounds,
    "seconds": lambda block: block.seconds,
    "cost_usd": lambda block: block.cost_usd,
    "tokens": lambda block: block.tokens,
}
"""Costs of a job; less is better."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float

    def to_json(self) -> dict[str, float]:
        return {"value": round(self.value, 6), "low": round(self.low, 6), "high": round(self.high, 6)}


@dataclass(frozen=True, slots=True)
class Contrast:
    """One measure with and without insights; None without jobs."""

    with_insights: Interval | None
    without: Interval | None
    difference: Interval | None
    verdict: Usefulness

    def to_json(self) -> dict[str, Any]:
        shown = (("with", self.with_insights), ("without", self.without), ("difference", self.difference))
        return {name: None if one is None else one.to_json() for name, one in shown} | {"verdict": self.verdict}


def wilson(hits: int, of: int) -> tuple[float, float]:
    """Return Wilson's interval of a rate (E. B. Wilson, 1927); without trials all of [0, 1]."""
    if of <= 0:
        return 0.0, 1.0
    rate, square = hits / of, _Z * _Z
    middle = (rate + square / (2 * of)) / (1 + square / of)
    half = _Z * sqrt(rate * (1 - rate) / of + square / (4 * of * of)) / (1 + square / of)
    return max(0.0, middle - half), min(1.0, middle + half)


def rate_of(hits: int, of: int) -> Interval | None:
    return Interval(hits / of, *wilson(hits, of)) if of else None


def compare_rates(hits: int, of: int, other_hits: int, other_of: int) -> Contrast:
    """Compare rates, more is better (R. G. Newcombe, 1998, method 10)."""
    first, second = rate_of(hits, of), rate_of(other_hits, other_of)
    if first is None or second is None:
        return Contrast(first, second, None, Usefulness.TOO_FEW)
    value = first.value - second.value
    low = value - sqrt((first.value - first.low) ** 2 + (second.high - second.value) ** 2)
    high = value + sqrt((first.high - first.value) ** 2 + (second.value - second.low) ** 2)
    difference = Interval(value, low, high)
    return Contrast(first, second, difference, _verdict(difference, min(of, other_of), more_is_better=True))


def compare_means(of: Callable[[Block], float], ours: Sequence[Block], others: Sequence[Block]) -> Contrast:
    """Compare means, less is better; empty blocks are ignored."""
    ours, others = [one for one in ours if one.jobs], [one for one in others if one.jobs]
    if not ours or not others:
        return Contrast(_mean(of, ours), _mean(of, others), None, Usefulness.TOO_FEW)
    first, second = _resampled(of, ours, seed=1), _resampled(of, others, seed=2)
    value = _mean_of(of, ours) - _mean_of(of, others)
    difference = _estimate(value, [a - b for a, b in zip(first, second, strict=True)])
    fewest = min(sum(one.jobs for one in ours), sum(one.jobs for one in others))
    return Contrast(
        _estimate(_mean_of(of, ours), first),
        _estimate(_mean_of(of, others), second),
        difference,
        _verdict(difference, fewest, more_is_better=False),
    )


def compare(ours: Sequence[Block], others: Sequence[Block]) -> tuple[Usefulness, Mapping[str, Contrast]]:
    """Compare all measures; the verdict is that on success, without difference that on failed calls."""
    success = compare_rates(
        _sum(ours, "succeeded"), _sum(ours, "jobs"), _sum(others, "succeeded"), _sum(others, "jobs")
    )
    found = {"success": success}
    found |= {name: compare_means(of, ours, others) for name, of in MEANS.items()}
    whole = success.verdict
    if whole is Usefulness.NO_DIFFERENCE:
        whole = found["tool_failures"].verdict
    return whole, found


def _sum(blocks: Sequence[Block], name: str) -> int:
    return sum(getattr(one, name) for one in blocks)


def _verdict(difference: Interval, fewest: int, *, more_is_better: bool) -> Usefulness:
    if fewest < TOO_FEW:
        return Usefulness.TOO_FEW
    if difference.low <= 0 <= difference.high:
        return Usefulness.NO_DIFFERENCE
    return Usefulness.HELPS if (difference.low > 0) == more_is_better else Usefulness.HARMS


def _mean(of: Callable[[Block], float], blocks: Sequence[Block]) -> Interval | None:
    return _estimate(_mean_of(of, blocks), _resampled(of, blocks, seed=1)) if blocks else None


def _mean_of(of: Callable[[Block], float], blocks: Sequence[Block]) -> float:
    return sum(map(of, blocks)) / sum(one.jobs for one in blocks)


def _estimate(value: float, resampled: Sequence[float]) -> Interval:
    ordered = sorted(resampled)
    low, high = ordered[int(len(ordered) * 0.025)], ordered[int(len(ordered) * 0.975)]
    return Interval(value, min(low, value), max(high, value))


def _resampled(of: Callable[[Block], float], blocks: Sequence[Block], *, seed: int) -> Sequence[float]:
    """Return means of blocks drawn with replacement, the same in every report."""
    pairs = [(of(one), one.jobs) for one in blocks]
    if len({total / jobs for total, jobs in pairs}) == 1:
        return [pairs[0][0] / pairs[0][1]] * RESAMPLES
    count, state, means = len(pairs), seed * 0x9E3779B97F4A7C15 & _MASK, []
    for _ in range(RESAMPLES):
        total, jobs = 0.0, 0
        for _ in range(count):
            # xorshift64 (G. Marsaglia, 2003): chance that is the same everywhere, for nothing here may draw any.
            state ^= state << 13 & _MASK
            state ^= state >> 7
            state ^= state << 17 & _MASK
            drawn = pairs[(state >> 32) % count]
            total += drawn[0]
            jobs += drawn[1]
        means.append(total / jobs)
    return means


_MASK = (1 << 64) - 1
