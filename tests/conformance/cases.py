"""Loading conformance cases and comparing answers with what they expect; the format is tests/data/cases/README.md.

Another folder of files of the same form can be run: `PLANQ_CASES=<folder> pytest tests/conformance`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

DEFAULT_FOLDER = Path(__file__).parent.parent / "data" / "cases"


@dataclass(frozen=True)
class Case:
    """One case; `siblings` are the cases of the same file with the same operation and input."""

    suite: str
    id: str
    op: str
    profile: str
    input: Any
    expected: Any
    siblings: tuple[Case, ...] = ()

    @property
    def winner(self) -> Case:
        """Return the case whose expectation binds: a `proposal` wins over a `real` one with the same input."""
        if self.profile == "real":
            return next((case for case in self.siblings if case.profile == "proposal"), self)
        return self


def folder() -> Path:
    """Return the folder to take cases from."""
    return Path(os.environ.get("PLANQ_CASES") or DEFAULT_FOLDER)


def load(suite: str) -> list[Case]:
    """Return the cases of a suite, in file order; none when the folder has no such file."""
    path = folder() / f"{suite}.json"
    if not path.exists():
        return []
    raw = json.loads(path.read_text(encoding="utf-8"))["cases"]
    cases = [Case(suite, item["id"], item["op"], item["profile"], item["input"], item["expected"]) for item in raw]
    by_input: dict[str, list[Case]] = {}
    for case in cases:
        by_input.setdefault(_key(case), []).append(case)
    return [
        Case(**{**vars(case), "siblings": tuple(one for one in by_input[_key(case)] if one is not case)})
        for case in cases
    ]


def params(cases: Iterable[Case]) -> list[Any]:
    """Return pytest parameters, one per case, with the case's id."""
    return [pytest.param(case, id=case.id) for case in cases]


def mismatches(expected: Any, actual: Any) -> list[str]:
    """Return in words how `actual` differs from `expected`, read with the matchers of the cases' README.

    At the top level only what `expected` names is compared; below it, values must be equal, `"*"` standing for any.
    """
    if not isinstance(expected, Mapping):
        return [] if _equal(expected, actual) else [f"expected {expected!r}, got {actual!r}"]
    if not isinstance(actual, Mapping):
        return [f"expected an object like {expected!r}, got {actual!r}"]
    return [said for key, wanted in expected.items() for said in _field_mismatches(key, wanted, actual)]


def _field_mismatches(key: str, wanted: Any, actual: Mapping[str, Any]) -> list[str]:
    if key in ("contains", "excludes"):
        text = str(actual.get("text"))
        return [
            f"text {key}: {part!r}; got {text!r}" for part in _listed(wanted) if (part in text) != (key == "contains")
        ]
    if key == "names_contain":
        names = [str(name) for name in actual.get("names", ())]
        fits = len(names) >= len(wanted) and all(part in name for part, name in zip(wanted, names, strict=False))
        return [] if fits else [f"names contain {wanted!r} in order; got {names!r}"]
    if key.endswith("_contains"):
        name = key.removesuffix("_contains")
        # Case does not count: the sentences are planq's own, the words that matter are the originals'.
        text = str(actual.get(name))
        return [
            f"{name} contains {part!r}; got {text!r}" for part in _listed(wanted) if part.lower() not in text.lower()
        ]
    if isinstance(wanted, Mapping) and set(wanted) == {"at_most"}:
        return [] if actual[key] <= wanted["at_most"] else [f"{key} at most {wanted['at_most']}; got {actual[key]!r}"]
    if key not in actual:
        return [f"{key} is absent; expected {wanted!r}"]
    return [] if _equal(wanted, actual[key]) else [f"{key}: expected {wanted!r}, got {actual[key]!r}"]


def _equal(expected: Any, actual: Any) -> bool:
    if isinstance(expected, str) and expected == "*":
        return True
    if isinstance(expected, Mapping):
        return (
            isinstance(actual, Mapping)
            and expected.keys() == actual.keys()
            and all(_equal(value, actual[key]) for key, value in expected.items())
        )
    if isinstance(expected, list):
        return (
            isinstance(actual, Sequence)
            and not isinstance(actual, str)
            and len(expected) == len(actual)
            and all(map(_equal, expected, actual))
        )
    # JSON tells true from 1, Python does not.
    return isinstance(expected, bool) == isinstance(actual, bool) and bool(expected == actual)


def _listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def _key(case: Case) -> str:
    return json.dumps([case.op, case.input], sort_keys=True)
