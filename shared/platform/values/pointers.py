"""Places in a JSON value, and their names as JSON pointers (RFC 6901)."""

from __future__ import annotations

from collections.abc import Iterable

_MAX_INDEX_DIGITS = 18

Tokens = tuple["Tokens", str | int] | None
"""A place as a linked list from the leaf upwards: shared by siblings, rendered when needed."""


def to_pointer(tokens: Tokens) -> str:
    """Render a place as an RFC 6901 JSON pointer; the whole value is `""`."""
    parts: list[str] = []
    while tokens is not None:
        tokens, last = tokens
        parts.append(str(last))
    return path_pointer(reversed(parts))


def path_pointer(path: Iterable[str | int]) -> str:
    """Render a path from the top downwards as an RFC 6901 JSON pointer."""
    return "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in path)


def from_pointer(pointer: str) -> tuple[str, ...]:
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:])


def array_index(segment: str) -> int | None:
    """Return the index that a path segment means on an array, or None when it means none."""
    if len(segment) > _MAX_INDEX_DIGITS or not (segment.isascii() and segment.isdigit()):
        return None
    return int(segment)


Path = tuple[str, ...]
