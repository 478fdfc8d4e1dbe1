"""JSON read under three contracts, by whose text it is.

decode          a text from outside, as RFC 8259 defines JSON: no NaN, no number beyond a float
decode_bounded  a request's body: the same by a faster decoder, at most so many parts, integers of 64 bits
decode_stored   what planq has written: integers of any size, lone surrogates
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
    """An object of a JSON text has a key more than once; `pointer` (RFC 6901) leads to the first such key."""

    def __init__(self, pointer: str) -> None:
        super().__init__(f"the key {pointer} stands there more than once")
        self.pointer = pointer


class LongInteger(ValueError):
    """An integer of a JSON text needs more than 64 bits; `text` is its digits, cut."""

    def __init__(self, text: str) -> None:
        super().__init__(f"the integer {text} needs more than 64 bits")
        self.text = text


class TooManyParts(ValueError):
    """A JSON text has more values and keys than it may."""


def decode(text: str, *, is_unique: bool = False) -> Any:
    """Return the value of a JSON text from outside.

    Raises ValueError when it is none: NaN, infinities and numbers beyond a float (1e999) included, integers of more
    than 4300 digits too; RecursionError when it is nested too deeply to be read. With `is_unique` an object may not
    have the same key twice: `RepeatedKey`.
    """
    if is_unique:
        _check_unique(text)
    return json.loads(text, parse_constant=_refuse, parse_float=finite)


def decode_bounded(body: bytes, most_parts: int, *, is_unique: bool = True) -> Any:
    """Return the value of a JSON text of at most so many values and keys, counted before anything is built of them.

    Raises `TooManyParts`, `json.JSONDecodeError` with the place, `LongInteger`, which a decoder would silently turn
    into a float, and `RepeatedKey` unless keys may be repeated; RecursionError for one too deep to be looked through.
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
    """Return the value of stored JSON, integers of any size and lone surrogates as they are."""
    body = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if has_long_integer(body):  # which orjson would silently make another number
        return json.loads(text)
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:  # lone surrogates, or nested very deeply
        return json.loads(text)


def _check_unique(text: str | bytes) -> None:
    """Raise `RepeatedKey` where an object of a JSON text has the same key twice: which one counts nobody can know.

    Costs about as much as decoding the text once more. Raises ValueError or RecursionError as `decode` does.
    """
    repeating: list[_RepeatedKeyObject] = []
    value = json.loads(text, object_pairs_hook=_noting(repeating))
    if repeating:
        raise RepeatedKey(_first(value))


class _RepeatedKeyObject(dict[str, Any]):
    """An object that has the key `twice` more than once in its text."""

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
    raise ValueError("no name stands there twice")


def _first(value: Any) -> str:
    """Return the pointer to the first repeated key, in the order of the text; precondition: there is one."""
    stack: list[tuple[Tokens, Any]] = [(None, value)]
    while stack:
        tokens, item = stack.pop()
        if isinstance(item, _RepeatedKeyObject):
            return to_pointer((tokens, item.twice))
        inner = item.items() if isinstance(item, dict) else enumerate(item) if isinstance(item, list) else ()
        stack.extend(reversed([((tokens, key), found) for key, found in inner]))
    raise ValueError("no key stands there twice")


def finite(text: str) -> float:
    """Return the number of a text; raises ValueError for none, and for what JSON has no word for: NaN, infinities."""
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
    """True where 19 digits stand together in JSON, so that an integer in it may need more than 64 bits.

    Made for texts of megabytes: a search by regular expression takes fourteen times as long.
    """
    return b"0" * 19 in text.translate(_DIGITS)


def count_nodes(text: bytes, limit: int) -> int:
    """Return how many values and keys a JSON text has, an empty list or object twice; it stops above `limit`.

    Nothing is built of them: 2 ms for a text of 1 MB, 15 where strings have to be left out (measured 2026-11-25).
    What stands behind the first character that is no JSON may be miscounted.
    """
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
