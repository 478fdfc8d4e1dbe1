"""Exponential back-off."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count


def pause_after(failures: int, first: float, longest: float) -> float:
    """Return the pause after this many failures: `first`, doubled each time, at most `longest`."""
    return min(first * 2.0 ** min(failures - 1, 64), longest) if failures > 0 else 0.0


def pauses(first: float, longest: float) -> Iterator[float]:
    """Yield the pauses after each failure, without end; see `pause_after`."""
    return (pause_after(failures, first, longest) for failures in count(1))
