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


def patterns_of(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield the patterns that stand anywhere in a schema: those of texts and of the names of properties."""
    stack = [referencing.Resource.from_contents(schema, default_specification=DRAFT202012)]
    while stack:
        resource = stack.pop()
        if isinstance(resource.contents, Mapping):
            if isinstance(found := resource.contents.get("pattern"), str):
                yield found
            names = resource.contents.get("patternProperties")
            yield from names if isinstance(names, Mapping) else ()
        stack.extend(resource.subresources())


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
