"""Following a path through a JSON Schema as deep as the schema knows it.

Used at plan time only: which fields an output will have, and of which type, as far as its schema says. Knowledge is
one-sided: what is reported absent cannot be there by the schema; what is not known passes. docs/decisions.md, D4.
Understood: properties, patternProperties, additionalProperties, items, prefixItems, `$ref` within the schema, allOf,
anyOf, oneOf. Conditional keywords make a place unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planq.shared.agentic.schema.patterns import is_found
from planq.shared.platform.values.pointers import array_index, from_pointer

_CONDITIONAL = ("then", "else", "dependentSchemas", "$dynamicRef", "dependencies")


@dataclass(frozen=True, slots=True)
class PathSchemas:
    """The path may exist; `schemas` are the alternatives that may describe its end, `True` one that says nothing."""

    schemas: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class NotInSchema:
    """The schema rules the path out at its segment number `position`; `available` names what is there instead."""

    position: int
    available: tuple[str, ...]


@dataclass(slots=True)
class _Lookup:
    """What one schema says about one segment. `open`: more than is listed may be there; `shut`: it may not."""

    found: list[Any]
    available: dict[str, None]
    open: bool = False
    shut: bool = False

    @property
    def is_silent(self) -> bool:
        return not (self.found or self.open or self.shut)


def follow(
    root: Mapping[str, Any], path: Sequence[str], *, first_must_be_declared: bool = False
) -> PathSchemas | NotInSchema:
    """Follow `path` (object keys and array indices) from the top of the schema `root`.

    With `first_must_be_declared`, a top level that declares no fields has none (the original's rule, cases tv-032);
    below it, an object that declares none is taken to be free in its fields (tv-039).
    """
    walker = _Walker(root)
    schemas: list[Any] = [root]
    for position, segment in enumerate(path):
        if len(schemas) == 1 and (inner := _plainly(schemas[0], segment)) is not None:
            schemas = [inner]
            continue
        lookup = walker.look_up_any(schemas, segment)
        if lookup.found or lookup.open:
            schemas = [*lookup.found, True] if lookup.open else lookup.found
        elif lookup.shut or (position == 0 and first_must_be_declared):
            return NotInSchema(position, tuple(lookup.available))
        else:
            schemas = [True]
    return PathSchemas(tuple(schemas))


_PLAIN = frozenset(
    {
        "$defs",
        "$schema",
        "additionalProperties",
        "default",
        "description",
        "items",
        "properties",
        "required",
        "title",
        "type",
    }
)
"""Keywords beside which a field that `properties` declares, or an item that `items` does, is only what it says."""


def _plainly(schema: Any, segment: str) -> Mapping[str, Any] | None:
    """Return what a schema of the plainest kind says about a segment; None: look properly."""
    if not isinstance(schema, Mapping) or not _PLAIN.issuperset(schema):
        return None
    inner: Any = None
    if schema.get("type") == "object":
        properties = schema.get("properties")
        inner = properties.get(segment) if isinstance(properties, Mapping) else None
    elif schema.get("type") == "array" and array_index(segment) is not None:
        inner = schema.get("items")
    return inner if inner and isinstance(inner, Mapping) else None


def declared_type(root: Mapping[str, Any], schemas: Sequence[Any]) -> str | None:
    """Return the single JSON type that all alternatives declare, or None when there is none: unknown, or a union."""
    walker = _Walker(root)
    types = {walker.type_of(schema, {}) for schema in schemas}
    return types.pop() if len(types) == 1 else None


def declared_names(schema: Any) -> set[str]:
    """Return the names of all fields that a schema declares under `properties`, wherever in it."""
    names: set[str] = set()
    stack = [schema]
    while stack:
        inner = stack.pop()
        if isinstance(inner, Mapping):
            properties = inner.get("properties")
            names.update(properties if isinstance(properties, Mapping) else ())
            stack.extend(inner.values())
        elif isinstance(inner, list):
            stack.extend(inner)
    return names


class _Walker:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root

    def look_up_any(self, schemas: Sequence[Any], segment: str) -> _Lookup:
        known: dict[int, _Lookup] = {}
        return _either([self._look_up(schema, segment, known) for schema in schemas])

    def type_of(self, schema: Any, known: dict[int, str | None]) -> str | None:
        if not isinstance(schema, Mapping):
            return None
        if id(schema) not in known:
            known[id(schema)] = None  # what it says by referring to itself is nothing
            known[id(schema)] = self._type_of(schema, known)
        return known[id(schema)]

    def _type_of(self, schema: Mapping[str, Any], known: dict[int, str | None]) -> str | None:
        declared = schema.get("type")
        if isinstance(declared, list) and len(declared) == 1:
            declared = declared[0]
        if isinstance(declared, str):
            return declared
        if declared is not None:
            return None
        for conjunct in self._conjuncts(schema):
            declared_there = self.type_of(conjunct, known)
            if declared_there is not None:
                return declared_there
        for keyword in ("anyOf", "oneOf"):
            types = {self.type_of(branch, known) for branch in _listed(schema, keyword)}
            if len(types) == 1:
                return types.pop()
        return None

    def _look_up(self, schema: Any, segment: str, known: dict[int, _Lookup]) -> _Lookup:
        """Return what one schema says; `known` holds what others said, so that each is asked once."""
        if schema is False:
            return _Lookup([], {}, shut=True)
        if not isinstance(schema, Mapping):
            return _Lookup([], {}, open=schema is True)
        if id(schema) in known:
            return known[id(schema)]
        known[id(schema)] = _Lookup([], {})
        lookups = [_own(schema, segment)]
        lookups += [self._look_up(conjunct, segment, known) for conjunct in self._conjuncts(schema)]
        for keyword in ("anyOf", "oneOf"):
            branches = _listed(schema, keyword)
            if branches:
                lookups.append(_either([self._look_up(branch, segment, known) for branch in branches]))
        known[id(schema)] = _both(lookups)
        return known[id(schema)]

    def _conjuncts(self, schema: Mapping[str, Any]) -> list[Any]:
        conjuncts = list(_listed(schema, "allOf"))
        if "$ref" in schema:
            conjuncts.append(self._target(schema["$ref"]))
        return conjuncts

    def _target(self, ref: Any) -> Any:
        """Return what a local `$ref` names; True, which says nothing, for any other."""
        if ref == "#":
            return self._root
        if not isinstance(ref, str) or not ref.startswith("#/"):
            return True
        node: Any = self._root
        for token in from_pointer(ref[1:]):
            if isinstance(node, Mapping) and token in node:
                node = node[token]
            elif isinstance(node, list) and (index := array_index(token)) is not None and index < len(node):
                node = node[index]
            else:
                return True
        return node


def _listed(schema: Mapping[str, Any], keyword: str) -> Sequence[Any]:
    listed = schema.get(keyword)
    return listed if isinstance(listed, list) else ()


def _own(schema: Mapping[str, Any], segment: str) -> _Lookup:
    """Look only at the keywords that stand in `schema` itself."""
    types = _types(schema)
    lookups: list[_Lookup] = []
    if "object" in types:
        lookups.append(_own_object(schema, segment))
    if "array" in types:
        lookups.append(_own_array(schema, segment))
    lookup = _either(lookups)
    if types and not lookups:
        lookup.shut = True
    if any(keyword in schema for keyword in _CONDITIONAL):
        lookup.open = True
    return lookup


def _types(schema: Mapping[str, Any]) -> set[str]:
    """Return the declared types, or those that the keywords of an undeclared one speak of; empty: it says nothing."""
    declared = schema.get("type")
    if isinstance(declared, str):
        return {declared}
    if isinstance(declared, list):
        return {name for name in declared if isinstance(name, str)}
    if any(keyword in schema for keyword in ("properties", "patternProperties", "additionalProperties")):
        return {"object"}
    return {"array"} if "items" in schema or "prefixItems" in schema else set()


def _own_object(schema: Mapping[str, Any], segment: str) -> _Lookup:
    properties = schema.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    lookup = _Lookup([], dict.fromkeys(map(str, properties)))
    if segment in properties:
        lookup.found.append(properties[segment])
    patterns = schema.get("patternProperties")
    for pattern, inner in patterns.items() if isinstance(patterns, Mapping) else ():
        if _matches(pattern, segment):
            lookup.found.append(inner)
    if lookup.found:
        return lookup
    further = schema.get("additionalProperties")
    if further is False:
        lookup.shut = True
    elif isinstance(further, Mapping) and further:
        lookup.found.append(further)
    elif further is not None:
        lookup.open = True
    else:
        # Declared fields without a word on others: a plan that names another one is refused (cases tv-006, tv-026).
        lookup.shut = bool(properties)
    return lookup


def _own_array(schema: Mapping[str, Any], segment: str) -> _Lookup:
    index = array_index(segment)
    if index is None:
        return _Lookup([], {}, shut=True)
    prefix = _listed(schema, "prefixItems")
    if index < len(prefix):
        return _Lookup([prefix[index]], {})
    items = schema.get("items")
    if isinstance(items, Mapping) and items:
        return _Lookup([items], {})
    return _Lookup([], {}, open=items is not False, shut=items is False)


def _matches(pattern: str, text: str) -> bool:
    try:
        return is_found(pattern, text)
    except ValueError:
        return True


def _either(lookups: Sequence[_Lookup]) -> _Lookup:
    """Join what alternatives say: found in any is found, and one that knows nothing leaves everything possible."""
    joined = _Lookup(_distinct(lookups), {name: None for lookup in lookups for name in lookup.available})
    joined.shut = bool(lookups) and all(lookup.shut and not lookup.found and not lookup.open for lookup in lookups)
    joined.open = any(lookup.open for lookup in lookups)
    if any(lookup.is_silent for lookup in lookups) and (joined.found or any(lookup.shut for lookup in lookups)):
        joined.open = True
    return joined


def _both(lookups: Sequence[_Lookup]) -> _Lookup:
    """Join what conjuncts say: found in any is found; otherwise open beats shut, and the silent ones do not count."""
    joined = _Lookup(_distinct(lookups), {name: None for lookup in lookups for name in lookup.available})
    joined.open = any(lookup.open for lookup in lookups) and not any(
        lookup.found and not lookup.open for lookup in lookups
    )
    if not joined.found:
        joined.shut = any(lookup.shut for lookup in lookups) and not joined.open
    return joined


def _distinct(lookups: Sequence[_Lookup]) -> list[Any]:
    return list({id(schema): schema for lookup in lookups for schema in lookup.found}.values())
