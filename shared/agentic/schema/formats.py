"""The formats of JSON Schema that planq asserts: a text that has one of these names has to look like it.

Others (`password`, `binary`, a tool's own) say something to people and are not checked, as the standard has it. A
`date-time` and a `time` may leave out their offset, as Python writes those without a zone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jsonschema_rs

STRICT = frozenset({"date", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uri-reference", "uuid"})
"""Formats that jsonschema-rs checks as they are meant here."""

_LOCAL = frozenset({"date-time", "time"})

_CHECKS: Mapping[str, Any] = {
    name: jsonschema_rs.Draft202012Validator({"format": name}, validate_formats=True, offline=True)
    for name in STRICT | _LOCAL
}


def is_unchecked(name: Any) -> bool:
    return not isinstance(name, str) or name not in _CHECKS


def has_format(name: Any, text: str) -> bool:
    """Return False for a text that has not the format of this name; True where nobody checks that format."""
    check = _CHECKS.get(name) if isinstance(name, str) else None
    if check is None:
        return True
    try:
        return bool(check.is_valid(text) or (name in _LOCAL and check.is_valid(f"{text}Z")))
    except ValueError:  # a lone surrogate, which is in no format
        return False
