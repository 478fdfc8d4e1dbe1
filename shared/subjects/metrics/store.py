"""What `/metrics` counts for the whole installation: the tallies, what workers count, and who reports both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from uuid import UUID

from planq.shared.platform.database import Database

_AT_ONCE = 5_000
"""Events of one transaction: a tenth of a second."""


class TallyStore:
    """Every method raises `DatabaseUnavailable`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add_up(self, most: int = 20) -> None:
        """Add to the tallies what has happened since somebody looked last, in at most so many transactions.

        Does nothing where somebody else does it just now.
        """
        for _ in range(most):
            if await self._database.call("planq_tally", _AT_ONCE) < _AT_ONCE:
                return

    async def counted(self) -> Mapping[tuple[str, ...], Decimal]:
        """Return all that was counted since the tables were made, by name and labels; no number ever falls."""
        found: Counter[tuple[str, ...]] = Counter()
        for row in await self._database.fetch_all("counted_by_all"):
            if row["name"] is not None:
                found[row["name"], *row["labels"]] += row["number"]
                continue
            found["late",] += row["number"]
            for *labelled, number in row["counts"] or ():
                found[tuple(labelled)] += number
        return found  # type: ignore[return-value]

    async def hold_report(self, holder: UUID, seconds: float) -> bool:
        """Take or renew the report for a process; False where another one has it."""
        return await self._database.execute("hold_report", holder=holder, seconds=seconds) > 0

    async def drop_report(self, holder: UUID) -> None:
        await self._database.execute("drop_report", holder=holder)
