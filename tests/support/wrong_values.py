"""Documents with one value of a wrong type in each place: what systems outside may send, and no model foresaw."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

_LEVELS = (1_000, 1_020, 5_000)
WRONG: dict[str, Any] = {
    "null": None,
    "true": True,
    "list": [],
    "list of lists": [[1]],
    "object": {},
    "object of objects": {"a": {"b": 1}},
    "NUL": "a\x00b",
    "surrogate": "\ud800",
    "long": "x" * 20_000,
    "empty": "",
    "fraction": 1.5,
    "integer": 2**63 - 1,
    **{f"{levels} levels": f"<deep {levels}>" for levels in _LEVELS},
}


def text_of(document: Any) -> str:
    """Return a document as JSON: what is deep as that, which nothing could write, and keys as ones of their own."""
    text = json.dumps(document).replace('"KEY"', f'"{uuid4()}"')
    return re.sub(r'"<deep (\d+)>"', lambda found: "[" * int(found[1]) + "]" * int(found[1]), text)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Return the path to each value in a document, but for the document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield (*path, key)
        yield from places(one, (*path, key))


def spoilt(document: Any, wrong: Any) -> Iterator[tuple[str, Any]]:
    """Return for each place the document with the wrong value there, and what the place is called."""
    for path in places(document):
        changed = copy.deepcopy(document)
        at = changed
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = wrong
        yield "/".join(map(str, path)), changed
