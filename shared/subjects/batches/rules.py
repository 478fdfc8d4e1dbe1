"""Batches: their states, the lines of an upload, and providers' batches.

    batch  uploading → validating → in_progress → completed | failed | cancelled
                            └────────────┴──────▶ cancelling → cancelled
    line   received → invalid | valid → admitted → completed | failed | cancelled

SQL functions decide; a pause is separate from the status. A line is no job until it is admitted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from planq.shared.kernel.deferral import CallStatus
from planq.shared.platform.errors import ErrorRecord, InvalidRequest, TooLarge


class BatchStatus(StrEnum):
    """State of a batch."""

    UPLOADING = "uploading"  # its lines are being stored; without a fresh lease it is removed
    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    CANCELLING = "cancelling"  # nothing of it begins any more, and what runs is being cancelled
    COMPLETED = "completed"  # every valid line has ended, failed ones among them
    FAILED = "failed"  # none of its lines was run: they were not valid
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """True if the batch has ended; only a retry of lines continues it."""
        return self in TERMINAL_BATCH


class LineStatus(StrEnum):
    """State of a line."""

    RECEIVED = "received"
    INVALID = "invalid"
    VALID = "valid"  # it waits to be admitted
    ADMITTED = "admitted"  # it is a job
    COMPLETED = "completed"  # with an error where its job is partial
    FAILED = "failed"
    CANCELLED = "cancelled"


class Discount(StrEnum):
    """How model calls of a batch become cheaper."""

    PROVIDER = "provider"  # lines of one model call go through the provider's batch API


class ProviderBatchStatus(StrEnum):
    """State of a provider's batch."""

    SUBMITTING = "submitting"  # the provider may or may not know it yet
    SUBMITTED = "submitted"
    ENDED = "ended"  # each of its calls has a result, or will get none


class PauseReason(StrEnum):
    """Why a batch admits no more lines."""

    ASKED = "asked"  # by a person, also with `start=false`
    CANARY = "canary"  # its first lines have ended, and somebody looks at them
    BUDGET = "budget"  # what is left of its budget does not suffice for the next line


TERMINAL_BATCH = frozenset({BatchStatus.COMPLETED, BatchStatus.FAILED, BatchStatus.CANCELLED})


_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class FileLine:
    """A line that is not blank: its `text`, or an `error`. Numbers begin with 1."""

    number: int
    text: str | None
    error: ErrorRecord | None = None


class LineSplitter:
    """Splits an upload into lines; holds only the present one, up to its maximum.

    A byte order mark is dropped, and blank lines only count. A line that cannot be stored (no UTF-8, a NUL, too long)
    has an error.
    """

    def __init__(self, *, max_line_bytes: int, max_lines: int) -> None:
        self._max_line_bytes = max_line_bytes
        self._max_lines = max_lines
        self._begun = bytearray()
        self._bytes = 0
        self._number = 0
        self.found = 0
        """Lines so far that are not blank."""

    def feed(self, data: bytes) -> Iterator[FileLine]:
        """Yield the lines that end in `data`; raises `TooLarge` for too many."""
        begin = 0
        while (end := data.find(b"\n", begin)) >= 0:
            self._add(data[begin:end])
            yield from self._take()
            begin = end + 1
        self._add(data[begin:])

    def end(self) -> Iterator[FileLine]:
        """Yield the last line, which need not end; raises `TooLarge` as `feed` does."""
        if self._bytes:
            yield from self._take()

    def _add(self, part: bytes) -> None:
        self._bytes += len(part)
        # One byte more than a line may have, for a `\r` that does not belong to it.
        self._begun += part[: max(0, self._max_line_bytes + 1 - len(self._begun))]

    def _take(self) -> Iterator[FileLine]:
        self._number += 1
        raw, size = bytes(self._begun), self._bytes
        self._begun, self._bytes = bytearray(), 0
        if size == len(raw) and raw.endswith(b"\r"):
            raw, size = raw[:-1], size - 1
        if self._number == 1:
            raw = raw.removeprefix(_BYTE_ORDER_MARK)
        if size <= self._max_line_bytes and not raw.strip():
            return
        self.found += 1
        if self.found > self._max_lines:
            raise TooLarge(
                f"line {self._number} is one too many: expected at most {self._max_lines}; send several batches",
                limit=self._max_lines,
                line=self._number,
            )
        yield self._checked(raw, size)

    def _checked(self, raw: bytes, size: int) -> FileLine:
        if size > self._max_line_bytes:
            message = f"expected a line of at most {self._max_line_bytes} bytes, found a longer one"
            details = {"limit": self._max_line_bytes}
            return FileLine(self._number, None, ErrorRecord(TooLarge.code, message, details=details))
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            return self._refused(f"expected UTF-8, found another byte at column {error.start + 1}")
        if "\x00" in text:
            return self._refused(f"expected JSON, found NUL (U+0000) at column {text.index(chr(0)) + 1}")
        return FileLine(self._number, text)

    def _refused(self, message: str) -> FileLine:
        return FileLine(self._number, None, ErrorRecord(InvalidRequest.code, message))


@dataclass(frozen=True, slots=True)
class ProviderBatch:
    """A provider's batch that this worker handles.

    With `tries` above 1 an earlier one may have sent it. `has_jobs`: unfinished jobs wait for it.
    """

    id: UUID
    tenant_id: str
    model: str
    scope: str
    status: ProviderBatchStatus
    provider_id: str | None
    handle: str | None
    lines: int
    tries: int
    created_at: datetime
    is_cancelled: bool
    has_jobs: bool


@dataclass(frozen=True, slots=True)
class CallResult:
    """The result of a job's call, as in `Deferral`."""

    job: UUID
    status: CallStatus
    result: str | None
