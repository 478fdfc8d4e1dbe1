"""Installation-wide counts for `/metrics`: tallies, workers' counts, and the reporting process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from uuid import UUID

from planq.shared.platform.database import Database

_AT_ONCE = 5_000
"""Events per transaction: a tenth of a second."""


class TallyStore:
    """Every method raises `DatabaseUnavailable`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add_up(self, most: int = 20) -> None:
        """Add recent events to the tallies, unless another process does."""
        for _ in range(most):
            if await self._database.call("planq_tally", _AT_ONCE) < _AT_ONCE:
                return

    async def counted(self) -> Mapping[tuple[str, ...], Decimal]:
        """Return all counts by name and labels; they never fall."""
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
        """Claim or renew the report for a process; False if another owns it."""
        return await self._database.execute("hold_report", holder=holder, seconds=seconds) > 0

    async def drop_report(self, holder: UUID) -> None:
        await self._database.execute("drop_report", holder=holder)
