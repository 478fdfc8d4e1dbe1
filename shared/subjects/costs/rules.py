"""Queries for costs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from enum import StrEnum


class CostBy(StrEnum):
    """Grouping of costs."""

    DAY = "day"
    AGENT = "agent"
    MODEL = "model"
    TENANT = "tenant"


@dataclass(frozen=True, slots=True)
class CostQuery:
    """Costs from `first` to `last` (UTC days), maybe of one agent or model."""

    by: CostBy
    first: date
    last: date
    agent: str | None = None
    model: str | None = None
