"""JSON that a command is given: in a file, or on standard input where the name is `-`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from shared.domain import strict_json
from shared.domain.errors import InvalidRequest, Misconfigured

STANDARD_INPUT = "-"


def read_text(name: str, what: str) -> str:
    """Return the text of a file or of standard input.

    Raises `Misconfigured` when it cannot be read, `InvalidRequest` when it is no UTF-8.
    """
    try:
        raw = sys.stdin.buffer.read() if name == STANDARD_INPUT else Path(name).read_bytes()
    except OSError as error:
        raise Misconfigured(f"{what}: cannot read {name!r} ({error.strerror})") from error
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{what}: expected UTF-8, found other bytes at {error.start}") from error


def read_json(name: str, what: str) -> Any:
    """Return the JSON value in a file or on standard input; raises as `read_text`, with the place of a defect."""
    return parse_json(read_text(name, what), what)


def parse_json(text: str, what: str) -> Any:
    """Return the value of a JSON text; raises `InvalidRequest` with the place of a defect.

    Read as strictly as the API reads a body, which would not see any more that a key stood there twice.
    """
    try:
        return strict_json.loads(text, is_unique=True)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise InvalidRequest(f"{what}: expected JSON, found a mistake at {place}: {error.msg}") from error
    except strict_json.RepeatedKey as error:
        raise InvalidRequest(f"{what}: {error}, and which value counts is open; send it once") from error
    except RecursionError as error:
        raise InvalidRequest(f"{what}: nested too deeply to be read") from error
    except ValueError as error:
        raise InvalidRequest(f"{what}: expected JSON, {error}") from error
