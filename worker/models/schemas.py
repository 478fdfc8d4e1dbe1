"""A tool's input schema in the form that a provider takes; planq checks arguments against the schema as it was.

Preconditions: schemas are JSON objects that are not nested deeply (`shared/agentic/schema` has refused the others).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from planq.shared.agentic.models.adaptations import Adaptation

_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_SEVERAL = ("anyOf", "oneOf", "allOf", "prefixItems")
_ONE = ("items", "additionalProperties", "contains", "if", "then", "else", "not", "propertyNames")
_DEFINITIONS = ("$defs", "definitions")

_MAX_NODES = 20_000
"""Maximum number of schemas that inlining makes of one; beyond it a reference takes anything."""

_MAX_DEPTH = 12
"""Maximum nesting of inlined references; a recursive schema takes anything below it."""

_PLAIN = ("type", "description", "properties", "required", "items", "enum", "anyOf")
"""The keywords that every provider takes."""


def mapped(schema: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Return a copy of `schema` with `change` applied to each schema directly below it."""
    made = dict(schema)
    for keyword in _BY_NAME:
        if isinstance(made.get(keyword), Mapping):
            made[keyword] = {name: change(inner) for name, inner in made[keyword].items()}
    for keyword in _SEVERAL:
        if isinstance(made.get(keyword), list):
            made[keyword] = [change(inner) for inner in made[keyword]]
    for keyword in _ONE:
        if keyword in made:
            inner = made[keyword]
            made[keyword] = [change(one) for one in inner] if isinstance(inner, list) else change(inner)
    return made


def opened(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return `schema` with objects without listed properties marked open; servers would keep them empty."""
    made = mapped(schema, lambda inner: opened(inner) if isinstance(inner, Mapping) else inner)
    if is_object(made) and not made.get("properties"):
        made.setdefault("additionalProperties", True)
    return made


def is_object(schema: Mapping[str, Any]) -> bool:
    kind = schema.get("type")
    return kind == "object" or (isinstance(kind, list) and "object" in kind)


def sent_schema(schema: Mapping[str, Any], adaptations: Collection[Adaptation]) -> dict[str, Any]:
    """Return the schema of a tool's arguments as it is sent: an object without alternatives at its top."""
    made = dict(schema)
    if Adaptation.INLINE_REFS in adaptations or Adaptation.PLAIN_SCHEMAS in adaptations or "$ref" in made:
        made = inlined(made)
    made = flat_root(opened(made))
    return plain_schema(made) if Adaptation.PLAIN_SCHEMAS in adaptations else made


def resolved(root: Mapping[str, Any], pointer: Any) -> Any:
    """Return what a `$ref` refers to inside its document, None where it is nothing there."""
    if not isinstance(pointer, str) or not pointer.startswith("#"):
        return None
    found: Any = root
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping) and key in found:
            found = found[key]
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            return None
    return found


def inlined(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema with each `$ref` inlined, and no definitions; a recursive one accepts anything."""
    left = _MAX_NODES

    def replaced(inner: Any, depth: int) -> Any:
        nonlocal left
        if not isinstance(inner, Mapping):
            return inner
        left -= 1
        if "$ref" in inner:
            found = resolved(schema, inner["$ref"])
            beside = {key: value for key, value in inner.items() if key != "$ref"}
            if not isinstance(found, Mapping) or depth >= _MAX_DEPTH or left < 0:
                return mapped(beside, lambda one: replaced(one, depth + 1))
            return replaced({**found, **beside}, depth + 1)
        made = {key: value for key, value in inner.items() if key not in _DEFINITIONS}
        return mapped(made, lambda one: replaced(one, depth))

    made = replaced(schema, 0)
    assert isinstance(made, dict)
    return made


def flat_root(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the alternatives at a schema's top, which OpenAI and Anthropic refuse; optional unless all need it."""
    made = {key: value for key, value in schema.items() if key not in ("oneOf", "anyOf", "allOf", "not", "enum")}
    properties: dict[str, Any] = {}
    required = list(made.get("required") or ())
    for keyword in ("allOf", "anyOf", "oneOf"):
        for branch in schema.get(keyword) or ():
            if isinstance(branch, Mapping):
                flat = flat_root(branch)
                properties |= flat.get("properties") or {}
                required += (flat.get("required") or ()) if keyword == "allOf" else ()
    if properties:
        made["properties"] = {**properties, **(made.get("properties") or {})}
    if required:
        made["required"] = list(dict.fromkeys(required))
    made["type"] = "object"
    return made


def plain_schema(schema: Any) -> dict[str, Any]:
    """Return a schema without references in the keywords that every provider takes, if they can express it."""
    if not isinstance(schema, Mapping):
        return {}
    made = _without_alternatives(_with_all_of(schema))
    if "const" in made:
        made["enum"] = [made["const"]]
    kept = {key: made[key] for key in _PLAIN if key in made}
    if not all(isinstance(value, str) for value in kept.get("enum", ())):
        del kept["enum"]  # Google takes texts alone
    if "properties" in kept:
        kept["properties"] = {name: plain_schema(inner) for name, inner in kept["properties"].items()}
    required = [name for name in kept.pop("required", ()) if name in kept.get("properties", {})]
    if required:
        kept["required"] = required
    if kept.get("type") == "array" or "items" in kept:
        kept["items"] = plain_schema(kept.get("items"))
    if "anyOf" in kept:
        kept["anyOf"] = [plain_schema(inner) for inner in kept["anyOf"]]
    return kept


def _with_all_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    made = dict(schema)
    for branch in made.pop("allOf", None) or ():
        if isinstance(branch, Mapping):
            inner = _with_all_of(branch)
            properties = {**inner.get("properties", {}), **made.get("properties", {})}
            made = {**inner, **made, **({"properties": properties} if properties else {})}
    return made


def _without_alternatives(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema whose `type` is one name, and whose alternatives are in `anyOf` if there are several."""
    made = dict(schema)
    branches = [one for keyword in ("anyOf", "oneOf") for one in made.pop(keyword, None) or ()]
    kinds = made.get("type")
    if isinstance(kinds, list):
        del made["type"]
        branches = branches or [{"type": kind} for kind in kinds]
    real = [one for one in branches if isinstance(one, Mapping) and one.get("type") != "null"]
    if len(real) == 1:
        return _without_alternatives({**made, **real[0]})
    return {**made, "anyOf": real} if real else made
