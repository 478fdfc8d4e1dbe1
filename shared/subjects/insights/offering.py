"""Which insights a planner is offered, and which jobs are held out, so that one sees whether insights help."""

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
    """What a tenant does with insights. `SHADOW`: they are learned and chosen, and no planner is shown them."""

    OFF = "off"
    SHADOW = "shadow"
    ON = "on"


class InsightGroup(StrEnum):
    """What became of the insights that were chosen for a job: its planner saw them, or not."""

    OFFERED = "offered"
    HELD_OUT = "held_out"
    SHADOW = "shadow"


@dataclass(frozen=True, slots=True)
class Candidate:
    """An insight that fits a job; `jobs` is how many have taught it, `reflection` what a model has added."""

    id: UUID
    text: str
    jobs: int
    reflection: str | None = None

    @property
    def text_for_planner(self) -> str:
        counted = f"{_line(self.text)} (seen in {self.jobs} job{'s' * (self.jobs != 1)})"
        return counted if self.reflection is None else f"{counted} A model adds: {_line(self.reflection)}"


def is_held_out(origin: UUID, share: float) -> bool:
    """Say whether a job plans without insights; `origin` is the request that it goes back to, the root of its tree.

    So forks and child jobs fall on the side of the job that they were made from. `share` is between 0 and 1.
    """
    number = int.from_bytes(hashlib.sha256(b"planq.insights:" + origin.bytes).digest()[:8], "big")
    return number < share * 2**64


def side_of(mode: InsightMode, origin: UUID, share: float) -> InsightGroup:
    """Return on which side a job stands for which insights were chosen; precondition: the mode is not `OFF`."""
    if mode is InsightMode.SHADOW:
        return InsightGroup.SHADOW
    return InsightGroup.HELD_OUT if is_held_out(origin, share) else InsightGroup.OFFERED


def fitting(found: Sequence[Candidate], count: Callable[[str], int]) -> Sequence[Candidate]:
    """Return the first candidates that a planner may be offered: so many, and within so many tokens together."""
    chosen: list[Candidate] = []
    for candidate in found:
        if len(chosen) == MAX_OFFERED:
            break
        if count(offered_text([*chosen, candidate])) <= MAX_TOKENS:
            chosen.append(candidate)
    return chosen


def offered_text(chosen: Sequence[Candidate]) -> str:
    """Return what a planner is shown, a line each; the caller puts it between tags that name it as data."""
    return "\n".join(f"- {one.text_for_planner}" for one in chosen)


def _line(text: str) -> str:
    """Return a text on one line, without characters that could end it or hide something in it."""
    return capped(" ".join("".join(sign if sign.isprintable() else " " for sign in text).split()), _MAX_LINE)


def confidence(seen: int, against: int) -> float:
    """Return how sure an insight is, from 0 to 1: the lower end of Wilson's interval for how often it held."""
    return round(wilson(seen, seen + against)[0], 3)


@dataclass(frozen=True, slots=True)
class FoundInsights:
    """What fits a job, the best first; `origin` is the request that it goes back to.

    Where something was chosen for it before, that is what fits, and `side` says what became of it.
    """

    origin: UUID
    side: InsightGroup | None
    found: Sequence[Candidate]


class InsightOffers(Protocol):
    """What was learned, for who plans."""

    async def find(self, tenant_id: str, job_id: UUID, text: str, tools: Collection[str]) -> FoundInsights:
        """Return what fits a tenant's job that asks `text` and may call `tools`; raises `DatabaseUnavailable`."""
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
        """Note what was chosen for a job; False where something was noted before. Raises `DatabaseUnavailable`."""
        ...
