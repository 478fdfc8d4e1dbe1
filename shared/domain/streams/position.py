"""Where a reader of events stands, so that it can go on from there later, and from any process.

Numbers of a sequence are drawn before a commit, so one may become visible after a later one. A reader that remembers
the last number alone would skip it. Events are therefore read in the order of their transactions, and only those of
transactions below which none is open any more: nothing can come in before what was read.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Self

_FORM = re.compile(r"(\d{1,19})-(\d{1,19})", re.ASCII)
_MOST = 2**63 - 1
"""PostgreSQL draws sequences up to here, and no cluster comes to as many transactions."""


class Position(NamedTuple):
    """After which event a reader goes on: the number of its transaction, and its own in the sequence of all."""

    xid: int
    sequence: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the position that a text names; raises `ValueError` with what was expected for any other text."""
        found = _FORM.fullmatch(text)
        if found is not None and all(int(part) <= _MOST for part in found.groups()):
            return cls(*map(int, found.groups()))
        raise ValueError("expected the id of an event: two numbers with a hyphen between, such as 745-1203")

    def __str__(self) -> str:
        return f"{self.xid}-{self.sequence}"


BEGINNING = Position(0, 0)
"""Before every event."""
