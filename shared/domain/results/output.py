"""What a tool returned, as the JSON text that is stored."""

from __future__ import annotations

import json
from typing import Any

from planq.shared.domain.errors import InvalidOutput
from planq.shared.domain.schema.schemas import MAX_DEPTH
from planq.shared.domain.values.encoding import encode, is_nested_deeper


def output_text(tool_name: str, value: Any, most: int | None = None) -> bytes:
    """Return the compact JSON of what a tool returned, the only time that it is encoded.

    Raises `InvalidOutput` for what JSON cannot hold, for what is nested more than `MAX_DEPTH` levels deep, and for
    more than `most` bytes.
    """
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
    """Return the error of an output with a NaN or an infinity."""
    return InvalidOutput(f"{tool_name} returned {number}, which JSON cannot express; return null or text instead")


def _no_number(value: Any) -> str | None:
    """Return the first NaN or infinity of a value as Python's encoder writes it; None where it has none."""
    found: list[str] = []
    try:
        json.loads(json.dumps(value), parse_constant=found.append)
    except (ValueError, TypeError, RecursionError):
        return None
    return found[0] if found else None
