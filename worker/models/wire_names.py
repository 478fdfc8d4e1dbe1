"""Names of tools and of their properties as a provider accepts them, and back."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from planq.shared.agentic.models.adaptations import Adaptation
from planq.shared.platform.errors import capped
from planq.worker.models.schemas import mapped, resolved, sent_schema

_MAX_NAME_CHARS = 64
_FOREIGN_CHARS = re.compile(r"[^A-Za-z0-9_-]")
"""OpenAI's rule for the names of functions, the strictest of all."""

_PROPERTY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
"""Anthropic's and Bedrock's rule for properties."""

_FOREIGN_RUN = re.compile(r"[^A-Za-z0-9_.-]+")
_NAMELESS = "argument"
_MAX_SHOWN_CHARS = 200
_IN_PLACE = ("anyOf", "oneOf", "allOf")
_CONDITIONAL = ("if", "then", "else")


class WireNames:
    """The tools of one request: their names, and the schemas of their arguments, as they are sent."""

    def __init__(self, tools: Iterable[Mapping[str, Any]], adaptations: Collection[Adaptation] = ()) -> None:
        self._out: dict[str, str] = {}
        self._back: dict[str, str] = {}
        self._schemas: dict[str, dict[str, Any]] = {}
        self._properties: dict[str, PropertyNames] = {}
        for tool in tools:
            name = str(tool["name"])
            wire, number = _clean(name), 1
            while wire in self._back:
                number += 1
                wire = f"{_clean(name)[: _MAX_NAME_CHARS - 5]}_{number}"
            self._out[name], self._back[wire] = wire, name
            schema = sent_schema(tool["parameters"], adaptations)
            if Adaptation.PLAIN_PROPERTIES in adaptations and any(foreign_properties(schema)):
                self._properties[name] = PropertyNames(schema)
                schema = self._properties[name].schema
            self._schemas[name] = schema

    @property
    def has_others(self) -> bool:
        """True where a tool or a property has another name on the wire."""
        return bool(self._properties) or any(wire != name for wire, name in self._back.items())

    def out(self, name: str) -> str:
        """Return the name to send; that of a tool which is not offered becomes one that could be."""
        return self._out.get(name) or _clean(name)

    def back(self, wire: str) -> str:
        return self._back.get(wire, wire)

    def schema(self, name: str) -> dict[str, Any]:
        return self._schemas[name]

    def arguments_out(self, name: str, arguments: Any) -> Any:
        """Return the arguments of an earlier call with the properties' names that the schema has on the wire."""
        properties = self._properties.get(name)
        return arguments if properties is None else properties.out(arguments)

    def arguments_back(self, name: str, arguments: Any) -> Any:
        """Return the arguments of a model's call with the properties' own names; `name` is the tool's own."""
        properties = self._properties.get(name)
        return arguments if properties is None else properties.back(arguments)


class PropertyNames:
    """The listed properties of one tool's schema that a provider refuses, and their names on the wire."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        own = set(_property_names(schema))
        self._wire: dict[str, str] = {}
        for name in sorted(own):
            if not _PROPERTY.fullmatch(name):
                self._wire[name] = _free_name(name, own | set(self._wire.values()))
        self._back = {wire: name for name, wire in self._wire.items()}
        self._own_schema = schema
        self.schema: dict[str, Any] = self._renamed(schema)

    def out(self, arguments: Any) -> Any:
        return _translated(arguments, [self._own_schema], self._own_schema, self._wire)

    def back(self, arguments: Any) -> Any:
        return _translated(arguments, [self.schema], self.schema, self._back)

    def _renamed(self, schema: Any) -> Any:
        if not isinstance(schema, Mapping):
            return schema
        made = mapped(schema, self._renamed)
        if isinstance(made.get("properties"), Mapping):
            made["properties"] = {
                self._wire.get(name, name): _told(inner, name) if name in self._wire else inner
                for name, inner in made["properties"].items()
            }
        if isinstance(made.get("required"), list):
            made["required"] = [self._wire.get(name, name) for name in made["required"]]
        for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
            made.pop(keyword, None)
        if isinstance(made.get("$ref"), str):
            made["$ref"] = self._renamed_pointer(made["$ref"])
        return made

    def _renamed_pointer(self, pointer: str) -> str:
        parts = pointer.split("/")
        for place in range(1, len(parts)):
            name = parts[place].replace("~1", "/").replace("~0", "~")
            if parts[place - 1] == "properties":
                parts[place] = self._wire.get(name, parts[place])
        return "/".join(parts)


def foreign_properties(schema: Any) -> Iterator[str]:
    """Yield the names of properties in a schema that not every provider takes."""
    return (name for name in _property_names(schema) if not _PROPERTY.fullmatch(name))


def _clean(name: str) -> str:
    return _FOREIGN_CHARS.sub("_", name)[:_MAX_NAME_CHARS] or "_"


def _free_name(name: str, taken: Collection[str]) -> str:
    clean = _FOREIGN_RUN.sub("_", name).strip("_")[: _MAX_NAME_CHARS - 5] or _NAMELESS
    wire, number = clean, 1
    while wire in taken:
        number += 1
        wire = f"{clean}_{number}"
    return wire


def _told(schema: Any, name: str) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    described = f"Its name is `{capped(name, _MAX_SHOWN_CHARS)}`. {schema.get('description') or ''}"
    return {**schema, "description": described.strip()}


def _property_names(schema: Any) -> Iterator[str]:
    stack = [schema]
    while stack:
        item = stack.pop()
        if isinstance(item, Mapping):
            if isinstance(item.get("properties"), Mapping):
                yield from item["properties"]
            mapped(item, lambda inner: stack.append(inner))
    return


def _translated(
    value: Any, schemas: Sequence[Mapping[str, Any]], root: Mapping[str, Any], names: Mapping[str, str]
) -> Any:
    if not isinstance(value, (Mapping, list)):
        return value
    possible = list(_alternatives(schemas, root))
    if isinstance(value, list):
        items = [one["items"] for one in possible if isinstance(one.get("items"), Mapping)]
        return [_translated(item, items, root, names) for item in value]
    listed = [one["properties"] for one in possible if isinstance(one.get("properties"), Mapping)]
    others = [one["additionalProperties"] for one in possible if isinstance(one.get("additionalProperties"), Mapping)]
    made = {}
    for key, inner in value.items():
        own = [properties[key] for properties in listed if key in properties]
        below = [one for one in own if isinstance(one, Mapping)] if own else others
        made[names.get(key, key) if own else key] = _translated(inner, below, root, names)
    return made


def _alternatives(schemas: Sequence[Mapping[str, Any]], root: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield every schema that could describe a value of `schemas`: what they refer to and combine."""
    seen: set[int] = set()
    stack: list[Any] = list(schemas)
    while stack:
        schema = stack.pop()
        if not isinstance(schema, Mapping) or id(schema) in seen:
            continue
        seen.add(id(schema))
        yield schema
        if "$ref" in schema:
            stack.append(resolved(root, schema["$ref"]))
        for keyword in _IN_PLACE:
            stack += schema.get(keyword) or ()
        stack += [schema[keyword] for keyword in _CONDITIONAL if keyword in schema]
