"""Memory of each process over time, and how fast it grows.

A process that was started again begins a new series: what its forerunner held is gone. The slope of a name is the
common slope of all its series by least squares, each around its own mean, so that restarts do not look like growth.
The first `WARM_UP_SECONDS` of a series are left out: imports, pools and caches fill.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

WARM_UP_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Growth:
    """Memory of the processes of one name, resident set in MB; the slope is None where too little was seen.

    `seen_seconds` is the time that the slope rests on.
    """

    name: str
    processes: int
    peak_mb: float
    last_mb: float
    slope_mb_per_minute: float | None
    seen_seconds: float


@dataclass(slots=True)
class Memory:
    """Samples by name and pid: (seconds since the process was first seen, MB)."""

    samples: dict[tuple[str, int], list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    _first: dict[tuple[str, int], float] = field(default_factory=dict)

    def add(self, name: str, pid: int, at: float, mb: float) -> None:
        """Take a sample."""
        first = self._first.setdefault((name, pid), at)
        self.samples[name, pid].append((at - first, mb))

    def growth(self, warm_up_seconds: float = WARM_UP_SECONDS) -> list[Growth]:
        """Return what became of each name."""
        by_name: dict[str, list[list[tuple[float, float]]]] = defaultdict(list)
        for (name, _), series in self.samples.items():
            by_name[name].append(series)
        return [_growth(name, by_name[name], warm_up_seconds) for name in sorted(by_name)]


def _growth(name: str, series: Sequence[list[tuple[float, float]]], warm_up_seconds: float) -> Growth:
    warm = [[(at, mb) for at, mb in one if at >= warm_up_seconds] for one in series]
    seen = sum(one[-1][0] - one[0][0] for one in warm if one)
    per_second = common_slope(warm)
    return Growth(
        name=name,
        processes=len(series),
        peak_mb=round(max(mb for one in series for _, mb in one), 1),
        last_mb=round(series[-1][-1][1], 1),
        slope_mb_per_minute=None if per_second is None else round(60 * per_second, 3),
        seen_seconds=round(seen, 1),
    )


def common_slope(series: Iterable[Sequence[tuple[float, float]]]) -> float | None:
    """Return the slope that fits all series best, each with a level of its own; None without two moments in one."""
    above = below = 0.0
    for points in series:
        if len(points) < 2:
            continue
        mean_at = sum(at for at, _ in points) / len(points)
        mean_mb = sum(mb for _, mb in points) / len(points)
        above += sum((at - mean_at) * (mb - mean_mb) for at, mb in points)
        below += sum((at - mean_at) ** 2 for at, _ in points)
    return above / below if below > 0 else None
