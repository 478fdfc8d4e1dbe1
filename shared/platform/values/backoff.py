"""Exponential back-off: the pause after each failure of something that a process tries again and again."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count


def pause_after(failures: int, first: float, longest: float) -> float:
    """Return the pause after so many failures in a row: `first`, doubled each time, at most `longest`; 0 for none."""
    return min(first * 2.0 ** min(failures - 1, 64), longest) if failures > 0 else 0.0


def pauses(first: float, longest: float) -> Iterator[float]:
    """Yield the pauses after the first failure, the second and so on, without end; see `pause_after`."""
    return (pause_after(failures, first, longest) for failures in count(1))
