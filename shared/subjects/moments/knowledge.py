"""Documents and their passages: the port `Knowledge` over PostgreSQL full text, and loading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planq.shared.agentic.tools.contract import Passage
from planq.shared.kernel.new_ids import new_id
from planq.shared.platform.database import Database, as_json, query


@dataclass(frozen=True, slots=True)
class Piece:
    """One searchable piece of a document; `heading` names its place there."""

    heading: str
    body: str


class PostgresKnowledge:
    """Full-text search over loaded documents, ranked by cover density (`ts_rank_cd`)."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def search(self, tenant_id: str, query: str, limit: int) -> Sequence[Passage]:
        """Return at most `limit` passages that share a word with `query`, best first."""
        rows = await self._database.fetch_all(
            "search_passages", tenant_id=tenant_id, query=query.replace("\x00", " "), limit=limit
        )
        return [
            Passage(
                title=row["title"] if not row["heading"] else f"{row['title']} — {row['heading']}",
                source=row["source"],
                text=row["body"],
                score=row["score"],
            )
            for row in rows
        ]

    async def load(self, tenant_id: str, *, source: str, title: str, digest: str, pieces: Sequence[Piece]) -> bool:
        """Store a document in place of an earlier one of the same source; False when its digest has not changed."""
        passages = [{"position": n, "heading": p.heading, "body": p.body} for n, p in enumerate(pieces)]
        async with self._database.connection() as connection, connection.transaction():
            cursor = await connection.execute(
                query("load_document"),
                {"id": new_id(), "tenant_id": tenant_id, "source": source, "title": title, "digest": digest},
            )
            row = await cursor.fetchone()
            if row is None:
                return False
            key = {"document_id": row["id"], "tenant_id": tenant_id}
            await connection.execute(query("drop_passages"), key)
            await connection.execute(query("load_passages"), {**key, "passages": as_json(passages)})
            return True
