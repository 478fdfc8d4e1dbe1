"""A measured figure, the bound it must keep, and how both are printed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """One measurement; `limit` is the largest good value, None where there is no bound."""

    name: str
    value: float
    unit: str
    limit: float | None = None

    @property
    def is_good(self) -> bool:
        """True when the figure keeps its bound."""
        return self.limit is None or self.value <= self.limit

    def to_json(self) -> dict[str, Any]:
        """Return the figure for programs."""
        return {
            "name": self.name,
            "value": round(self.value, 3),
            "unit": self.unit,
            "limit": self.limit,
            "ok": self.is_good,
        }

    def __str__(self) -> str:
        bound = (
            "" if self.limit is None else f"  (limit {self.limit:g} {self.unit}{'' if self.is_good else ': MISSED'})"
        )
        return f"{self.name:<36} {self.value:10.2f} {self.unit}{bound}"
