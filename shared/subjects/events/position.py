"""A reader's position among events, from which any process can continue.

Sequence numbers are drawn before the commit, so a lower one may become visible after a higher one, and a reader that
only remembers the last number would miss it. So events are read in the order of their transactions, up to the oldest
that is still open: nothing can appear before what was read.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Self

_DIGITS = 18
"""No server reaches as many transactions or events, and it fits both types of PostgreSQL."""

_FORM = re.compile(rf"(\d{{1,{_DIGITS}}})-(\d{{1,{_DIGITS}}})", re.ASCII)


class Position(NamedTuple):
    """The last event that was read: the number of its transaction, and its own number."""

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
