"""Every statement that the selects become: one for each combination of filters and flags."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from types import NoneType
from typing import Any, get_args, get_type_hints

from planq.shared.platform.selects import NAMED
from planq.shared.subjects.listings import text_of


def select_texts() -> Mapping[str, Mapping[str, str]]:
    """Return all texts of each select by its name, and by the filters that are given and the flags that are set."""
    return {name: {_said(given): text_of(name, given).decode() for given in _ways(name)} for name in NAMED}


def _ways(name: str) -> Iterator[Mapping[str, Any]]:
    kinds = {key: kind for key, kind in get_type_hints(NAMED[name]).items() if key != "return"}
    options = [(False, True) if kind is bool else _values(kind) for kind in kinds.values()]
    for values in product(*options):
        yield dict(zip(kinds, values, strict=True))


def _values(kind: Any) -> tuple[Any, ...]:
    return (None, ...) if NoneType in get_args(kind) else (...,)


def _said(given: Mapping[str, Any]) -> str:
    return "+".join(key for key, value in given.items() if value)
