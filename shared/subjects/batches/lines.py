"""The lines of an upload: bytes as they come become lines with their numbers, whatever the client's editor wrote.

A byte order mark at the beginning is dropped, `\\r\\n` ends a line as `\\n` does, and blank lines are left out, but
they count. A line that cannot be stored (no UTF-8, a NUL, too long) is told by its number, and the others go on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from planq.shared.platform.errors import ErrorRecord, InvalidRequest, TooLarge

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class FileLine:
    """A line that is not blank: its `text`, or the `error` for which it is none. Numbers begin with 1."""

    number: int
    text: str | None
    error: ErrorRecord | None = None


class LineSplitter:
    """Splits an upload into lines; holds the present line alone, and that one as far as it may be long."""

    def __init__(self, *, max_line_bytes: int, max_lines: int) -> None:
        self._max_line_bytes = max_line_bytes
        self._max_lines = max_lines
        self._begun = bytearray()
        self._bytes = 0
        self._number = 0
        self.found = 0
        """Lines so far that are not blank."""

    def feed(self, data: bytes) -> Iterator[FileLine]:
        """Yield the lines that end in `data`; raises `TooLarge` at the first line too many."""
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
        # One byte more is kept than a line may have, for the `\r` that is none of it.
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
