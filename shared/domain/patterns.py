"""The regular expressions of schemas, read by an engine whose time grows with the text alone (Rust's, in pydantic).

Python's own tries one way after the other: ten characters of a pattern, written to do harm or by accident, can occupy
a process for hours, in which it serves nobody else. What the fast engine does not know (look-around, back-references)
is left to Python's; whoever takes schemas from strangers refuses it (`needs_backtracking`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Any

import referencing
from pydantic import StringConstraints, TypeAdapter
from pydantic import ValidationError as Unmatched
from pydantic_core import SchemaError as Unread
from referencing.jsonschema import DRAFT202012

_READ_KEPT = 1_024


def is_found(pattern: str, text: str) -> bool:
    """Return whether `pattern` matches anywhere in `text`; raises `re.error` where it is no regular expression."""
    return _search(pattern)(text)


def needs_backtracking(pattern: str) -> bool:
    """Return whether only Python's engine can read the pattern."""
    return _linear(pattern) is None


def patterns_of(schema: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield the patterns in a schema, those of texts and of the names of properties, each with the path to it.

    A subschema that stands in several places is told of once.
    """
    places = _places(schema)
    stack = [referencing.Resource.from_contents(schema, default_specification=DRAFT202012)]
    while stack:
        resource = stack.pop()
        if isinstance(resource.contents, Mapping):
            path = places.get(id(resource.contents), ())
            if isinstance(found := resource.contents.get("pattern"), str):
                yield (*path, "pattern"), found
            names = resource.contents.get("patternProperties")
            for name in names if isinstance(names, Mapping) else ():
                yield (*path, "patternProperties", name), name
        stack.extend(resource.subresources())


def _places(schema: Any) -> dict[int, tuple[str | int, ...]]:
    """Return the path to each object in a schema, by its identity: subresources come without theirs."""
    places: dict[int, tuple[str | int, ...]] = {}
    stack: list[tuple[tuple[str | int, ...], Any]] = [((), schema)]
    while stack:
        path, item = stack.pop()
        if isinstance(item, Mapping):
            places.setdefault(id(item), path)
            stack += [((*path, name), inner) for name, inner in item.items()]
        elif isinstance(item, list):
            stack += [((*path, number), inner) for number, inner in enumerate(item)]
    return places


@lru_cache(maxsize=_READ_KEPT)
def _search(pattern: str) -> Callable[[str], bool]:
    linear = _linear(pattern)
    if linear is not None:
        return linear
    read = re.compile(pattern)
    return lambda text: read.search(text) is not None


@lru_cache(maxsize=_READ_KEPT)
def _linear(pattern: str) -> Callable[[str], bool] | None:
    try:
        adapter = TypeAdapter(Annotated[str, StringConstraints(pattern=pattern)])
    except Unread:
        return None

    def matches(text: str) -> bool:
        try:
            adapter.validate_python(text)
        except Unmatched:
            return False
        return True

    return matches
