"""Says quickly of most valid values that they are valid, by jsonschema-rs; the bounded check decides about the rest.

Nearly every value that is checked is valid, and nearly every tool's schema consists of types, properties and bounds.
jsonschema-rs checks such a schema a hundred times as fast as jsonschema, but nothing can stop it. So it gets only
schemas of which the work is known before: each is written out here, without references, from keywords that lead to
each part of a value a known number of times. The answer is one-sided: True means that the bounded check would find
nothing; False means nothing. What is no JSON in a value (a lone surrogate, a float that is not finite) is left open;
tuples pass for arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jsonschema_rs

from planq.shared.agentic.schema.formats import STRICT, is_unchecked
from planq.shared.agentic.schema.validators import UNKNOWN

_DIALECT = "https://json-schema.org/draft/2020-12/schema"

_WITHOUT_EFFECT = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment"}
    | {"$schema", "$defs"}
)
"""Definitions count where they are referred to."""

_PLAIN = frozenset(
    {"type", "required", "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}
)
_BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_PARTS = frozenset({"items", "additionalProperties"})
_SAME = frozenset({"allOf", "anyOf", "oneOf"})

_EXACT = 2**53
"""Up to here jsonschema-rs compares any two numbers exactly."""

_MOST_WRITTEN = 2_000
"""Most schemas of one check, each reference written out; with more, the bounded check remembers what it has seen."""

_MOST_WORK = 100_000_000
"""Most questions that one value may be asked: 3 ns each (2026-11), so less than a second."""


class QuickCheck(NamedTuple):
    """The check of one schema: `is_valid` returns True for a value that is certainly valid; False means nothing.

    It takes too long for more than `most_parts` parts, and raises ValueError for what is no JSON.
    """

    is_valid: Callable[[Any], bool]
    most_parts: int


NEVER = QuickCheck(lambda _: False, 0)
"""Where the schema says something that is left to the bounded check."""


def quick_check(schema: Mapping[str, Any], *, partial: bool) -> QuickCheck:
    """Return the quick check of a schema, `NEVER` where there is none; with `partial`, parts may be `UNKNOWN`.

    Precondition: the schema is valid and not deeply nested.
    """
    writer = _Writer(schema, partial)
    try:
        written = writer.part(schema)
        check = jsonschema_rs.Draft202012Validator(written, validate_formats=True, offline=True)
    except (_NeedsBoundedCheck, ValueError, RecursionError):
        return NEVER
    return QuickCheck(check.is_valid, _MOST_WORK // max(writer.most, 1))


class _NeedsBoundedCheck(Exception):
    """The schema says something that is left to the bounded check."""


class _Writer:
    """Writes a schema out; `most` is how many questions are asked of one part of a value."""

    def __init__(self, root: Mapping[str, Any], partial: bool) -> None:
        self.most = 0
        self._root = root
        self._partial = partial
        self._entered: list[str] = []
        self._written = 0
        self._asked = 0

    def part(self, schema: Any) -> Any:
        outer, self._asked = self._asked, 0
        written = self._same(schema)
        self.most, self._asked = max(self.most, self._asked), outer
        # A part that is not known is forbidden only where nothing may be.
        return {"anyOf": [{"const": UNKNOWN.value}, written]} if self._partial and written is not False else written

    def _same(self, schema: Any) -> Any:
        """Return a schema of the same part as the one it stands in."""
        self._written += 1
        self._asked += 1
        if self._written > _MOST_WRITTEN:
            raise _NeedsBoundedCheck
        if isinstance(schema, bool):
            return schema
        if schema.get("$schema", _DIALECT) != _DIALECT:
            raise _NeedsBoundedCheck
        written: dict[str, Any] = {}
        for name, rule in schema.items():
            if name == "$ref":
                written.setdefault("allOf", []).append(self._referred(rule))
            elif name == "allOf":
                written.setdefault("allOf", []).extend(map(self._same, rule))
            elif name not in _WITHOUT_EFFECT and not (name == "format" and is_unchecked(rule)):
                self._asked += len(rule) if isinstance(rule, (list, dict)) else 1
                written[name] = self._rule(name, rule)
        return written

    def _rule(self, name: str, rule: Any) -> Any:
        if name in _PLAIN or (name in _BOUNDS and abs(rule) <= _EXACT):
            return rule
        if name == "format" and rule in STRICT:
            return rule
        if name == "const" and _is_simple(rule):
            return rule
        if name == "enum" and all(map(_is_simple, rule)):
            return rule
        if name == "properties":
            return {key: self.part(inner) for key, inner in rule.items()}
        if name in _PARTS:
            return self.part(rule)
        if name in _SAME:
            return [self._same(inner) for inner in rule]
        raise _NeedsBoundedCheck

    def _referred(self, rule: str) -> Any:
        name = rule.removeprefix("#/$defs/")
        found = self._root.get("$defs", {}).get(name) if rule != name else None
        if found is None or rule in self._entered:
            raise _NeedsBoundedCheck  # recursive, or not that simple
        self._entered.append(rule)
        written = self._same(found)
        self._entered.pop()
        return written


def _is_simple(choice: Any) -> bool:
    if isinstance(choice, (int, float)):
        return abs(choice) <= _EXACT
    return choice is None or isinstance(choice, str)
