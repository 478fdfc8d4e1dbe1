"""Large outputs under their SHA-256: store, read in slices, and collect unreferenced ones.

A row of `payloads` indexes each payload; its bytes are in the row or in an object (`objects.py`). Races are harmless:

- A reference touches the row (`created_at`) and fails without one; a put touches it too. `collect` deletes rows
  untouched for an hour, checked again under the row's lock. So a row in use is fresh, or gone and put again.
- Each put writes an object under a new name, so removing an old object never removes a new one.
- `payload_objects` has a name before the object is written until after it is removed, so a crash leaves no unknown
  object. An object is doomed before its removal, and no put refers to a doomed one.
- Objects may be lost or damaged. Readers check length and SHA-256 first, and so does a put of existing bytes, which
  stores them again if needed under a new name; the old object is collected.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import uuid4

from planq.shared.agentic.results.artifacts import MAX_STORED_BYTES
from planq.shared.platform.database import Database, Row, query
from planq.shared.platform.errors import StorageFull, StorageUnavailable
from planq.shared.platform.lacking import LackedHere
from planq.shared.subjects.payloads.objects import ObjectStore

_log = logging.getLogger("planq.store")

T = TypeVar("T")

SLICE_BYTES = 1024 * 1024
"""Memory of a stream's reader."""

_LARGE = 2 * SLICE_BYTES
"""Larger sends replace the connection afterwards (5 ms): libpq keeps their buffers."""

COLLECT_AFTER = timedelta(hours=1)
"""Far longer than from a put to the transaction that refers to it."""

_FROM_THE_FIRST: Mapping[str, Any] = {"created_at": datetime.min.replace(tzinfo=UTC), "hash": b"", "tenant_id": ""}
"""Before every payload."""

_HASH_OFF_LOOP = 1024 * 1024
"""From this size hashing (1 ms) takes longer than a thread's hand-over."""


class PayloadStore:
    """Implements `Payloads` over PostgreSQL and maybe an object store for new bytes.

    Without `objects`, reading an object raises `LackedHere` if a live worker has them (`is_elsewhere`), otherwise
    `StorageUnavailable`.
    """

    def __init__(
        self,
        database: Database,
        objects: ObjectStore | None = None,
        is_elsewhere: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self._database = database
        self._objects = objects
        self._is_elsewhere = is_elsewhere
        self._looked_at: Mapping[str, Any] | None = _FROM_THE_FIRST

    async def put(self, tenant_id: str, body: bytes, preview: bytes) -> bytes:
        """Store bytes and return their SHA-256; PostgreSQL takes them if the object store is away.

        The tenant's limit is checked under a lock once they are stored, and before if storing is costly.
        """
        digest = await _sha256(body)
        known = await self._database.fetch_one("touch_payload", tenant_id=tenant_id, hash=digest)
        if known is not None and await self._is_whole(known, digest):
            return digest
        if known is None and (self._objects is not None or len(body) > _LARGE):
            room = await self._database.fetch_one("stored_bytes", tenant_id=tenant_id, most=MAX_STORED_BYTES)
            _check_fits(room, len(body))
        row = {
            "tenant_id": tenant_id,
            "hash": digest,
            "size": len(body),
            "preview": preview.decode(),
            "instead_of": None if known is None else known["location"],
        }
        if self._objects is not None:
            try:
                await self._put_object(self._objects, row, body)
                return digest
            except StorageUnavailable as error:
                _log.warning("payload_kept_in_database", extra={"bytes": len(body), "reason": error.message})
        await self._insert(query("put_payload"), {**row, "body": body})
        return digest

    async def _insert(self, statement: bytes, row: dict[str, Any]) -> int:
        """Store a row and return the count; stores nothing above the tenant's limit."""
        given = {"tenant_id": row["tenant_id"], "most": MAX_STORED_BYTES}
        async with self._database.connection() as connection, connection.transaction():
            if len(row.get("body", b"")) > _LARGE:
                self._database.replace_after_use(connection)
            count = (await connection.execute(statement, row)).rowcount
            if row["instead_of"] is None:
                await connection.execute(
                    query("lock_stored_bytes"), given
                )  # apart: what others stored counts after it
                _check_fits(await (await connection.execute(query("stored_bytes"), given)).fetchone(), 0)
        return count

    async def get(self, tenant_id: str, digest: bytes) -> bytes:
        async def read(row: Row) -> bytes:
            return b"".join([piece async for piece in self._checked(row, tenant_id, digest)])

        return await self._where_it_lies(tenant_id, digest, read)

    async def open(self, tenant_id: str, digest: bytes) -> tuple[int, AsyncIterator[bytes]]:
        """Return a payload's size and its bytes in slices; raises like `get`.

        Objects are read twice, because nothing is returned unchecked. Later damage, or in PostgreSQL, raises
        `StorageUnavailable` before the last slice.
        """

        async def look(row: Row) -> Row:
            if row["location"] is not None:
                async for _ in self._checked(row, tenant_id, digest):
                    pass
            return row

        row = await self._where_it_lies(tenant_id, digest, look)
        return row["size"], self._checked(row, tenant_id, digest)

    async def open_part(self, tenant_id: str, digest: bytes, start: int, stop: int) -> AsyncIterator[bytes]:
        """Return the bytes from `start` to before `stop` in slices, like `open`; objects are read whole."""
        row = await self._row(tenant_id, digest)
        if row["location"] is None:
            return self._slices(tenant_id, digest, start, stop)
        _, whole = await self.open(tenant_id, digest)
        return _cut_out(whole, start, stop)

    async def _slices(self, tenant_id: str, digest: bytes, start: int, stop: int) -> AsyncIterator[bytes]:
        for first in range(start, stop, SLICE_BYTES):
            yield await self._slice(tenant_id, digest, first, min(SLICE_BYTES, stop - first))

    async def collect(self, limit: int) -> int:
        """Remove unreferenced payloads and then their objects, at most `limit` each; return how many.

        Each call reads `limit` payloads, each of them once until it returns 0. Idempotent, and safe next to puts,
        finishing steps and other collectors. Raises `StorageUnavailable`: the objects are then found the next time.
        """
        seconds = COLLECT_AFTER.total_seconds()
        payloads = await self._collect_rows(seconds, limit)
        objects = 0
        if self._objects is not None:
            rows = await self._database.fetch_all("mark_objects", seconds=seconds, limit=limit)
            locations = [row["location"] for row in rows]
            await self._objects.delete(locations)
            objects = await self._database.execute("forget_objects", locations=locations)
        if not payloads and not objects:
            self._looked_at = _FROM_THE_FIRST
        return max(payloads, objects)

    async def count(self, most: int) -> int:
        """Count what `collect` would remove, up to `most`, without lone objects."""
        seconds = COLLECT_AFTER.total_seconds()
        row = await self._database.fetch_one("count_unused_payloads", seconds=seconds, most=most)
        return int(row["count"]) if row else 0

    async def count_objects(self, most: int) -> int:
        row = await self._database.fetch_one("count_objects", most=most)
        return int(row["count"]) if row else 0

    async def _collect_rows(self, seconds: float, limit: int) -> int:
        """Remove rows behind the last place; return how many, 0 at the end."""
        while self._looked_at is not None:
            row = await self._database.fetch_one("collect_payloads", seconds=seconds, limit=limit, **self._looked_at)
            self._looked_at = None if row is None else {name: row[name] for name in _FROM_THE_FIRST}
            if row is not None and row["removed"]:
                return int(row["removed"])
        return 0

    async def _row(self, tenant_id: str, digest: bytes) -> Row:
        row = await self._database.fetch_one("find_payload", tenant_id=tenant_id, hash=digest)
        if row is None:
            raise _gone(digest)
        return row

    async def _where_it_lies(self, tenant_id: str, digest: bytes, use: Callable[[Row], Awaitable[T]]) -> T:
        """Return `use` of a payload's row, again if the bytes were moved meanwhile."""
        row = await self._row(tenant_id, digest)
        try:
            return await use(row)
        except StorageUnavailable:
            again = await self._row(tenant_id, digest)
            if again["location"] == row["location"]:
                raise
            return await use(again)

    async def _is_whole(self, row: Row, digest: bytes) -> bool:
        """Return whether a row's bytes are reachable and right; PostgreSQL guarantees its own."""
        if row["location"] is None:
            return True
        try:
            async for _ in self._checked(row, "", digest):
                pass
        except (StorageUnavailable, LackedHere) as error:
            _log.warning("payload_stored_again", extra={"sha256": digest.hex(), "reason": error.message})
            return False
        return True

    async def _checked(self, row: Row, tenant_id: str, digest: bytes) -> AsyncIterator[bytes]:
        """Yield slices, the last only if length and SHA-256 are right."""
        size, hasher, length, held = row["size"], hashlib.sha256(), 0, b""
        async for piece in self._pieces(row, tenant_id, digest):
            if held:
                yield held
            held = piece
            length += len(piece)
            if length > size:
                break
            await _off_loop(hasher.update, piece)
        if length != size or hasher.digest() != digest:
            raise self._damaged(row, digest, length)
        yield held

    async def _pieces(self, row: Row, tenant_id: str, digest: bytes) -> AsyncIterator[bytes]:
        location = row["location"]
        if location is None:
            async for piece in self._slices(tenant_id, digest, 0, row["size"]):
                yield piece
            return
        if self._objects is None:
            lacks = "the output is in an object store, and this process has no PLANQ_PAYLOADS"
            if self._is_elsewhere is not None and await self._is_elsewhere():
                _log.warning("payloads_lacked_here", extra={"reason": lacks})
                raise LackedHere(f"{lacks}; another live worker has it")
            raise StorageUnavailable(f"{lacks}; start it with the PLANQ_PAYLOADS that the output was stored with")
        async for piece in self._objects.stream(location, SLICE_BYTES):
            yield piece

    def _damaged(self, row: Row, digest: bytes, length: int) -> StorageUnavailable:
        at, objects = row["location"], self._objects
        where = "PostgreSQL" if at is None or objects is None else f"{objects.place.rstrip('/')}/{at}"
        found = "more" if length > row["size"] else f"{length} others"
        return StorageUnavailable(
            f"the stored output {digest.hex()} is damaged: expected {row['size']} bytes with that SHA-256 at "
            f"{where}, found {found}; a new job that comes to the same output stores it again",
            place=where,
        )

    async def _slice(self, tenant_id: str, digest: bytes, start: int, length: int) -> bytes:
        row = await self._database.fetch_one(
            "read_payload", tenant_id=tenant_id, hash=digest, start=start + 1, length=length
        )
        if row is None:
            raise _gone(digest)
        piece: bytes = row["piece"]
        return piece

    async def _put_object(self, objects: ObjectStore, row: Row, body: bytes) -> None:
        digest = row["hash"].hex()
        location = f"{digest[:2]}/{digest}-{uuid4().hex[:12]}"
        await self._database.execute("note_object", location=location, tenant_id=row["tenant_id"])
        await objects.put(location, body)
        if not await self._insert(query("put_object_payload"), {**row, "location": location}):
            raise StorageUnavailable(f"the object {location} took too long to write and is not used")


async def _cut_out(whole: AsyncIterator[bytes], start: int, stop: int) -> AsyncIterator[bytes]:
    at = 0
    async for piece in whole:
        wanted = piece[max(start - at, 0) : max(stop - at, 0)]
        at += len(piece)
        if wanted:
            yield wanted


def _check_fits(found: Row | None, wanted: int) -> None:
    if found is not None and found["bytes"] + wanted > found["most"]:
        raise StorageFull(
            f"expected at most {found['most']} bytes of large outputs and artifacts of the tenant, found "
            f"{found['bytes'] + wanted} with this one",
            limit=found["most"],
            actual=found["bytes"] + wanted,
        )


def _gone(digest: bytes) -> StorageUnavailable:
    return StorageUnavailable(f"the stored output {digest.hex()} is gone")


async def _sha256(body: bytes) -> bytes:
    hasher = hashlib.sha256()
    await _off_loop(hasher.update, body)
    return hasher.digest()


async def _off_loop(work: Callable[[bytes], None], piece: bytes) -> None:
    if len(piece) < _HASH_OFF_LOOP:
        work(piece)
    else:
        await asyncio.to_thread(work, piece)
