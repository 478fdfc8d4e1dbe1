"""Decode JSON under three contracts.

decode          foreign text (RFC 8259): no NaN, no number beyond a float
decode_bounded  a request's body: faster, bounded parts, integers of 64 bits
decode_stored   planq's own text: integers of any size, lone surrogates
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import orjson

from planq.shared.platform.values.pointers import Tokens, to_pointer


class RepeatedKey(ValueError):
    """An object has the same key twice; `pointer` (RFC 6901) is the first."""

    def __init__(self, pointer: str) -> None:
        super().__init__(f"the key {pointer} stands there more than once")
        self.pointer = pointer


class LongInteger(ValueError):
    """An integer needs more than 64 bits; `text` is its digits, cut."""

    def __init__(self, text: str) -> None:
        super().__init__(f"the integer {text} needs more than 64 bits")
        self.text = text


class TooManyParts(ValueError):
    """A JSON text has too many values and keys."""


def decode(text: str, *, is_unique: bool = False) -> Any:
    """Decode a foreign JSON text; with `is_unique` raises `RepeatedKey`.

    Raises `ValueError`, also for NaN, infinities, numbers beyond a float and integers of more than 4300 digits, and
    `RecursionError` for deep nesting.
    """
    if is_unique:
        _check_unique(text)
    return json.loads(text, parse_constant=_refuse, parse_float=finite)


def decode_bounded(body: bytes, most_parts: int, *, is_unique: bool = True) -> Any:
    """Decode a JSON text of at most `most_parts` values and keys, counted before building.

    Raises `TooManyParts`, `json.JSONDecodeError` with the place, `LongInteger` (a decoder would make it a float),
    `RepeatedKey` with `is_unique`, and `RecursionError`.
    """
    if len(body) > most_parts and count_nodes(body, most_parts) > most_parts:
        raise TooManyParts(f"more than {most_parts} values and keys")
    value = orjson.loads(body)
    if has_long_integer(body):
        json.loads(body, parse_int=_checked_integer)
    # Each key has a colon, so a flat object with as many keys as colons has none twice.
    if is_unique and not (isinstance(value, dict) and body.count(b":") == len(value)):
        # Measured 2026-11-21: 2 µs for 100 bytes, 9 for 700; of 1.4 MB it takes as long as decoding.
        with suppress(RecursionError):  # the next reader refuses its depth
            _check_unique(body)
    return value


def decode_stored(text: str | bytes) -> Any:
    """Decode stored JSON, integers of any size and lone surrogates unchanged."""
    body = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if has_long_integer(body):  # which orjson would silently make another number
        return json.loads(text)
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:  # lone surrogates, or nested very deeply
        return json.loads(text)


def _check_unique(text: str | bytes) -> None:
    """Raise `RepeatedKey` for a repeated key, at the cost of decoding again; fails like `decode`."""
    repeating: list[_RepeatedKeyObject] = []
    value = json.loads(text, object_pairs_hook=_noting(repeating))
    if repeating:
        raise RepeatedKey(_first(value))


class _RepeatedKeyObject(dict[str, Any]):
    """An object with the key `twice` more than once."""

    twice: str = ""


def _noting(repeating: list[_RepeatedKeyObject]) -> Callable[[list[tuple[str, Any]]], dict[str, Any]]:
    def made_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) == len(pairs):
            return made
        noted = _RepeatedKeyObject(made)
        noted.twice = _twice([name for name, _ in pairs])
        repeating.append(noted)
        return noted

    return made_of


def _twice(names: Sequence[str]) -> str:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    raise ValueError("no name is there twice")


def _first(value: Any) -> str:
    """Return the pointer to the first repeated key; precondition: there is one."""
    stack: list[tuple[Tokens, Any]] = [(None, value)]
    while stack:
        tokens, item = stack.pop()
        if isinstance(item, _RepeatedKeyObject):
            return to_pointer((tokens, item.twice))
        inner = item.items() if isinstance(item, dict) else enumerate(item) if isinstance(item, list) else ()
        stack.extend(reversed([((tokens, key), found) for key, found in inner]))
    raise ValueError("no key is there twice")


def finite(text: str) -> float:
    """Return a number; raises `ValueError` also for NaN and infinities."""
    value = float(text)
    return value if math.isfinite(value) else _refuse(text)


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON")


_MAX_DIGITS = 20  # of 2^64 - 1


def _checked_integer(text: str) -> int:
    value = int(text) if len(text) <= _MAX_DIGITS else 2**64
    if not -(2**63) <= value < 2**64:
        raise LongInteger(text if len(text) <= 40 else f"{text[:40]}…")
    return value


_DIGITS = bytes(ord("0") if chr(byte) in "0123456789" else ord(" ") for byte in range(256))


def has_long_integer(text: bytes) -> bool:
    """True if 19 digits follow each other; a regex would take fourteen times as long."""
    return b"0" * 19 in text.translate(_DIGITS)


def count_nodes(text: bytes, limit: int) -> int:
    """Count the values and keys of a JSON text without building it (empty containers twice), up to `limit`."""
    found = 1 + _signs(text)
    if found <= limit:
        return found
    found, at, is_within = 1, 0, False
    while at < len(text) and found <= limit:
        end = min(at + _PIECE, len(text))
        while end < len(text) and text[end - 1] == _BACKSLASH:
            end += 1  # what it escapes belongs to the same piece
        # Escaped signs first, a backslash before what follows it: then each quotation mark begins or ends a string.
        parts = text[at:end].replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        found += _signs(b"".join(parts[is_within::2]))
        is_within ^= len(parts) % 2 == 0
        at = end
    return found


_PIECE = 64 * 1024
_BACKSLASH = ord("\\")


def _signs(text: bytes) -> int:
    return sum(map(text.count, (b",", b":", b"[", b"{")))
