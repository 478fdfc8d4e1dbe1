"""From an upload to a stored batch: the body goes to a temporary file, and from there line by line into the database.

Nothing is stored of an upload that breaks off. Memory holds one piece of it at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from itertools import islice
from tempfile import TemporaryFile
from typing import IO, Any
from uuid import UUID

from planq.api.http import bounds
from planq.api.http.exchange import HttpRefusal
from planq.shared.platform.errors import InvalidRequest, TooLarge, Unavailable
from planq.shared.subjects.batches.rules import FileLine, LineSplitter
from planq.shared.subjects.batches.store import BatchStore, NewBatch
from planq.shared.subjects.tenants.directory import TenantDirectory

_WRITTEN_AT_ONCE = 1024 * 1024
_READ_AT_ONCE = 256 * 1024

_RETRY_SECONDS = 5

_LINES_AT_ONCE = 1_000
_CHARS_AT_ONCE = 4 * 1024 * 1024
"""What is stored in one transaction."""


@dataclass(frozen=True, slots=True)
class BatchUploads:
    """Stores batches; `arrived` is set when one is complete, for the validation of its lines.

    `receiving` counts by tenant the files that this process receives now.
    """

    tenants: TenantDirectory
    batches: BatchStore
    arrived: asyncio.Event
    receiving: Counter[str] = field(default_factory=Counter)

    async def store(self, new: NewBatch, body: AsyncIterator[bytes], parameters: str) -> tuple[UUID, bool]:
        """Store a batch with its lines; return its id, and whether it is new.

        An idempotency key covers the file and the `parameters`. Raises `InvalidRequest` for an empty file, `TooLarge`
        for too many lines, `HttpRefusal` (429) beyond the limits of the tenant, `Conflict` as `BatchStore.begin`
        does, and as `body`.
        """
        waiting, most = await self._room(new.tenant_id)
        # Of no name in the file system, so it goes with the process, whatever becomes of it.
        with await asyncio.to_thread(TemporaryFile) as file:
            self.receiving[new.tenant_id] += 1
            try:
                digest = await _received(body, file)
            finally:
                self.receiving[new.tenant_id] -= 1
            if new.idempotency_key is not None:
                digest.update(parameters.encode())
                new = replace(new, request_hash=digest.hexdigest())
            earlier = await self.batches.begin(new)
            if earlier is not None:
                return earlier, False
            try:
                await self._stored(new, file, waiting, most)
            except BaseException:
                await self._given_up(new)
                raise
        self.arrived.set()
        return new.id, True

    async def _room(self, tenant_id: str) -> tuple[int, int]:
        """Return how many lines of a tenant wait, and how many may; raises `HttpRefusal` (429)."""
        config = (await self.tenants.of(tenant_id)).config
        stored, waiting = await self.batches.intake(tenant_id)
        if stored + self.receiving[tenant_id] >= config.max_uploads:
            message = (
                f"expected at most {config.max_uploads} uploads of this tenant at once; send this one again later"
            )
            raise _refused("too_many_uploads", message)
        if waiting >= config.max_waiting_lines:
            raise _too_many_lines(waiting, config.max_waiting_lines)
        return waiting, config.max_waiting_lines

    async def _stored(self, new: NewBatch, file: IO[bytes], waiting: int, most: int) -> None:
        splitter = LineSplitter(max_line_bytes=bounds.MAX_PLAN_BYTES, max_lines=bounds.MAX_BATCH_LINES)
        lines = _lines(file, splitter)
        invalid = 0
        while found := await asyncio.to_thread(_next_lines, lines):
            invalid += sum(line.error is not None for line in found)
            if splitter.found > most:
                raise TooLarge(f"expected at most {most} lines, found more", limit=most, actual=splitter.found)
            if waiting + splitter.found > most:
                raise _too_many_lines(waiting + splitter.found, most)
            await self.batches.add_lines(new.tenant_id, new.id, found)
        if not splitter.found:
            raise InvalidRequest("expected a line for each request, as JSON, found an empty file")
        await self.batches.end_upload(new.tenant_id, new.id, splitter.found, invalid)

    async def _given_up(self, new: NewBatch) -> None:
        with contextlib.suppress(Unavailable):  # it is removed once nobody holds it any more
            await self.batches.drop(new.tenant_id, new.id)


def _too_many_lines(waiting: int, most: int) -> HttpRefusal:
    message = f"expected at most {most} lines of this tenant that have not ended, found {waiting}; try later"
    return _refused("too_many_lines", message)


def _refused(code: str, message: str) -> HttpRefusal:
    return HttpRefusal(HTTPStatus.TOO_MANY_REQUESTS, code, message, headers={"Retry-After": str(_RETRY_SECONDS)})


async def _received(body: AsyncIterator[bytes], file: IO[bytes]) -> Any:
    digest = hashlib.sha256()
    held = bytearray()

    def write(piece: bytes) -> None:
        digest.update(piece)
        file.write(piece)

    async for part in body:
        held += part
        if len(held) >= _WRITTEN_AT_ONCE:
            await asyncio.to_thread(write, bytes(held))
            held.clear()
    await asyncio.to_thread(write, bytes(held))
    await asyncio.to_thread(file.seek, 0)
    return digest


def _lines(file: IO[bytes], splitter: LineSplitter) -> Iterator[FileLine]:
    while data := file.read(_READ_AT_ONCE):
        yield from splitter.feed(data)
    yield from splitter.end()


def _next_lines(lines: Iterator[FileLine]) -> Sequence[FileLine]:
    found, chars = [], 0
    for line in islice(lines, _LINES_AT_ONCE):
        found.append(line)
        chars += len(line.text or "")
        if chars >= _CHARS_AT_ONCE:
            break
    return found
