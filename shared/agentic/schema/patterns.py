"""The regular expressions of schemas, read as ECMA-262 says by an engine in linear time (Rust's).

Python's own tries one way after the other: ten characters of a pattern, written to do harm or by accident, can occupy
a process for hours, in which it serves nobody else. What the fast engine does not know (look-around, back-references)
is left to Python's; code that takes schemas from strangers refuses it (`needs_backtracking`), and patterns that are
large once their repetitions are written out (`MAX_PATTERNS_BYTES`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jsonschema_rs

from planq.shared.agentic.schema.reach import schemas_in

_READ_KEPT = 1_024

_SIZES = (4_096, 32_768, 262_144, 1_048_576, 4_194_304)
"""Bytes that a pattern may compile to; `^.{1,2000}$` has 3 MB, most have less than 10 kB. 4 MB take 0.15 s."""

MAX_PATTERNS_BYTES = 8 * 1024 * 1024
"""What all patterns of a stranger's schema may compile to."""

_BYTES_PER_STEP = 200_000
"""Measured: the worst patterns take 10 µs for a character and a megabyte of program, and a step is 2 µs."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A regular expression as it is matched; `size` in bytes is an upper bound, 0 for Python's engine."""

    is_found: Callable[[str], bool]
    size: int

    def steps(self, text: str) -> int:
        """Return how many steps of a schema's check it may take to search `text`."""
        return 1 + len(text) * self.size // _BYTES_PER_STEP


def find_match(pattern: str) -> Pattern:
    """Return the pattern as it is matched; raises `re.error` where it is no regular expression."""
    linear = _linear(pattern)
    return linear if linear is not None else _backtracking(pattern)


def is_found(pattern: str, text: str) -> bool:
    """Return whether `pattern` matches anywhere in `text`; raises `re.error` where it is no regular expression."""
    return find_match(pattern).is_found(text)


def needs_backtracking(pattern: str) -> bool:
    """Return whether only Python's engine can read the pattern, or it compiles to more than the fast one takes."""
    return _linear(pattern) is None


def is_readable(pattern: str) -> bool:
    """Return whether the pattern is a regular expression by any engine here."""
    try:
        find_match(pattern)
    except (re.error, RecursionError, OverflowError):
        return False
    return True


def are_too_large(patterns: Iterable[str]) -> bool:
    """Return whether patterns compile to more than `MAX_PATTERNS_BYTES` together, in bounded time."""
    total = 0
    for pattern in dict.fromkeys(patterns):
        read = _linear(pattern)
        total += _SIZES[-1] if read is None else read.size
        if total > MAX_PATTERNS_BYTES:
            return True
    return False


def patterns_of(schema: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield the patterns in a schema, those of texts and of the names of properties, each with the path to it.

    A subschema that is used in several places is yielded once.
    """
    for path, contents in schemas_in(schema):
        if isinstance(found := contents.get("pattern"), str):
            yield (*path, "pattern"), found
        names = contents.get("patternProperties")
        for name in names if isinstance(names, Mapping) else ():
            yield (*path, "patternProperties", name), name


@lru_cache(maxsize=_READ_KEPT)
def _backtracking(pattern: str) -> Pattern:
    read = re.compile(pattern)
    return Pattern(lambda text: read.search(text) is not None, 0)


@lru_cache(maxsize=_READ_KEPT)
def _linear(pattern: str) -> Pattern | None:
    for size in _SIZES:
        options = jsonschema_rs.RegexOptions(size_limit=size)
        try:
            validator = jsonschema_rs.Draft202012Validator(
                {"pattern": pattern}, pattern_options=options, validate_formats=False, offline=True
            )
        except (ValueError, jsonschema_rs.ReferencingError):  # also what its text cannot say
            continue
        return Pattern(_matching(validator), size)
    return None


def _matching(validator: jsonschema_rs.Validator) -> Callable[[str], bool]:
    return lambda text: validator.is_valid(_encodable(text))


def _encodable(text: str) -> str:
    """Return a text without lone surrogates, which are no characters."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
