"""Encode outputs as JSON bytes, once.

Encoders hold the interpreter's lock, so orjson comes first: it takes a tenth of Python's 10 ms for 1 MB. Python's
encodes what orjson refuses: integers beyond 64 bits, and keys that are no text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import Any, Final

import orjson

from planq.shared.platform.errors import InvalidOutput
from planq.shared.platform.values.describe import MAX_DEPTH


@dataclass(frozen=True, slots=True)
class JsonText:
    """An encoded value: `body` is its JSON in UTF-8."""

    body: bytes


_COMPACT: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_SHOWN: Final = json.JSONEncoder(ensure_ascii=False, indent=2, default=str)
_WORDS: Final = {True: "true", False: "false", None: "null"}


def encode(value: Any) -> bytes:
    """Return compact JSON in UTF-8.

    Raises `ValueError`, `TypeError` or `RecursionError` for NaN, lone surrogates, other types, circles, nesting of
    about a thousand levels, and keys of one object with the same text (1 and "1").
    """
    try:
        text = orjson.dumps(value, option=_AS_THEY_ARE)
    except TypeError:
        text = _COMPACT.encode(value).encode()
        _refuse_equal_keys(value)
        return text
    # It writes null for what is no number: then what is read back is not what was written.
    return _COMPACT.encode(value).encode() if b"null" in text and orjson.loads(text) != value else text


_AS_THEY_ARE: Final = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


def _refuse_equal_keys(value: Any) -> None:
    """Raise `ValueError` for keys that are equal in JSON; precondition: no circle."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, Mapping):
            # Two keys can only become equal if one is not a string.
            if any(type(key) is not str for key in item):
                _refuse_equal(item)
            stack.extend(one for one in item.values() if isinstance(one, _CONTAINERS))
        elif isinstance(item, (list, tuple)):
            stack.extend(one for one in item if isinstance(one, _CONTAINERS))


_CONTAINERS = (Mapping, list, tuple)


def _refuse_equal(item: Mapping[Any, Any]) -> None:
    texts: dict[str, Any] = {}
    for key in item:
        text = key if isinstance(key, str) else _key_text(key)
        if text in texts:
            raise ValueError(f"the keys {texts[text]!r} and {key!r} of one object are the same text in JSON")
        texts[text] = key


def _key_text(key: Any) -> str:
    if key is None or isinstance(key, bool):
        return _WORDS[key]
    return float.__repr__(key) if isinstance(key, float) else str(key)


def output_text(tool_name: str, value: Any, most: int | None = None) -> bytes:
    """Encode a tool's output; raises `InvalidOutput` for no JSON, deep nesting, or over `most` bytes."""
    try:
        text = encode(value)
    except UnicodeEncodeError as error:
        raise InvalidOutput(f"{tool_name} returned text that is no valid Unicode ({error.reason})") from error
    except (ValueError, TypeError, RecursionError) as error:
        if number := _no_number(value):
            raise not_a_number(tool_name, float(number)) from error
        raise InvalidOutput(f"tool {tool_name!r} returned what is no JSON: {error}") from error
    if is_nested_deeper(text, MAX_DEPTH):
        raise InvalidOutput(f"{tool_name} returned a value nested more than {MAX_DEPTH} levels deep")
    if most is not None and len(text) > most:
        raise InvalidOutput(
            f"tool {tool_name!r} returned {len(text)} bytes; at most {most} are kept: return less, or a reference "
            "to where the data lies"
        )
    return text


def not_a_number(tool_name: str, number: float) -> InvalidOutput:
    return InvalidOutput(f"{tool_name} returned {number}, which JSON cannot express; return null or text instead")


def _no_number(value: Any) -> str | None:
    """Return the first NaN or infinity of a value, or None."""
    found: list[str] = []
    try:
        json.loads(json.dumps(value), parse_constant=found.append)
    except (ValueError, TypeError, RecursionError):
        return None
    return found[0] if found else None


def indented(value: Any) -> str:
    """Return indented JSON, other values as text; raises `ValueError` or `RecursionError`."""
    # Most outputs are flat objects, and Python has no C code for indented JSON: this is ten times as fast.
    if type(value) is dict and value:
        lines = [_line(key, item) for key, item in value.items()]
        if None not in lines:
            return "{\n" + ",\n".join(map(str, lines)) + "\n}"
    return _SHOWN.encode(value)


def _line(key: Any, value: Any) -> str | None:
    """Return a line of a flat object, None for other values."""
    if type(key) is not str:
        return None
    kind = type(value)
    if kind is str:
        shown = encode_basestring(value)
    elif kind is int:
        shown = int.__repr__(value)
    elif kind is bool or value is None:
        shown = _WORDS[value]
    else:
        return None
    return f"  {encode_basestring(key)}: {shown}"


def is_nested_deeper(text: bytes, limit: int) -> bool:
    """Return whether a JSON text nests containers more than `limit` deep, without building it."""
    if text.count(b"[") + text.count(b"{") <= limit:
        return False
    if _BACKSLASH in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Neighbours become one string here, which is left out as both would be.
    signs = _QUOTED.sub(b"", text.translate(_AS_BRACKETS, _NO_SIGNS).replace(b'""', b""))
    for _ in range(limit):
        if not signs:
            return False
        signs = signs.replace(b"[]", b"")  # the innermost ones, of all branches at once
    return bool(signs)


_AS_BRACKETS: Final = bytes.maketrans(b"{}", b"[]")
_NO_SIGNS: Final = bytes(set(range(256)) - set(b'[]{}"'))
_QUOTED: Final = re.compile(rb'"[^"]*"')


def most_parts(text: bytes) -> int:
    """Return an upper bound for the values in a JSON text."""
    return 1 + sum(map(text.count, (b",", b"[", b"{")))


_BACKSLASH = ord("\\")


def is_larger(value: Any, size: int) -> bool:
    """True if the JSON of `value` has more than `size` characters; see `measure`."""
    return measure(value, size) > size


def measure(value: Any, limit: int) -> int:
    """Return a lower bound for the JSON's length in characters, or just more than `limit`.

    Never more than the bytes of `encode`; reads no more of the value than needed to pass the limit.
    """
    left = limit
    stack = [value]
    while stack and left >= 0:
        item = stack.pop()
        if isinstance(item, str):
            left -= len(item) + 2
        elif isinstance(item, (dict, list, tuple, Mapping)):
            left -= 1 + max(len(item), 1)  # brackets and commas
            if left < 0:
                break
            if isinstance(item, Mapping):
                left -= sum(len(key) + 3 for key in item if isinstance(key, str))
                stack.extend(item.values())
            else:
                stack.extend(item)
        else:
            left -= _length(item)
    return limit - left


def _length(value: Any) -> int:
    if isinstance(value, float):
        text = repr(value)
        return len(text) - ("e-0" in text)  # orjson writes 1e-7 where Python writes 1e-07
    if isinstance(value, int) and not isinstance(value, bool):
        return max(value.bit_length() * 3 // 10, 1)  # 10^3 < 2^10
    return 4
