"""All schemas that checking a value against one schema may come to: those within it, and what its references lead to.

A reference may lead anywhere in the document, also to what stands there as a mere value (`default`, `examples`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import referencing
from jsonschema_specifications import REGISTRY as SPECIFICATIONS  # type: ignore[import-untyped]
from referencing.jsonschema import DRAFT202012
from referencing.jsonschema import SchemaRegistry as Registry

SchemaPath = tuple[str | int, ...]

REGISTRY: Final[Registry] = SPECIFICATIONS
"""The official meta-schemas: the only documents that a schema may refer to beside itself."""


MAX_WRITTEN_OUT = 100_000
"""The most schemas that a stranger's schema may come to when each reference is replaced by what it leads to."""


@dataclass(frozen=True, slots=True)
class ReachableSchema:
    """A schema that is an object, and those that it leads to.

    `is_declared` is False of one that only a reference makes a schema; nobody has looked at that as such.
    """

    contents: Mapping[str, Any]
    is_declared: bool
    leads_to: Sequence[Any]


def reachable(schema: Mapping[str, Any]) -> Iterator[ReachableSchema]:
    """Yield each schema that is an object, once.

    Raises `referencing.exceptions.Unresolvable` for a reference that leads nowhere.
    """
    root = referencing.Resource.from_contents(schema, default_specification=DRAFT202012)
    resolver = REGISTRY.with_resource("", root).resolver()
    stack = [(resolver.in_subresource(root), root)]
    referred = stack[:0]
    seen: set[int] = set()
    while stack or referred:
        is_declared = bool(stack)
        resolver, resource = stack.pop() if stack else referred.pop()
        contents = resource.contents
        if not isinstance(contents, Mapping) or id(contents) in seen:
            continue
        seen.add(id(contents))
        inner = list(resource.subresources())
        found = [
            resolver.lookup(contents[keyword])
            for keyword in ("$ref", "$dynamicRef")
            if isinstance(contents.get(keyword), str)
        ]
        yield ReachableSchema(
            contents, is_declared, [*(one.contents for one in inner), *(one.contents for one in found)]
        )
        for one in found:
            target = referencing.Resource.from_contents(one.contents, default_specification=DRAFT202012)
            referred.append((one.resolver, target))
        stack.extend((resolver.in_subresource(one), one) for one in inner)


def too_branched(schema: Mapping[str, Any], reached: Iterable[ReachableSchema]) -> SchemaPath | None:
    """Return the path to a smallest schema that comes to more than `MAX_WRITTEN_OUT`; None where there is none.

    A definition that refers to itself, over others or not, counts as it stands: nobody can write it out.
    """
    leads_to = {
        id(one.contents): [id(inner) for inner in one.leads_to if isinstance(inner, Mapping)] for one in reached
    }
    sizes: dict[int, int] = {}
    for group in _groups(leads_to):
        within = set(group)
        size = sum(1 + sum(sizes.get(inner, 1) for inner in leads_to[one] if inner not in within) for one in group)
        if size > MAX_WRITTEN_OUT:
            return places_of(schema).get(group[-1], ())
        sizes.update(dict.fromkeys(group, size))
    return None


def _groups(leads_to: Mapping[int, Sequence[int]]) -> Iterator[list[int]]:
    """Yield the strongly connected components of a graph, each after those it leads to (Tarjan's, no recursion)."""
    order: dict[int, int] = {}
    lowest: dict[int, int] = {}
    rest: dict[int, Iterator[int]] = {}
    unassigned: dict[int, None] = {}
    for start in leads_to:
        way = [start] if start not in order else []
        while way:
            node = way[-1]
            if node not in order:
                order[node] = lowest[node] = len(order)
                rest[node] = iter(leads_to[node])
                unassigned[node] = None
            for inner in rest[node]:
                if inner not in order:
                    way.append(inner)
                    break
                if inner in unassigned:
                    lowest[node] = min(lowest[node], lowest[inner])
            else:
                way.pop()
                if way:
                    lowest[way[-1]] = min(lowest[way[-1]], lowest[node])
                if lowest[node] == order[node]:
                    group: list[int] = []
                    while not group or group[-1] != node:
                        group.append(unassigned.popitem()[0])
                    yield group


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
