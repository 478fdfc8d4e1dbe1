"""What tools hand over to be kept: bounded in size, and nothing in it that PostgreSQL cannot hold."""

from __future__ import annotations

import json
from typing import Any

from shared.domain.errors import InvalidArguments, storable


def check_size(place: str, value: Any, limit: int) -> None:
    """Raise `InvalidArguments` naming `place` when the JSON of `value` is longer than `limit` bytes."""
    size = len(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    if size > limit:
        raise InvalidArguments(f"{place}: expected at most {limit} bytes of JSON, found {size}")


def storable_json(value: Any) -> Any:
    """Return a JSON value with what no database holds (NUL, lone surrogates) replaced in all its texts."""
    match value:
        case str():
            return storable(value)
        case dict():
            return {storable(str(key)): storable_json(item) for key, item in value.items()}
        case list():
            return [storable_json(item) for item in value]
        case _:
            return value
