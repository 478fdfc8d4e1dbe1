"""Forms from JSON Schema: a field for each property that a person can fill in, and JSON for all others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from planq.shared.domain.errors import InvalidRequest
from planq.shared.domain.values.decoding import decode, finite

_PREFIX = "field."
_MOST_OPTIONS = 100
_TYPES = {"string": "text", "integer": "integer", "number": "number", "boolean": "boolean"}


class FormField(NamedTuple):
    """One field, by its `name` in the form: `text`, `integer`, `number`, `boolean`, `options` or `json`."""

    name: str
    label: str
    hint: str
    kind: str
    is_required: bool
    options: list[str]
    value: str


def fields_in(schema: Any, given: Any = None) -> list[FormField]:
    """Return the fields of a form for the schema of an object, or one of JSON, filled with what is `given`."""
    if schema is None:
        return []
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict) or not properties:
        return (
            [] if _takes_nothing(schema) else [FormField(_PREFIX, "Content", "JSON", "json", True, [], _text(given))]
        )
    required = schema.get("required")
    needed = set(required) if isinstance(required, list) and all(isinstance(one, str) for one in required) else set()
    known = given if isinstance(given, dict) else {}
    return [_field(name, one, name in needed, known.get(name)) for name, one in properties.items()]


def _takes_nothing(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "object"


def _field(name: str, schema: Any, is_required: bool, given: Any) -> FormField:
    known = schema if isinstance(schema, dict) else {}
    options = known.get("enum")
    value = given if given is not None else known.get("default")
    label = str(known.get("title") or name)
    hint = str(known.get("description") or "")
    if isinstance(options, list) and 0 < len(options) <= _MOST_OPTIONS:
        texts = [_text(one) for one in options]
        return FormField(_PREFIX + name, label, hint, "options", is_required, texts, _text(value))
    kind = _TYPES.get(known["type"], "json") if isinstance(known.get("type"), str) else "json"
    return FormField(_PREFIX + name, label, hint, kind, is_required, [], _text(value))


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def content_of(schema: Any, fields: Mapping[str, str]) -> Any:
    """Return what a person filled in, as the schema's types want it; a field left empty is left out.

    Raises `InvalidRequest` where a field cannot be read; whether it fits the schema the API decides.
    """
    wanted = fields_in(schema)
    if [one.name for one in wanted] == [_PREFIX]:
        return _read(wanted[0], fields.get(_PREFIX, ""))
    properties = schema.get("properties", {}) if isinstance(schema, dict) else {}
    found: dict[str, Any] = {}
    for one in wanted:
        text = fields.get(one.name, "")
        if one.kind == "boolean":
            found[one.name.removeprefix(_PREFIX)] = text == "true"
        elif one.kind == "options" and text:
            options = properties[one.name.removeprefix(_PREFIX)]["enum"]
            found[one.name.removeprefix(_PREFIX)] = next((any_ for any_ in options if _text(any_) == text), text)
        elif text:
            found[one.name.removeprefix(_PREFIX)] = _read(one, text)
    return found


def _read(field: FormField, text: str) -> Any:
    if field.kind == "text":
        return text
    try:
        if field.kind == "integer":
            return int(text)
        return finite(text) if field.kind == "number" else decode(text, is_unique=True)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{field.label}: expected {_NAMES[field.kind]}, found something else: {error}") from None


_NAMES = {"integer": "a whole number", "number": "a number", "json": "JSON"}
