"""Agents and skills as callers store them: documents with versions, never changed once they are stored.

A document that is stored again unchanged keeps its version; any other becomes the next one. What is retired can be
named by no new job, and stays for the jobs that pinned it: nothing here is ever deleted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any

from shared.domain.errors import Conflict, NotFound, capped, storable
from shared.store.database import Database, Row

_LOOKS = 10
"""How often a version is tried that others keep taking; each time at least one of them has got on."""

_MOST_NAMED = 50


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """One version of an agent or a skill: `content` is the JSON text of an agent's document, or a skill's text."""

    name: str
    version: int
    content: str
    created_at: datetime
    retired_at: datetime | None

    @classmethod
    def of(cls, row: Row) -> StoredDocument:
        """Read a row."""
        return cls(**row)


@dataclass(frozen=True, slots=True)
class Kept:
    """Which version a document has now; `is_new` says whether it was stored by this call."""

    version: int
    created_at: datetime
    is_new: bool


class DocumentStore:
    """The documents of one kind, `agent` or `skill`."""

    def __init__(self, database: Database, kind: str) -> None:
        if kind not in ("agent", "skill"):
            raise ValueError(f"expected 'agent' or 'skill', found {kind!r}")
        self._database = database
        self._kind = kind

    async def put(self, tenant_id: str, name: str, content: str, *, skills: Sequence[str] | None = None) -> Kept:
        """Store a document that has been checked, unless the version in use is the same character by character.

        `skills` are those that an agent lists; None for a skill. Idempotent. Raises `Conflict` where others keep
        storing the same name at this moment.
        """
        given: dict[str, Any] = {"content": content, "digest": sha256(content.encode()).hexdigest()}
        if skills is not None:
            given["skills"] = list(skills)
        for _ in range(_LOOKS):
            row = await self._database.fetch_one(f"put_{self._kind}", tenant_id=tenant_id, name=name, **given)
            if row is not None:
                return Kept(**row)
        raise Conflict(f"{self._kind} {name!r} is being stored by others all the time; send it again")

    async def get(self, tenant_id: str, name: str, version: int | None = None) -> StoredDocument:
        """Return a version, retired ones too, or the newest in use; raises `NotFound` that names what there is."""
        row = await self._database.fetch_one(
            f"get_{self._kind}", tenant_id=tenant_id, name=storable(name), version=version
        )
        if row is None:
            raise await self._missing(tenant_id, name, version)
        return StoredDocument.of(row)

    async def newest(self, tenant_id: str, names: Collection[str]) -> Mapping[str, int]:
        """Return the newest version in use of each of these documents; what is not in use is left out."""
        if not names:
            return {}
        rows = await self._database.fetch_all(
            f"pin_{self._kind}s", tenant_id=tenant_id, names=[storable(name) for name in names]
        )
        return {row["name"]: row["version"] for row in rows}

    async def page(self, tenant_id: str, *, after: str = "", limit: int) -> Sequence[StoredDocument]:
        """Return at most `limit` documents in use, each in its newest version, in the order of their names."""
        rows = await self._database.fetch_all(f"list_{self._kind}s", tenant_id=tenant_id, after=after, limit=limit)
        return [StoredDocument.of(row) for row in rows]

    async def retire(self, tenant_id: str, name: str) -> None:
        """Take a document out of use, every version of it; raises `NotFound` when none is in use."""
        if not await self._database.execute(f"retire_{self._kind}", tenant_id=tenant_id, name=storable(name)):
            raise await self._missing(tenant_id, name, None)

    async def _missing(self, tenant_id: str, name: str, version: int | None) -> NotFound:
        row = await self._database.fetch_one(
            f"name_{self._kind}s", tenant_id=tenant_id, name=storable(name), limit=_MOST_NAMED
        )
        names: list[str] = row["names"] if row else []
        versions: list[int] = row["versions"] if row else []
        shown = repr(capped(name, 80))
        if version is not None and versions:
            known = ", ".join(map(str, versions))
            return NotFound(f"{self._kind} {shown} has no version {version}; there are {known}", versions=versions)
        was = "is retired" if versions else "does not exist"
        known = ", ".join(names) or "none: `planq agents apply` stores some"
        return NotFound(f"{self._kind} {shown} {was}; there are {known}", known=names)
