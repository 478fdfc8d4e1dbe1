"""Batches in the store: upload, validation, lists.

An upload is stored in many short transactions: a long one would hold up readers of the event log. The storing process
owns it until it is whole; it is removed if nobody does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from planq.shared.kernel.states import Priority
from planq.shared.kernel.submission import Submission
from planq.shared.platform.database import Database, Row, json_text, stored_text
from planq.shared.platform.errors import Conflict, ErrorRecord
from planq.shared.subjects.batches.estimate import Estimate
from planq.shared.subjects.batches.rules import BatchStatus, Discount, FileLine, LineStatus
from planq.shared.subjects.jobs.store import submission_values

_HOLD_SECONDS = 15.0
"""Seconds until a dead process's batch is free; each transaction renews them."""

_LINES_AT_ONCE = 200
_BYTES_AT_ONCE = 2 * 1024 * 1024
"""Maximum size validated at once: a second or two."""

_PAGE = 500

_COPY = b"COPY batch_lines (batch_id, tenant_id, line, status, raw, error) FROM STDIN"


@dataclass(frozen=True, slots=True)
class NewBatch:
    """The checked parameters of a batch; with `is_paused` it waits for a resume."""

    id: UUID
    tenant_id: str
    name: str = ""
    metadata: Mapping[str, Any] | None = None
    defaults: Mapping[str, Any] | None = None
    priority: Priority = Priority.BULK
    is_strict: bool = False
    canary: int | None = None
    callback_url: str | None = None
    budget_usd: float | None = None
    budget_tokens: int | None = None
    is_paused: bool = False
    discount: Discount | None = None
    idempotency_key: str | None = None
    request_hash: str | None = None


@dataclass(frozen=True, slots=True)
class HeldBatch:
    """A batch that this process validates."""

    id: UUID
    tenant_id: str
    defaults: Mapping[str, Any]
    priority: Priority
    estimate: Estimate


@dataclass(frozen=True, slots=True)
class CheckedLine:
    """A checked line: a `submission` and its maximum usage, or an `error`."""

    line: int
    custom_id: str | None
    submission: Submission | None = None
    error: ErrorRecord | None = None
    max_cost_usd: float = 0.0
    max_tokens: int = 0

    def values(self) -> dict[str, Any]:
        """Return the item for `planq_store_checked`."""
        submission = self.submission
        return {
            "line": self.line,
            "custom_id": self.custom_id,
            "body": None if submission is None else json_text(submission_values(submission)),
            "parts": None if submission is None else stored_text(submission.parts),
            "error": None if self.error is None else json_text(self.error.to_json()),
            "reserved_usd": self.max_cost_usd,
            "reserved_tokens": self.max_tokens,
        }


class BatchStore:
    """The batches of all tenants; `holder` is this process."""

    def __init__(self, database: Database, holder: UUID) -> None:
        self._database = database
        self._holder = holder

    async def intake(self, tenant_id: str) -> tuple[int, int]:
        """Return a tenant's batches being stored, and its unfinished lines."""
        row = await self._database.fetch_one("intake_of_tenant", tenant_id=tenant_id)
        assert row is not None
        return row["uploads"], row["lines"]

    async def begin(self, new: NewBatch) -> UUID | None:
        """Store a batch without lines, which this process owns.

        Returns None, or the id of the batch of the same request and idempotency key. Raises `Conflict` for another
        request with the key, or one still being stored.
        """
        values = {
            "id": str(new.id),
            "name": new.name,
            "metadata": stored_text(new.metadata),
            "defaults": stored_text(new.defaults),
            "priority": str(new.priority),
            "is_strict": new.is_strict,
            "canary": new.canary,
            "idempotency_key": new.idempotency_key,
            "request_hash": new.request_hash,
            "callback_url": new.callback_url,
            "budget_usd": new.budget_usd,
            "budget_tokens": new.budget_tokens,
            "is_paused": new.is_paused,
            "held_by": str(self._holder),
            "discount": new.discount,
        }
        rows = await self._database.call_table("planq_begin_batch", new.tenant_id, json_text(values), _HOLD_SECONDS)
        if not rows:
            raise Conflict("the batch of this Idempotency-Key has just been removed; send the request again")
        (row,) = rows
        if row["is_new"]:
            return None
        if row["request_hash"] != new.request_hash:
            raise Conflict(
                "the Idempotency-Key was used before with another request; expected the same file and parameters, "
                "or a new key for a new batch"
            )
        if row["status"] == BatchStatus.UPLOADING:
            raise Conflict("a request with this Idempotency-Key is being stored; send it again in a moment")
        found: UUID = row["id"]
        return found

    async def add_lines(self, tenant_id: str, batch_id: UUID, lines: Sequence[FileLine]) -> None:
        """Store lines of an upload in one transaction; raises `Conflict` if this process lost it."""
        async with self._database.connection() as connection, connection.transaction():
            cursor = await connection.execute(
                "SELECT planq_hold_batch(%s, %s, %s, %s, %s) AS is_held",
                (tenant_id, batch_id, self._holder, str(BatchStatus.UPLOADING), _HOLD_SECONDS),
            )
            row = await cursor.fetchone()
            if row is None or not row["is_held"]:
                raise _taken_away()
            async with cursor.copy(_COPY) as copy:
                for line in lines:
                    status = LineStatus.RECEIVED if line.error is None else LineStatus.INVALID
                    error = None if line.error is None else json_text(line.error.to_json())
                    await copy.write_row((batch_id, tenant_id, line.number, str(status), line.text, error))

    async def end_upload(self, tenant_id: str, batch_id: UUID, total: int, invalid: int) -> None:
        """Start the validation; `invalid` lines were refused already. Raises like `add_lines`."""
        ended = await self._database.execute(
            "end_upload", tenant_id=tenant_id, id=batch_id, holder=self._holder, total=total, invalid=invalid
        )
        if not ended:
            raise _taken_away()

    async def drop(self, tenant_id: str, batch_id: UUID) -> None:
        """Remove an unfinished upload of this process."""
        await self._database.execute("drop_upload", tenant_id=tenant_id, id=batch_id, holder=self._holder)

    async def is_due(self) -> bool:
        """Return whether a free batch has to be validated or removed."""
        row = await self._database.fetch_one("due_batches")
        return row is not None and bool(row["is_due"])

    async def drop_abandoned(self) -> None:
        await self._database.execute("drop_abandoned_uploads")

    async def take(self) -> HeldBatch | None:
        """Own a batch to validate, maybe of a lost process; None without one."""
        row = await self._database.fetch_one("take_batch", holder=self._holder, seconds=_HOLD_SECONDS)
        if row is None:
            return None
        estimate = Estimate.of_json(row["estimate"])
        return HeldBatch(row["id"], row["tenant_id"], row["defaults"] or {}, Priority(row["priority"]), estimate)

    async def received(self, held: HeldBatch, after: int) -> Sequence[tuple[int, str]]:
        """Return the next lines to validate with their texts."""
        rows = await self._database.fetch_all(
            "received_lines",
            tenant_id=held.tenant_id,
            id=held.id,
            after=after,
            limit=_LINES_AT_ONCE,
            bytes=_BYTES_AT_ONCE,
        )
        return [(row["line"], row["raw"]) for row in rows]

    async def store_checked(self, held: HeldBatch, lines: Sequence[CheckedLine], estimate: Estimate) -> bool:
        """Store checked lines and the estimate so far; False if this process lost the batch."""
        values, estimated = json_text([line.values() for line in lines]), json_text(estimate.to_json())
        stored: bool = await self._database.call(
            "planq_store_checked", held.tenant_id, held.id, self._holder, values, estimated, _HOLD_SECONDS
        )
        return stored

    async def end_validation(self, held: HeldBatch) -> BatchStatus | None:
        """Start, or fail, a batch with all lines checked; None if this process lost it."""
        status = await self._database.call("planq_end_validation", held.tenant_id, held.id, self._holder)
        return None if status is None else BatchStatus(status)

    async def get(self, tenant_id: str, batch_id: UUID) -> Row:
        """Return a batch; raises `NotFound`."""
        return await self._database.fetch_existing("get_batch", f"batch {batch_id}", tenant_id=tenant_id, id=batch_id)

    async def page(
        self, tenant_id: str, *, status: BatchStatus | None, below: UUID | None, limit: int
    ) -> Sequence[Row]:
        """Return at most `limit` batches, newest first, older than `below`."""
        named = None if status is None else str(status)
        return await self._database.fetch_page(
            "list_batches", tenant_id=tenant_id, status=named, below=below, limit=limit
        )

    async def errors(
        self, tenant_id: str, batch_id: UUID, after: int = 0, most: int | None = None
    ) -> AsyncIterator[Row]:
        """Yield the lines with errors after the line `after`, at most `most`, in short reads."""
        left = most
        while left is None or left > 0:
            limit = _PAGE if left is None else min(left, _PAGE)
            rows = await self._database.fetch_all(
                "batch_errors", tenant_id=tenant_id, id=batch_id, after=after, limit=limit
            )
            for row in rows:
                yield row
            if len(rows) < limit:
                return
            after = rows[-1]["line"]
            left = None if left is None else left - len(rows)


def _taken_away() -> Conflict:
    return Conflict("the upload took too long and was stopped; send the request again")
