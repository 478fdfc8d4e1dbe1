"""Which properties of an object a schema has evaluated, for `unevaluatedProperties` (JSON Schema 2020-12, Core 11.3).

The library finds them with Python's engine for regular expressions, which a pattern and a name can keep busy for
hours. Here names are matched as everywhere else (`shared.domain.patterns`); what is left is the library's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from referencing.jsonschema import lookup_recursive_ref

from shared.domain.patterns import is_found


def evaluated_names(validator: Any, instance: Mapping[str, Any], schema: Any) -> set[str]:
    """Return the names of `instance` that `schema`, or what it applies to the same object, says something about.

    `validator` is the library's, standing where `schema` does. Raises as the library does for what does not resolve.
    """
    if not isinstance(schema, Mapping):
        return set()
    names = {name for name in schema.get("properties", ()) if name in instance}
    patterns = schema.get("patternProperties", ())
    names.update(name for name in instance if any(is_found(pattern, name) for pattern in patterns))
    for keyword in ("additionalProperties", "unevaluatedProperties"):
        if keyword in schema:
            rest = schema[keyword]
            names.update(name for name, value in instance.items() if _is_valid(validator, value, rest))
    for where, inner in (*_referred(validator, schema), *_applied(validator, instance, schema)):
        names |= evaluated_names(where, instance, inner)
    return names


def _referred(validator: Any, schema: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    resolver = validator._resolver  # the library hands it to its own keywords in no other way
    found = [resolver.lookup(schema[keyword]) for keyword in ("$ref", "$dynamicRef") if keyword in schema]
    if "$recursiveRef" in schema:
        found.append(lookup_recursive_ref(resolver))
    for one in found:
        yield validator.evolve(schema=one.contents, _resolver=one.resolver), one.contents


def _applied(validator: Any, instance: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    for name, inner in schema.get("dependentSchemas", {}).items():
        if name in instance:
            yield validator, inner
    for keyword in ("allOf", "oneOf", "anyOf"):
        for inner in schema.get(keyword, ()):
            if _is_valid(validator, instance, inner):
                yield validator, inner
    if "if" in schema:
        holds = validator.evolve(schema=schema["if"]).is_valid(instance)
        for keyword in ("if", "then") if holds else ("else",):
            if keyword in schema:
                yield validator, schema[keyword]


def _is_valid(validator: Any, value: Any, schema: Any) -> bool:
    return next(iter(validator.descend(value, schema)), None) is None
