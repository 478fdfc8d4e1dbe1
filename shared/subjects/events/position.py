"""Where a reader of events stands, so that it can go on from there later, and from any process.

Numbers of a sequence are drawn before a commit, so one may become visible after a later one. A reader that remembers
the last number alone would skip it. Events are therefore read in the order of their transactions, and only those of
transactions below which none is open any more: nothing can come in before what was read.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Self

_DIGITS = 18
"""No server comes to as many transactions or events, and both types of PostgreSQL hold it."""

_FORM = re.compile(rf"(\d{{1,{_DIGITS}}})-(\d{{1,{_DIGITS}}})", re.ASCII)


class Position(NamedTuple):
    """After which event a reader goes on: the number of its transaction, and its own in the sequence of all."""

    xid: int
    sequence: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the position that a text names; raises `ValueError` with what was expected for any other text."""
        found = _FORM.fullmatch(text)
        if found is not None:
            return cls(*map(int, found.groups()))
        raise ValueError("expected the id of an event: two numbers with a hyphen between, such as 745-1203")

    def __str__(self) -> str:
        return f"{self.xid}-{self.sequence}"


BEGINNING = Position(0, 0)
"""Before every event."""

END = Position(10**_DIGITS, 10**_DIGITS)
"""After every event."""
