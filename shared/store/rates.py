"""The rate windows in PostgreSQL, for where no Valkey or Redis is: exact over all processes."""

from __future__ import annotations

from datetime import timedelta
from time import monotonic

from shared.domain.tenants.rates import WINDOW_SECONDS, Rates, RateVerdict, Window
from shared.store.database import Database

_WINDOW = timedelta(seconds=WINDOW_SECONDS)


class PostgresWindows:
    """The windows of all tenants in one database."""

    title = "the database"
    at_once = 4
    """Of the process's connections: messages of one tenant wait for one another, and others need some too."""

    def __init__(self, database: Database) -> None:
        """`database` is opened and closed by others."""
        self._database = database
        self._tidied = monotonic()

    async def check(self, tenant_id: str, channel: str, rates: Rates) -> RateVerdict:
        """Let a message in and count it, or refuse it; raises `DatabaseUnavailable`."""
        (row,) = await self._database.call_table(
            "planq_admit_message", tenant_id, channel, rates.tenant, rates.channel, _WINDOW
        )
        if monotonic() - self._tidied >= WINDOW_SECONDS:
            self._tidied = monotonic()
            await self.tidy()
        return RateVerdict(
            row["allowed"],
            row["now"],
            Window(rates.tenant, row["used"], row["frees_at"]),
            Window(rates.channel, row["channel_used"], row["channel_frees_at"]),
        )

    async def tidy(self) -> None:
        """Remove what counts no more of tenants that send no more; a message removes what is its tenant's."""
        await self._database.execute("forget_rate_marks", window_seconds=WINDOW_SECONDS)

    async def ping(self) -> None:
        """Raise `DatabaseUnavailable` where the database does not answer."""
        await self._database.call("planq_now")

    async def close(self) -> None:
        """Do nothing: the database is closed by those who opened it."""
