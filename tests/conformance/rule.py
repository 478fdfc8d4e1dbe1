"""What a rule is by which readings.md overrides a case; the tables of rules are overrides.py and its neighbours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.conformance.cases import Case

Expected = Any


@dataclass(frozen=True)
class Rule:
    """`row` of readings.md replaces the original's behaviour in cases of `op` for which `applies` holds."""

    name: str
    row: int
    op: str
    applies: Callable[[Case, Expected], bool]
    rewrite: Callable[[Case, Expected], Expected]
