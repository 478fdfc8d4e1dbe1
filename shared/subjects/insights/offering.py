"""Which insights planners get, and which jobs are held out to measure their use."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol
from uuid import UUID

from planq.shared.platform.errors import capped
from planq.shared.subjects.insights.report import wilson

MAX_OFFERED = 3
MAX_TOKENS = 300
_MAX_LINE = 600


class InsightMode(StrEnum):
    """A tenant's use of insights. `SHADOW`: learned and chosen, but not shown."""

    OFF = "off"
    SHADOW = "shadow"
    ON = "on"


class InsightGroup(StrEnum):
    """Whether the planner saw the insights chosen for its job."""

    OFFERED = "offered"
    HELD_OUT = "held_out"
    SHADOW = "shadow"


@dataclass(frozen=True, slots=True)
class Candidate:
    """An insight that fits a job, taught by `jobs`; a model added `reflection`."""

    id: UUID
    text: str
    jobs: int
    reflection: str | None = None

    @property
    def text_for_planner(self) -> str:
        counted = f"{_line(self.text)} (seen in {self.jobs} job{'s' * (self.jobs != 1)})"
        return counted if self.reflection is None else f"{counted} A model adds: {_line(self.reflection)}"


def is_held_out(origin: UUID, share: float) -> bool:
    """Return whether a job plans without insights, by its `origin`, the root request: forks and children agree."""
    number = int.from_bytes(hashlib.sha256(b"planq.insights:" + origin.bytes).digest()[:8], "big")
    return number < share * 2**64


def side_of(mode: InsightMode, origin: UUID, share: float) -> InsightGroup:
    """Return the side of a job with chosen insights; precondition: the mode is not `OFF`."""
    if mode is InsightMode.SHADOW:
        return InsightGroup.SHADOW
    return InsightGroup.HELD_OUT if is_held_out(origin, share) else InsightGroup.OFFERED


def fitting(found: Sequence[Candidate], count: Callable[[str], int]) -> Sequence[Candidate]:
    """Return the first candidates within `MAX_OFFERED` and `MAX_TOKENS`."""
    chosen: list[Candidate] = []
    for candidate in found:
        if len(chosen) == MAX_OFFERED:
            break
        if count(offered_text([*chosen, candidate])) <= MAX_TOKENS:
            chosen.append(candidate)
    return chosen


def offered_text(chosen: Sequence[Candidate]) -> str:
    """Return the planner's text, a line per insight; the caller marks it as data."""
    return "\n".join(f"- {one.text_for_planner}" for one in chosen)


def _line(text: str) -> str:
    """Return a text on one line, without unprintable characters."""
    return capped(" ".join("".join(sign if sign.isprintable() else " " for sign in text).split()), _MAX_LINE)


def confidence(seen: int, against: int) -> float:
    """Return a confidence from 0 to 1: the lower end of Wilson's interval."""
    return round(wilson(seen, seen + against)[0], 3)


@dataclass(frozen=True, slots=True)
class FoundInsights:
    """Insights for a job, best first. An earlier choice is returned again with its `side`."""

    origin: UUID
    side: InsightGroup | None
    found: Sequence[Candidate]


class InsightOffers(Protocol):
    """Insights for planners."""

    async def find(self, tenant_id: str, job_id: UUID, text: str, tools: Collection[str]) -> FoundInsights:
        """Return the insights that fit a job with this text and tools; raises `DatabaseUnavailable`."""
        ...

    async def note(
        self,
        tenant_id: str,
        job_id: UUID,
        origin: UUID,
        conversation_id: UUID | None,
        side: InsightGroup,
        chosen: Sequence[UUID],
        tokens: int,
    ) -> bool:
        """Store the choice for a job; False if there was one. Raises `DatabaseUnavailable`."""
        ...
