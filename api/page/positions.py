"""On which line of a JSON text the values stand that JSON pointers name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from planq.shared.platform.values.pointers import Path, from_pointer

_TOKEN = re.compile(r'[{}\[\],:]|"(?:[^"\\]|\\.)*"|[^\s{}\[\],:"]+')


def lines_at(text: str, pointers: Iterable[str]) -> dict[str, int]:
    """Return for each pointer the line, from 1, on which its value begins, or else what would hold it.

    `text` must be JSON, which a reader has found before.
    """
    wanted = {pointer: from_pointer(pointer) for pointer in pointers}
    starts = _starts(text, {path[:length] for path in wanted.values() for length in range(len(path) + 1)})
    return {
        pointer: next(starts[path[:length]] for length in range(len(path), -1, -1) if path[:length] in starts)
        for pointer, path in wanted.items()
    }


def _starts(text: str, places: set[Path]) -> dict[Path, int]:
    """Return the lines on which the values at these places begin."""
    found: dict[Path, int] = {}
    deepest = max(map(len, places), default=0)
    opened: list[str] = []
    path: list[str] = []
    is_key, line, seen = False, 1, 0
    for token in _TOKEN.finditer(text):
        mark = token[0]
        line += text.count("\n", seen, token.start())
        seen = token.start()
        if mark in ("}", "]"):
            opened.pop()
            path.pop()
        elif mark == ",":
            is_key = opened[-1] == "{"
            if not is_key:
                path[-1] = str(int(path[-1]) + 1)
        elif mark == ":":
            is_key = False
        elif is_key:
            path[-1] = json.loads(mark)
        else:
            if len(path) <= deepest and (place := tuple(path)) in places:
                found.setdefault(place, line)
            if mark in ("{", "["):
                opened.append(mark)
                path.append("0")
                is_key = mark == "{"
                continue
        if mark in ("}", "]"):
            is_key = False
    return found
