"""Live texts, as workers write them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

from planq.shared.platform.database import Database
from planq.shared.subjects.streams.contract import Epoch, TextPiece


class PostgresTexts:
    """Takes texts of followed jobs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def followed(self, job_ids: Collection[UUID]) -> Collection[UUID]:
        """Return the followed ones of these jobs; raises `DatabaseUnavailable`."""
        return {row["job_id"] for row in await self._database.fetch_all("followed_jobs", job_ids=list(job_ids))}

    async def write(self, pieces: Sequence[TextPiece]) -> Mapping[Epoch, int]:
        """Append a piece to each text; return each text's length.

        A piece that leaves a gap is dropped: writers continue from the returned length. Texts replaced by a newer
        epoch are missing. Precondition: one piece per epoch, not empty, storable. Raises `DatabaseUnavailable`;
        writing again is harmless.
        """
        rows = await self._database.fetch_all(
            "write_texts",
            job_ids=[piece.epoch.job_id for piece in pieces],
            tenant_ids=[piece.tenant_id for piece in pieces],
            stages=[piece.stage for piece in pieces],
            attempts=[piece.epoch.attempt for piece in pieces],
            tries=[piece.epoch.number for piece in pieces],
            starts=[piece.start for piece in pieces],
            pieces=[piece.text for piece in pieces],
        )
        return {Epoch(row["job_id"], row["attempt"], row["try"]): row["written"] for row in rows}
