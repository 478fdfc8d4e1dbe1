"""What a rule is by which docs/decisions.md overrides a case; overrides.py and its neighbours hold the tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.conformance.cases import Case

Expected = Any


@dataclass(frozen=True)
class Rule:
    """Entry `decision` of docs/decisions.md replaces a case's expectation: of `op`, where `applies` holds."""

    name: str
    decision: int
    op: str
    applies: Callable[[Case, Expected], bool]
    rewrite: Callable[[Case, Expected], Expected]
