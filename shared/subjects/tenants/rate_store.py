"""The rate windows in PostgreSQL, for where no Valkey or Redis is: exact over all processes."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from planq.shared.platform.database import Database, Row
from planq.shared.subjects.tenants.rates import WINDOW_SECONDS, RateRequest, Rates, RateVerdict, Window


class PostgresWindows:
    """The windows of all tenants in one database."""

    title = "the database"
    at_once = 2
    """Of the process's connections: messages of one tenant wait for one another, and others need some too."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._tidied = monotonic()

    async def check(self, requests: Sequence[RateRequest]) -> Sequence[RateVerdict]:
        """Let each message in and count it, or refuse it; raises `DatabaseUnavailable`."""
        # By tenant: two processes that wait for each other's turns would not end.
        order = sorted(range(len(requests)), key=lambda place: requests[place].tenant_id)
        rows = await self._database.fetch_all(
            "admit_messages",
            tenant_ids=[requests[place].tenant_id for place in order],
            channels=[requests[place].channel for place in order],
            limits=[requests[place].rates.tenant for place in order],
            channel_limits=[requests[place].rates.channel for place in order],
            window_seconds=WINDOW_SECONDS,
        )
        if monotonic() - self._tidied >= WINDOW_SECONDS:
            self._tidied = monotonic()
            await self.tidy()
        verdicts = {place: _verdict(requests[place].rates, row) for place, row in zip(order, rows, strict=True)}
        return [verdicts[place] for place in range(len(requests))]

    async def tidy(self) -> None:
        """Remove what counts no more of tenants that send no more; a message removes what is its tenant's."""
        await self._database.execute("forget_rate_marks", window_seconds=WINDOW_SECONDS)

    async def ping(self) -> None:
        await self._database.call("planq_now")

    async def close(self) -> None:
        """Do nothing: the database is closed by those who opened it."""


def _verdict(rates: Rates, row: Row) -> RateVerdict:
    return RateVerdict(
        row["allowed"],
        row["now"],
        Window(rates.tenant, row["used"], row["frees_at"]),
        Window(rates.channel, row["channel_used"], row["channel_frees_at"]),
    )
