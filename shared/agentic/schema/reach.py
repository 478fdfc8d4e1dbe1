"""All schemas that checking a value against one schema may come to: those within it, and what its references lead to.

A reference may lead anywhere in the document, also to what stands there as a mere value (`default`, `examples`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import referencing
from jsonschema_specifications import REGISTRY as SPECIFICATIONS  # type: ignore[import-untyped]
from referencing.jsonschema import DRAFT202012
from referencing.jsonschema import SchemaRegistry as Registry

from planq.shared.platform.values.components import components, knots

SchemaPath = tuple[str | int, ...]

REGISTRY: Final[Registry] = SPECIFICATIONS
"""The official meta-schemas: the only documents that a schema may refer to beside itself."""


MAX_WRITTEN_OUT = 100_000
"""Maximum number of schemas that a stranger's schema may come to when its references are written out."""


@dataclass(frozen=True, slots=True)
class ReachableSchema:
    """A schema that is an object, the schemas that it applies (`inner`) and those that it refers to (`referred`).

    `is_declared` is False if only a reference makes it a schema: its contents have not been checked as one.
    """

    contents: Mapping[str, Any]
    is_declared: bool
    inner: Sequence[Any]
    referred: Sequence[Any]


def reachable(schema: Mapping[str, Any]) -> list[ReachableSchema]:
    """Return each schema that is an object, once.

    A dynamic reference leads to every schema of the document that may be its target.
    Raises `referencing.exceptions.Unresolvable` for a reference that leads nowhere.
    """
    root = referencing.Resource.from_contents(schema, default_specification=DRAFT202012)
    resolver = REGISTRY.with_resource("", root).resolver()
    stack = [(resolver.in_subresource(root), root)]
    pending = stack[:0]
    seen: dict[int, ReachableSchema] = {}
    while stack or pending:
        is_declared = bool(stack)
        resolver, resource = stack.pop() if stack else pending.pop()
        contents = resource.contents
        if not isinstance(contents, Mapping) or id(contents) in seen:
            continue
        inner = list(resource.subresources())
        found = [
            resolver.lookup(contents[keyword])
            for keyword in ("$ref", "$dynamicRef")
            if isinstance(contents.get(keyword), str)
        ]
        named = {id(one) for keyword in ("$defs", "definitions") for one in contents.get(keyword, {}).values()}
        seen[id(contents)] = ReachableSchema(
            contents,
            is_declared,
            [one.contents for one in inner if id(one.contents) not in named],
            [one.contents for one in found],
        )
        for one in found:
            target = referencing.Resource.from_contents(one.contents, default_specification=DRAFT202012)
            pending.append((one.resolver, target))
        stack.extend((resolver.in_subresource(one), one) for one in inner)
    return [
        replace(one, referred=[*one.referred, *_dynamic_targets(schema, one, seen.values())]) for one in seen.values()
    ]


def _dynamic_targets(
    root: Mapping[str, Any], source: ReachableSchema, reached: Iterable[ReachableSchema]
) -> Iterator[Mapping[str, Any]]:
    """Yield the schemas that may take the place of what a dynamic reference leads to."""
    name = source.contents.get("$dynamicRef")
    if isinstance(name, str):
        anchor = name.rpartition("#")[2]
        yield from (one.contents for one in reached if one.contents.get("$dynamicAnchor") == anchor)
    if "$recursiveRef" in source.contents:
        yield root
        yield from (one.contents for one in reached if "$recursiveAnchor" in one.contents)


def endless(schema: Mapping[str, Any], reached: Sequence[ReachableSchema]) -> SchemaPath | None:
    """Return the path to a schema that leads back to itself for the same value; None without one.

    jsonschema-rs goes through every order of such references.
    """
    leads_to = {
        id(one.contents): [
            id(inner)
            for inner in (*(inner for _, inner, _ in applied(one.contents, None)), *one.referred)
            if isinstance(inner, Mapping)
        ]
        for one in reached
    }
    found = next(knots(leads_to), None)
    return None if found is None else places_of(schema).get(found[-1], ())


def applied(schema: Mapping[str, Any], value: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield each schema within `schema` and the part of `value` that it may be applied to, with its keyword."""
    for keyword in ("not", "if", "then", "else"):
        if keyword in schema:
            yield keyword, schema[keyword], value
    for keyword in ("allOf", "anyOf", "oneOf"):
        for inner in schema.get(keyword, ()):
            yield keyword, inner, value
    for keyword in ("dependentSchemas", "dependencies"):
        for inner in schema.get(keyword, {}).values():
            yield keyword, inner, value
    if isinstance(value, dict):
        declared = schema.get("properties", {})
        others = [schema[name] for name in ("additionalProperties", "unevaluatedProperties") if name in schema]
        others += schema.get("patternProperties", {}).values()
        for name, part in value.items():
            if "propertyNames" in schema:
                yield "propertyNames", schema["propertyNames"], name
            for inner in (*others, declared[name]) if name in declared else others:
                yield "properties", inner, part
    elif isinstance(value, (list, tuple)):
        items = schema.get("items", [])
        first = items if isinstance(items, list) else schema.get("prefixItems", ())
        others = [schema[name] for name in ("additionalItems", "contains", "unevaluatedItems") if name in schema]
        others += [] if isinstance(items, list) else [items]
        for number, part in enumerate(value):
            for inner in (*others, first[number]) if number < len(first) else others:
                yield "items", inner, part


def written_out(
    reached: Sequence[ReachableSchema], weight: Callable[[ReachableSchema], int] = lambda _: 1, unevaluated: int = 1
) -> dict[int, int]:
    """Return the total weight of each schema with its references written out, by the schema's identity.

    Definitions that refer to themselves, directly or not, count once as a group: they cannot be written out. Schemas
    with `unevaluatedProperties` or `unevaluatedItems` count `unevaluated` times.
    """
    by_id = {id(one.contents): one for one in reached}
    leads_to = {
        key: [id(inner) for inner in (*one.inner, *one.referred) if isinstance(inner, Mapping)]
        for key, one in by_id.items()
    }
    sizes: dict[int, int] = {}
    for group in components(leads_to):
        within = set(group)
        size = sum(
            weight(by_id[one]) + sum(sizes.get(inner, 1) for inner in leads_to[one] if inner not in within)
            for one in group
        )
        for one in group:
            if "unevaluatedProperties" in by_id[one].contents or "unevaluatedItems" in by_id[one].contents:
                size *= unevaluated
        sizes.update(dict.fromkeys(group, size))
    return sizes


def too_branched(schema: Mapping[str, Any], reached: Sequence[ReachableSchema]) -> SchemaPath | None:
    """Return the path to a smallest schema that comes to more than `MAX_WRITTEN_OUT` schemas; None without one."""
    large = [(size, key) for key, size in written_out(reached).items() if size > MAX_WRITTEN_OUT]
    return places_of(schema).get(min(large)[1], ()) if large else None


def schemas_in(schema: Mapping[str, Any]) -> Iterator[tuple[SchemaPath, Mapping[str, Any]]]:
    """Yield each schema in `schema` that is an object, with the path to it; references are not followed.

    A subschema that is used in several places is yielded with one of their paths.
    """
    places = places_of(schema)
    stack = [referencing.Resource.from_contents(schema, default_specification=DRAFT202012)]
    while stack:
        resource = stack.pop()
        if isinstance(resource.contents, Mapping):
            yield places.get(id(resource.contents), ()), resource.contents
        stack.extend(resource.subresources())


def places_of(schema: Any) -> dict[int, SchemaPath]:
    """Return the path to each object in a schema, by its identity: subresources come without theirs."""
    places: dict[int, SchemaPath] = {}
    stack: list[tuple[SchemaPath, Any]] = [((), schema)]
    while stack:
        path, item = stack.pop()
        if isinstance(item, Mapping):
            places.setdefault(id(item), path)
            stack += [((*path, name), inner) for name, inner in item.items()]
        elif isinstance(item, list):
            stack += [((*path, number), inner) for number, inner in enumerate(item)]
    return places
