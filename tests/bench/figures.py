"""A measured figure, what it is compared with, and the bounds that it must keep. Pure.

A bound is a number in the figure's own unit, or a multiple of something measured in the same run: a peer's figure,
the best of the peers, or a limit that nothing could beat (one commit, the ideal makespan).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

BEST = "best peer"
"""What a bound names to mean the best of a figure's peers."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Bound:
    """A figure must be at most (or, unless `at_most`, at least) `factor` times the figure of `of`.

    `of` is a peer, a limit, or `BEST`; empty, `factor` is the bound itself, in the figure's unit.
    """

    factor: float
    of: str = ""
    at_most: bool = True

    def __str__(self) -> str:
        sign = "≤" if self.at_most else "≥"
        return f"{sign} {self.factor:g} × {self.of}" if self.of else f"{sign} {self.factor:g}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One measurement of planq.

    `peers` are figures of other systems for the same work, `limits` those of which no system can be better (or of
    something else to compare with), both in `unit` and from the same run. `limit` is short for one bound: the largest
    good value; `hopes` are bounds that nothing depends on. `samples` are the values of which `value` is the median;
    `note` is a footnote to the table.
    """

    name: str
    value: float
    unit: str
    limit: float | None = None
    peers: Mapping[str, float] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)
    bounds: Sequence[Bound] = ()
    hopes: Sequence[Bound] = ()
    more_is_better: bool = False
    samples: Sequence[float] = ()
    note: str = ""

    @property
    def best_peer(self) -> float | None:
        """The best figure of the peers, None without peers."""
        if not self.peers:
            return None
        return max(self.peers.values()) if self.more_is_better else min(self.peers.values())

    @property
    def all_bounds(self) -> tuple[Bound, ...]:
        """Every bound, `limit` too."""
        own = () if self.limit is None else (Bound(self.limit),)
        return (*own, *self.bounds)

    def reference(self, bound: Bound) -> float:
        """Return the number that a bound is, in the figure's unit; raises `KeyError` for what was not measured."""
        if not bound.of:
            return bound.factor
        known = {**self.limits, **self.peers}
        if self.best_peer is not None:
            known[BEST] = self.best_peer
        return bound.factor * known[bound.of]

    def keeps(self, bound: Bound) -> bool:
        """Say whether the figure keeps one bound."""
        reference = self.reference(bound)
        return self.value <= reference if bound.at_most else self.value >= reference

    @property
    def is_good(self) -> bool:
        """True when the figure keeps all its bounds."""
        return all(self.keeps(bound) for bound in self.all_bounds)

    def ratio(self, other: str) -> float | None:
        """Return the figure as a multiple of a peer's, a limit's or the best peer's; None when there is none."""
        known: dict[str, float | None] = {**self.limits, **self.peers, BEST: self.best_peer}
        value = known.get(other)
        return self.value / value if value else None

    def to_json(self) -> Json:
        """Return the figure for programs."""
        ratios = {name: self.ratio(name) for name in (*self.peers, *self.limits, BEST)}
        return {
            "name": self.name,
            "value": round(self.value, 3),
            "unit": self.unit,
            "limit": self.limit,
            "ok": self.is_good,
            "peers": dict(self.peers),
            "limits": dict(self.limits),
            "ratios": {name: ratio for name, ratio in ratios.items() if ratio is not None},
            "bounds": [self._judged(bound) for bound in self.all_bounds],
            "hopes": [self._judged(bound) for bound in self.hopes],
            "samples": list(self.samples),
            "note": self.note,
        }

    def _judged(self, bound: Bound) -> Json:
        return {"text": str(bound), "reference": self.reference(bound), "ok": self.keeps(bound)}

    def __str__(self) -> str:
        return f"{self.name:<44} {self.value:10.2f} {self.unit}"
