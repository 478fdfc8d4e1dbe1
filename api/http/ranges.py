"""Parts of stored bytes: what a request for a range gets (RFC 9110, section 14)."""

from __future__ import annotations

import re

from planq.api.http.exchange import HttpRefusal

_RANGE = re.compile(r"bytes=[ \t]*(\d{0,20})-(\d{0,20})[ \t]*", re.ASCII | re.IGNORECASE)


def part_of(size: int, asked: str | None, if_range: str | None, tag: str) -> tuple[int, int] | None:
    """Return the first byte of the part that is asked for and the one behind its last; None for the whole.

    A header that cannot be read, several ranges at once, and `If-Range` with another entity tag ask for the whole.
    Raises `HttpRefusal` (416) for a range that begins behind the end.
    """
    found = None if asked is None else _RANGE.fullmatch(asked.strip())
    if found is None or (if_range is not None and if_range.strip() != tag):
        return None
    first, last = found.groups()
    if not first and not last:
        return None
    if first and last and int(last) < int(first):
        return None
    start = int(first) if first else max(size - int(last), 0)
    if start >= size:
        raise HttpRefusal(
            416,
            "range_not_satisfiable",
            f"expected a range within {size} bytes, found {asked!r:.100}; ask for an earlier part, or the whole",
            headers={"Content-Range": f"bytes */{size}"},
        )
    return start, min(int(last) + 1, size) if first and last else size
