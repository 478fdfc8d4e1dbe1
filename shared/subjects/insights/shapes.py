"""Shapes of arguments: the kinds of a call's values, never the values.

An insight is shown to every job of a tenant, so it must not hold what one user said to another's job.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from planq.shared.platform.redact import HIDDEN

Shape = Mapping[str, str]
"""The kind of each argument, by its name."""

MAX_ARGUMENTS = 12
"""Further arguments of a call are ignored, to keep lessons readable."""

OTHER = HIDDEN
"""Replaces a name that may be a value or an instruction: one that no programmer would choose."""

_NAME = re.compile(r"[A-Za-z_](?:[A-Za-z_]|[0-9](?![0-9]{3})){0,31}")
_TOOL = re.compile(r"[A-Za-z_](?:[A-Za-z_.:/-]|[0-9](?![0-9]{3})){0,99}")
_ERROR = re.compile(r"[a-z_]{1,40}")
_DIGITS = re.compile(r"[+-]?[0-9]{1,30}")
_DECIMAL = re.compile(r"[+-]?[0-9]{0,30}[.,][0-9]{1,30}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9:.+Z-]{5,20}")
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{1,20}://[^\s]{1,2000}")
_MAIL = re.compile(r"[^\s@]{1,100}@[^\s@]{1,200}")
_CODE = re.compile(r"[A-Z]{2,5}")
_UUID = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}")

_TEXTS = (
    ("a text of digits", _DIGITS),
    ("a decimal text", _DECIMAL),
    ("a date", _DATE),
    ("a date with a time", _TIME),
    ("a UUID", _UUID),
    ("an address", _ADDRESS),
    ("a mail address", _MAIL),
    ("a code of capitals", _CODE),
)


def argument_name(name: str) -> str:
    return name if _NAME.fullmatch(name) else OTHER


def tool_name(name: str) -> str:
    """Return a tool's name, or `OTHER` if a model made it up from something else."""
    return name if _TOOL.fullmatch(name) else OTHER


def error_code(code: str) -> str:
    """Return an error's code, or `OTHER` if it may be made up."""
    return code if _ERROR.fullmatch(code) else OTHER


def kind_of(value: Any) -> str:
    """Return the kind of a JSON value, in words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int):
        return "0" if value == 0 else "a negative integer" if value < 0 else "an integer"
    if isinstance(value, float):
        return "a negative number" if value < 0 else "a number"
    if isinstance(value, str):
        return _kind_of_text(value)
    if isinstance(value, Mapping):
        return "an object" if value else "an empty object"
    return "a list" if value else "an empty list"


def _kind_of_text(text: str) -> str:
    if not text.strip():
        return "an empty text"
    if text.startswith("$") and ".output" in text[:40]:
        return "a reference"
    if len(text) > 2_000:
        return "a long text"
    for kind, pattern in _TEXTS:
        if pattern.fullmatch(text):
            return kind
    return "a text" if " " in text.strip() else "a word"


def shape_of(arguments: Mapping[str, Any] | None) -> Shape | None:
    """Return the shape of a call's arguments, sorted by name; None if unknown."""
    if arguments is None:
        return None
    names = sorted(arguments)[:MAX_ARGUMENTS]
    return {argument_name(name): kind_of(arguments[name]) for name in names}


def call_digest(tool: str, shape: Shape) -> str:
    return digest_of("call", tool, dict(shape))


def digest_of(*parts: Any) -> str:
    """Return a digest of JSON values, equal in every process."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def shape_text(shape: Shape) -> str:
    return ", ".join(f"{name}: {kind}" for name, kind in shape.items()) or "no arguments"
