"""Decoding JSON as RFC 8259 defines it; Python's own decoder lets numbers pass that no JSON text can say again."""

from __future__ import annotations

import json
import math
from typing import Any


def loads(text: str) -> Any:
    """Return the value of a JSON text.

    Raises ValueError when it is none: NaN, infinities and numbers beyond a float (1e999) included, integers of more
    than 4300 digits too; RecursionError when it is nested too deeply to be read.
    """
    return json.loads(text, parse_constant=_refuse, parse_float=_finite)


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse(text)


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON")
