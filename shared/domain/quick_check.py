"""Says quickly of most valid values that they are valid; what it leaves open, the real validator decides.

Nearly every value that is checked is valid, and nearly every tool's schema consists of types, properties and bounds.
Such a schema becomes nested functions, twenty times as fast as interpreting it. The answer is one-sided: True means
that the validator (draft 2020-12) would find nothing; False means nothing. Any keyword that is not known here, and
any value that is not plainly one of JSON's Python types, is left to the validator.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Check = Callable[[Any], bool]

_ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "format"}
)
"""Without effect on validity; `format` too, which the validator is not asked to assert."""

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_IGNORED = _ANNOTATIONS | {"$schema"}

_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "object": (dict,),
    "array": (list,),
}
"""Exact Python types that are certainly of a JSON type; 1.0 is an integer too, which the validator finds out."""


_JSON = frozenset(kind for kinds in _TYPES.values() for kind in kinds)
_NUMBERS = frozenset({int, float})
_OTHERS = _JSON - _NUMBERS

_BOUNDS: Mapping[str, Callable[[Any, Any], bool]] = {
    "minimum": operator.ge,
    "maximum": operator.le,
    "exclusiveMinimum": operator.gt,
    "exclusiveMaximum": operator.lt,
}
_LENGTHS: Mapping[str, tuple[Any, Callable[[Any, Any], bool]]] = {
    "minLength": (str, operator.ge),
    "maxLength": (str, operator.le),
    "minItems": (list, operator.ge),
    "maxItems": (list, operator.le),
}


_MOST_MADE = 2_000
"""Most schemas of one check, each reference written out; with more, the validator remembers what it has seen."""

_MOST_WORK = 20_000_000
"""Most questions that one value may be asked: 50 ns each and less, so a second."""


@dataclass(frozen=True, slots=True)
class _Met:
    """How many keywords one part of a value meets, and how many names one object is asked for."""

    keywords: int = 0
    names: int = 0


@dataclass(frozen=True, slots=True)
class QuickCheck:
    """The check of one schema, and the most that one part of a value meets in it."""

    check: Check
    most: _Met

    def __call__(self, value: Any) -> bool:
        """Return True for a value that is certainly valid."""
        return self.check(value)

    def is_surely_valid(self, value: Any, size: tuple[int, int]) -> bool:
        """Return True for a value that is certainly valid; False means nothing, also that it would take too long.

        `size` is how many objects and arrays the value has, and how many parts.
        """
        containers, parts = size
        return containers * self.most.names + parts * self.most.keywords <= _MOST_WORK and self.check(value)


def quick_check(schema: Any, unknown: object) -> QuickCheck | None:
    """Return a function that is True for certainly valid values, None for a schema that is beyond it.

    Precondition: the schema is valid and not deeply nested. `unknown` stands for a part of a value that nothing
    forbids.
    """
    maker = _Maker(schema, unknown)
    try:
        return QuickCheck(maker.of(schema), maker.most)
    except _Beyond:
        return None


class _Beyond(Exception):
    """The schema says something that only the validator understands."""


class _Maker:
    """Makes the check of one schema, whose definitions are `root`'s."""

    def __init__(self, root: Any, unknown: object) -> None:
        self._root = root
        self._unknown = unknown
        self._entered: list[str] = []
        self._made = 0
        self._met = _Met()
        self.most = _Met()

    def of(self, schema: Any, *, in_place: bool = False) -> Check:
        """Return the check of `schema`; `in_place` says that the value is its keyword's own, not a part of it."""
        outer, self._met = self._met, _Met()
        check = self._of(schema)
        self.most = _Met(max(self.most.keywords, self._met.keywords), max(self.most.names, self._met.names))
        self._met = _Met(outer.keywords + self._met.keywords, outer.names + self._met.names) if in_place else outer
        return check

    def _of(self, schema: Any) -> Check:
        if schema is True:
            return lambda _: True
        self._made += 1
        if self._made > _MOST_MADE or not isinstance(schema, Mapping) or schema.get("$schema", _DIALECT) != _DIALECT:
            raise _Beyond
        unknown = self._unknown
        names = len(schema.get("properties", ())) + len(schema.get("required", ()))
        self._met = _Met(len(schema) + 1, names)
        checks = [self._keyword(name, rule, schema) for name, rule in schema.items() if name not in _IGNORED]
        if len(checks) == 1:
            (only,) = checks
            return lambda value: value is unknown or only(value)
        return lambda value: value is unknown or all(check(value) for check in checks)

    def _keyword(self, name: str, rule: Any, schema: Mapping[str, Any]) -> Check:
        if name in _BOUNDS:
            keeps = _BOUNDS[name]
            return lambda value: keeps(value, rule) if type(value) in _NUMBERS else type(value) in _OTHERS
        if name in _LENGTHS:
            kind, fits = _LENGTHS[name]
            return lambda value: fits(len(value), rule) if type(value) is kind else type(value) in _JSON
        make = _MAKERS.get(name)
        if make is None:
            raise _Beyond
        return make(self, rule, schema)

    def _type(self, rule: Any, _: Any) -> Check:
        types = frozenset(kind for name in ([rule] if isinstance(rule, str) else rule) for kind in _TYPES[name])
        return lambda value: type(value) in types

    def _properties(self, rule: Mapping[str, Any], _: Any) -> Check:
        inner = [(name, self.of(schema)) for name, schema in rule.items()]

        def check(value: Any) -> bool:
            return type(value) is not dict or all(one(value[name]) for name, one in inner if name in value)

        return check

    def _required(self, rule: Any, _: Any) -> Check:
        names = tuple(rule)
        return lambda value: type(value) is not dict or all(name in value for name in names)

    def _additional(self, rule: Any, schema: Mapping[str, Any]) -> Check:
        if rule is True:
            return lambda _: True
        if rule is not False or "patternProperties" in schema:
            raise _Beyond
        names = frozenset(schema.get("properties", ()))
        return lambda value: type(value) is not dict or names.issuperset(value)

    def _items(self, rule: Any, _: Any) -> Check:
        inner = self.of(rule)
        return lambda value: type(value) is not list or all(map(inner, value))

    def _enum(self, rule: Any, _: Any) -> Check:
        # Of texts only: 1, 1.0 and True are equal in Python, but not all in JSON Schema.
        texts = frozenset(item for item in rule if isinstance(item, str))
        return lambda value: type(value) is str and value in texts

    def _const(self, rule: Any, _: Any) -> Check:
        return self._enum([rule], _)

    def _any_of(self, rule: Any, _: Any) -> Check:
        inner = [self.of(schema, in_place=True) for schema in rule]
        return lambda value: any(check(value) for check in inner)

    def _definitions(self, rule: Any, _: Any) -> Check:
        return lambda _: True  # they count where they are referred to

    def _reference(self, rule: str, _: Any) -> Check:
        name = rule.removeprefix("#/$defs/")
        if rule in self._entered or "/" in name or "%" in name or "~" in name:
            raise _Beyond  # recursive, or not that simple
        found = self._root.get("$defs", {}).get(name) if rule != name else None
        self._entered.append(rule)
        check = self.of(found, in_place=True)
        self._entered.pop()
        return check


_MAKERS: Mapping[str, Callable[[_Maker, Any, Mapping[str, Any]], Check]] = {
    "type": _Maker._type,
    "properties": _Maker._properties,
    "required": _Maker._required,
    "additionalProperties": _Maker._additional,
    "items": _Maker._items,
    "enum": _Maker._enum,
    "const": _Maker._const,
    "anyOf": _Maker._any_of,
    "$defs": _Maker._definitions,
    "$ref": _Maker._reference,
}
