"""Decoding JSON as RFC 8259 defines it; Python's own decoder lets numbers pass that no JSON text can say again."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

from planq.shared.domain.values.pointers import Tokens, to_pointer


class RepeatedKey(ValueError):
    """An object of a JSON text has a key more than once; `pointer` (RFC 6901) leads to the first such key."""

    def __init__(self, pointer: str) -> None:
        super().__init__(f"the key {pointer} stands there more than once")
        self.pointer = pointer


def loads(text: str, *, is_unique: bool = False) -> Any:
    """Return the value of a JSON text.

    Raises ValueError when it is none: NaN, infinities and numbers beyond a float (1e999) included, integers of more
    than 4300 digits too; RecursionError when it is nested too deeply to be read. With `is_unique` an object may not
    have the same key twice: `RepeatedKey`.
    """
    if is_unique:
        check_unique(text)
    return json.loads(text, parse_constant=_refuse, parse_float=_finite)


def check_unique(text: str | bytes) -> None:
    """Raise `RepeatedKey` where an object of a JSON text has the same key twice: which one counts nobody can know.

    Costs about as much as decoding the text once more. Raises ValueError or RecursionError as `loads` does.
    """
    repeating: list[_Repeating] = []
    value = json.loads(text, object_pairs_hook=_noting(repeating))
    if repeating:
        raise RepeatedKey(_first(value))


class _Repeating(dict[str, Any]):
    """An object that has the key `twice` more than once in its text."""

    twice: str = ""


def _noting(repeating: list[_Repeating]) -> Callable[[list[tuple[str, Any]]], dict[str, Any]]:
    def made_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) == len(pairs):
            return made
        noted = _Repeating(made)
        noted.twice = _twice([name for name, _ in pairs])
        repeating.append(noted)
        return noted

    return made_of


def _twice(names: Sequence[str]) -> str:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    raise ValueError("no name stands there twice")


def _first(value: Any) -> str:
    """Return the pointer to the first repeated key, in the order of the text; precondition: there is one."""
    stack: list[tuple[Tokens, Any]] = [(None, value)]
    while stack:
        tokens, item = stack.pop()
        if isinstance(item, _Repeating):
            return to_pointer((tokens, item.twice))
        inner = item.items() if isinstance(item, dict) else enumerate(item) if isinstance(item, list) else ()
        stack.extend(reversed([((tokens, key), found) for key, found in inner]))
    raise ValueError("no key stands there twice")


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse(text)


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON")
