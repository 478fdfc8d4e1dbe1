"""The regular expressions of schemas, read as ECMA-262 defines them by jsonschema-rs.

Rust's engine takes linear time. Patterns that it does not know (look-around, back-references) go to an engine that
stops after a million steps. Code that takes schemas from strangers refuses those (`needs_backtracking`), and patterns
that are large with their repetitions written out (`MAX_PATTERNS_BYTES`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import jsonschema_rs

from planq.shared.agentic.schema.reach import schemas_in

_READ_KEPT = 1_024

_SIZES = (4_096, 32_768, 262_144, 1_048_576, 4_194_304)
"""Bytes that a pattern may compile to; `^.{1,2000}$` has 3 MB, most have less than 10 kB. 4 MB take 0.15 s."""

MAX_PATTERNS_BYTES = 8 * 1024 * 1024
"""Maximum compiled size of all patterns in a stranger's schema."""

PATTERN_OPTIONS = jsonschema_rs.FancyRegexOptions(size_limit=_SIZES[-1])
"""Options of every validator that may meet a pattern."""


def is_found(pattern: str, text: str) -> bool:
    """Return whether `pattern` matches anywhere in `text`; raises ValueError if it is no regular expression."""
    return _matcher(pattern, PATTERN_OPTIONS).is_valid(encodable(text))


def needs_backtracking(pattern: str) -> bool:
    """Return whether the engine in linear time cannot read the pattern, or it compiles to more than 4 MB."""
    return _linear_size(pattern) is None


def size_of(pattern: str) -> int:
    """Return an upper bound of the bytes that a pattern compiles to, where its engine does not stop by itself."""
    return _linear_size(pattern) or _SIZES[1]


def is_readable(pattern: str) -> bool:
    """Return whether the pattern is a regular expression."""
    try:
        return _linear_size(pattern) is not None or bool(_matcher(pattern, PATTERN_OPTIONS))
    except ValueError:
        return False


def are_too_large(patterns: Iterable[str]) -> bool:
    """Return whether patterns compile to more than `MAX_PATTERNS_BYTES` together, in bounded time."""
    total = 0
    for pattern in dict.fromkeys(patterns):
        total += size_of(pattern)
        if total > MAX_PATTERNS_BYTES:
            return True
    return False


def patterns_of(schema: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield the patterns in a schema, those of texts and of the names of properties, each with the path to it.

    A subschema that is used in several places is yielded once.
    """
    for path, contents in schemas_in(schema):
        for keyword in ("pattern", "patternProperties"):
            for pattern in own_patterns(contents, keyword):
                yield (*path, keyword, *([pattern] if keyword == "patternProperties" else [])), pattern


def own_patterns(contents: Mapping[str, Any], *keywords: str) -> Iterator[str]:
    """Yield the patterns that a schema has itself, for texts (`pattern`) and for names (`patternProperties`)."""
    for keyword in keywords or ("pattern", "patternProperties"):
        found = contents.get(keyword)
        if isinstance(found, str):
            yield found
        elif isinstance(found, Mapping):
            yield from found


def encodable(text: str) -> str:
    """Return a text with `?` for each lone surrogate, which is no character."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


@lru_cache(maxsize=_READ_KEPT)
def _matcher(pattern: str, options: Any) -> jsonschema_rs.Validator:
    return jsonschema_rs.Draft202012Validator(
        {"pattern": pattern}, pattern_options=options, validate_formats=False, offline=True
    )


@lru_cache(maxsize=_READ_KEPT)
def _linear_size(pattern: str) -> int | None:
    for size in _SIZES:
        try:
            _matcher.__wrapped__(pattern, jsonschema_rs.RegexOptions(size_limit=size))
        except ValueError:  # also a lone surrogate in it
            continue
        return size
    return None
