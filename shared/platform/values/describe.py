"""Short, quoted descriptions of untrusted values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from planq.shared.platform.errors import capped

MAX_DEPTH = 100
"""Maximum nesting of values and schemas: checking a schema recurses."""

_EXCERPT_CHARS = 80


def is_deeper_than(value: Any, limit: int) -> bool:
    """True if containers are nested more than `limit` deep (a scalar: 0); does not recurse."""
    level = [value] if isinstance(value, (dict, list, tuple)) else []
    for _ in range(limit):
        if not level:
            return False
        level = [
            child
            for item in level
            for child in (item.values() if isinstance(item, dict) else item)
            if isinstance(child, (dict, list, tuple))
        ]
    return bool(level)


def excerpt(value: Any) -> str:
    """Return a short, quoted description of an untrusted value."""
    if isinstance(value, str):
        shown = json.dumps(value[:_EXCERPT_CHARS], ensure_ascii=False)
        return shown if len(value) <= _EXCERPT_CHARS else f"{shown}… ({len(value)} characters)"
    if isinstance(value, Mapping):
        names = ", ".join(capped(repr(name), 30) for name in islice(value, 5))
        return f"an object ({names}{', …' if len(value) > 5 else ''})" if value else "an empty object"
    if isinstance(value, (list, tuple)):
        return f"an array of {len(value)}"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 256:
        return "a number of more than 256 bits"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return capped(repr(value), _EXCERPT_CHARS)


def sentence_list(sentences: Sequence[str], most: int) -> str:
    """Join the first `most` sentences, and the count of the others."""
    more = f"; and {len(sentences) - most} more" if len(sentences) > most else ""
    return "; ".join(sentences[:most]) + more
