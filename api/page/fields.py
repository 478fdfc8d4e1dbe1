"""Forms from JSON Schema: a field for each property that a person can fill in, and JSON for all others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from planq.api.http.exchange import HttpRefusal, decode_body
from planq.shared.platform.errors import InvalidRequest, capped
from planq.shared.platform.values.decoding import finite
from planq.shared.subjects.tenants.secrecy import secret_fields

_PREFIX = "field."
_MOST_OPTIONS = 100
_TYPES = {"string": "text", "integer": "integer", "number": "number", "boolean": "boolean"}


class FormField(NamedTuple):
    """One field by its `name`: `text`, `password`, `integer`, `number`, `boolean`, `options` or `json`."""

    name: str
    label: str
    hint: str
    kind: str
    is_required: bool
    options: list[str]
    value: str


def fields_in(schema: Any, given: Any = None, *, is_secret: bool = False) -> list[FormField]:
    """Return the fields of a form for the schema of an object, or one of JSON, filled with what is `given`.

    Of a question that `is_secret` the secret texts are passwords.
    """
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
    fields = [_field(name, one, name in needed, known.get(name)) for name, one in properties.items()]
    secret = {_PREFIX + name for name in (secret_fields(schema) or properties)} if is_secret else ()
    return [
        one._replace(kind="password", value="") if one.name in secret and one.kind == "text" else one
        for one in fields
    ]


def with_fields(question: dict[str, Any]) -> dict[str, Any]:
    """Return a question with the `fields` of its form."""
    return {**question, "fields": fields_in(question["schema"], is_secret=question["is_secret"])}


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

    Raises as `json_in` does, and `InvalidRequest` where a field is no number; whether it fits the schema the API
    decides. It computes for as long as a field is: call it off the loop.
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
    if field.kind in ("text", "password"):
        return text
    if field.kind == "json":
        return json_in(text, field.label)
    is_whole = field.kind == "integer"
    try:
        value = int(text) if is_whole else finite(text)
        if is_whole and not -(2**63) <= value < 2**64:
            raise ValueError("more than 64 bits")
    except ValueError as error:
        expected = "a whole number" if is_whole else "a number"
        raise InvalidRequest(
            f"{field.label}: expected {expected}, found something else: {capped(str(error), 200)}"
        ) from None
    return value


def json_in(text: str, name: str) -> Any:
    """Return the value of JSON in a field, within the bounds of a body; raises as `decode_body` does."""
    try:
        return decode_body(text.encode("utf-8", "surrogatepass"), name="it")
    except HttpRefusal as error:
        detail = f"{name}: expected JSON; {error.detail}"
        raise HttpRefusal(error.status_code, error.code, detail, **error.members) from None
