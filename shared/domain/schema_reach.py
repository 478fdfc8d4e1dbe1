"""All schemas that checking a value against one schema may come to: those within it, and what its references lead to.

A reference may lead anywhere in the document, also to what stands there as a mere value (`default`, `examples`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import referencing
from jsonschema_specifications import REGISTRY as SPECIFICATIONS  # type: ignore[import-untyped]
from referencing.jsonschema import DRAFT202012
from referencing.jsonschema import SchemaRegistry as Registry

REGISTRY: Final[Registry] = SPECIFICATIONS
"""The official meta-schemas: the only documents that a schema may refer to beside itself."""


def reachable(schema: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], bool]]:
    """Yield each schema that is an object, once, and whether it stands where a schema stands.

    False of one that only a reference makes a schema; nobody has looked at that as such. Raises
    `referencing.exceptions.Unresolvable` for a reference that leads nowhere.
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
        yield contents, is_declared
        for keyword in ("$ref", "$dynamicRef"):
            if isinstance(contents.get(keyword), str):
                found = resolver.lookup(contents[keyword])
                inner = referencing.Resource.from_contents(found.contents, default_specification=DRAFT202012)
                referred.append((found.resolver, inner))
        stack.extend((resolver.in_subresource(inner), inner) for inner in resource.subresources())
