"""What costs are told apart by, and which of them somebody asks for."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from enum import StrEnum


class CostBy(StrEnum):
    """What costs are told apart by."""

    DAY = "day"
    AGENT = "agent"
    MODEL = "model"
    TENANT = "tenant"


@dataclass(frozen=True, slots=True)
class CostQuery:
    """Which costs somebody asks for: of the days from `first` to `last`, by UTC, and of one agent or model alone."""

    by: CostBy
    first: date
    last: date
    agent: str | None = None
    model: str | None = None
