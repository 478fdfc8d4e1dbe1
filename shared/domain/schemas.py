"""JSON Schema (2020-12, or the draft that a schema names): compiled once, checked before use, never fetched.

A schema is a value: it must not be changed after its first use here. No `$ref` ever leaves the schema: the registry
holds the official meta-schemas and refuses all else. Values are untrusted: depth is looked at before anything
recurses, and messages quote short excerpts only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, Final

import jsonschema
from jsonschema import validators as dialects
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.protocols import Validator
from referencing.exceptions import Unresolvable

from shared.domain.errors import Misconfigured, capped
from shared.domain.patterns import is_found, needs_backtracking
from shared.domain.quick_check import quick_check
from shared.domain.references import Tokens, to_pointer
from shared.domain.schema_reach import REGISTRY, reachable
from shared.domain.unevaluated import evaluated_names

MAX_DEPTH = 100
"""Deepest nesting of a value or a schema. The validator recurses, and Python allows it about 1000 frames."""

MAX_VIOLATIONS = 20
"""How many violations of one value are reported; whoever repairs twenty finds the rest on the next try."""

_COMPILED_KEPT = 1_024
_EXCERPT_CHARS = 80


class Unknown:
    """Stands for a part of a value that is not known yet: no schema is taken to forbid it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<not known yet>"


UNKNOWN: Final = Unknown()


@dataclass(frozen=True, slots=True)
class Violation:
    """One way in which a value breaks a schema; `pointer` (RFC 6901) leads to the offending part of the value."""

    pointer: str
    keyword: str
    message: str

    def render(self) -> str:
        """Return the sentence with its place in front."""
        return f"{self.pointer}: {self.message}" if self.pointer else self.message


class Schema:
    """A schema that has been checked; make one with `compile_schema`."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        dialect = _strict_dialect(dialects.validator_for(schema, default=jsonschema.Draft202012Validator))
        self._strict: Validator = dialect(schema, registry=REGISTRY)
        self._partial: Validator = _partial_dialect(dialect)(schema, registry=REGISTRY)
        self._is_surely_valid = quick_check(schema, UNKNOWN)

    def violations(self, value: Any, *, partial: bool = False, limit: int = MAX_VIOLATIONS) -> list[Violation]:
        """Return at most `limit` violations, at most one for each place and keyword; empty when `value` is valid.

        With `partial`, parts of `value` may be `UNKNOWN`: what depends on them is taken to be satisfied.
        """
        if is_deeper_than(value, MAX_DEPTH):
            return [Violation("", "depth", f"nested more than {MAX_DEPTH} levels deep; expected a flatter value")]
        if self._is_surely_valid is not None and self._is_surely_valid(value):
            return []
        validator = self._partial if partial else self._strict
        found: dict[tuple[str, str], Violation] = {}
        try:
            for error in islice(validator.iter_errors(value), 10 * limit):
                violation = _describe(error)
                found.setdefault((violation.pointer, violation.keyword), violation)
                if len(found) >= limit:
                    break
        except RecursionError:
            return [Violation("", "depth", "nested too deeply to be checked against its schema")]
        except Unresolvable as error:
            absent = capped(str(error.ref), 100)
            return [Violation("", "$ref", f"its schema refers to {absent!r}, which is not in the schema")]
        except ArithmeticError:
            return [Violation("", "number", "a number is too large to be checked against its schema")]
        return list(found.values())


def check_schema(schema: Any, place: str, *, is_trusted: bool = True) -> None:
    """Return when `schema` can be used as a tool's schema; `place` says to people where it comes from.

    Raises `Misconfigured` naming the place and the fault: no object, a top level of another type than `object`, not
    valid JSON Schema, nested too deeply, a `$ref` that does not resolve within the schema, or, from those who are not
    trusted, a pattern that only Python's engine can read.
    """
    if not isinstance(schema, Mapping):
        raise Misconfigured(f"{place}: expected a JSON Schema object, found {excerpt(schema)}")
    if schema.get("type", "object") != "object":
        raise Misconfigured(f'{place}: expected "type": "object" at the top, found {excerpt(schema["type"])}')
    if is_deeper_than(schema, MAX_DEPTH):
        raise Misconfigured(f"{place}: the schema is nested more than {MAX_DEPTH} levels deep")
    dialect = dialects.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        dialect.check_schema(dict(schema))
        for contents, is_declared in reachable(schema):
            if not is_declared:
                dialect.check_schema(dict(contents))
            if not is_trusted:
                _check_patterns(contents, place)
    except SchemaError as error:
        where = _pointer(error) or "the top"
        raise Misconfigured(f"{place}: not a valid JSON Schema at {where}: {capped(error.message, 200)}") from None
    except Unresolvable as error:
        raise Misconfigured(
            f"{place}: $ref {capped(str(error.ref), 100)!r} is not in the schema; references to other documents "
            "are never followed, so put what it names under $defs"
        ) from None
    except RecursionError:
        raise Misconfigured(f"{place}: the schema is nested too deeply") from None


def compile_schema(schema: Mapping[str, Any]) -> Schema:
    """Return the checked form of `schema`; the same text gives the same object, so that it is compiled once.

    Raises `Misconfigured` as `check_schema` does, or when the schema is no JSON.
    """
    kept = _seen.get(id(schema))
    if kept is not None:
        return kept[1]
    try:
        compiled = _compiled(json.dumps(schema))
    except (TypeError, ValueError, RecursionError) as error:
        raise Misconfigured(f"a schema is no JSON: {capped(str(error), 200)}") from None
    if len(_seen) >= _COMPILED_KEPT:
        _seen.clear()
    _seen[id(schema)] = (schema, compiled)
    return compiled


def violations(schema: Mapping[str, Any], value: Any) -> list[Violation]:
    """Return how `value` breaks `schema`; see `Schema.violations`."""
    return compile_schema(schema).violations(value)


def is_deeper_than(value: Any, limit: int) -> bool:
    """True when containers are nested in `value` more than `limit` deep; a scalar has depth 0. Does not recurse."""
    level = [value] if isinstance(value, (dict, list, tuple)) else []
    for _ in range(limit):
        if not level:
            return False
        level = [
            child
            for item in level
            for child in (item.values() if isinstance(item, dict) else item)
            if isinstance(child, (dict, list, tuple))
        ]
    return bool(level)


def excerpt(value: Any, limit: int = _EXCERPT_CHARS) -> str:
    """Return a short, quoted description of an untrusted value, for messages."""
    if isinstance(value, str):
        shown = json.dumps(value[:limit], ensure_ascii=False)
        return shown if len(value) <= limit else f"{shown}… ({len(value)} characters)"
    if isinstance(value, Mapping):
        names = ", ".join(capped(repr(name), 30) for name in islice(value, 5))
        return f"an object ({names}{', …' if len(value) > 5 else ''})" if value else "an empty object"
    if isinstance(value, (list, tuple)):
        return f"an array of {len(value)}"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 256:
        return "a number of more than 256 bits"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return capped(repr(value), limit)


def rebase(schema: Any, base: str) -> Any:
    """Return a copy of `schema` for use at the pointer `base` of another schema: its `#…` references follow it there.

    `rebase({"$ref": "#/$defs/A"}, "/properties/x")` refers to `#/properties/x/$defs/A`.
    """
    if isinstance(schema, Mapping):
        return {
            key: f"#{base}{value[1:]}"
            if key == "$ref" and isinstance(value, str) and (value == "#" or value.startswith("#/"))
            else rebase(value, base)
            for key, value in schema.items()
        }
    return [rebase(item, base) for item in schema] if isinstance(schema, list) else schema


_seen: dict[int, tuple[Mapping[str, Any], Schema]] = {}
"""Schemas by identity, to spare their text on every use. The schema is kept with it: no other can get its id."""


@lru_cache(maxsize=_COMPILED_KEPT)
def _compiled(text: str) -> Schema:
    schema = json.loads(text)
    check_schema(schema, "schema")
    return Schema(schema)


def _check_patterns(contents: Mapping[str, Any], place: str) -> None:
    named = contents.get("patternProperties")
    for pattern in (contents.get("pattern"), *(named if isinstance(named, Mapping) else ())):
        if isinstance(pattern, str) and needs_backtracking(pattern):
            raise Misconfigured(
                f"{place}: the pattern {excerpt(pattern)} needs look-around or back-references, which may never end; "
                "write it without"
            )


def _pointer(error: ValidationError | SchemaError) -> str:
    tokens: Tokens = None
    for token in error.absolute_path:
        tokens = (tokens, token)
    return to_pointer(tokens)


def _describe(error: ValidationError) -> Violation:
    error = _of_what_may_be_null(error)
    keyword = str(error.validator) if error.validator is not None else "false"
    value: Any = error.instance
    rule: Any = error.validator_value
    match keyword:
        case "type":
            wanted = rule if isinstance(rule, str) else " or ".join(map(str, rule))
            message = f"expected {wanted}, found {excerpt(value)}"
        case "required":
            absent = [name for name in rule if name not in value]
            message = f"required but missing: {', '.join(capped(repr(name), 60) for name in absent)}"
        case "additionalProperties" | "unevaluatedProperties":
            message = f"{capped(error.message, 200)}; {_allowed(error)}"
        case "enum":
            message = f"expected one of {', '.join(excerpt(item) for item in rule[:20])}; found {excerpt(value)}"
        case "oneOf" if all(one.keys() == {"required"} for one in rule if isinstance(one, Mapping)):
            names = " or ".join(", ".join(map(repr, one["required"])) for one in rule if isinstance(one, Mapping))
            message = f"expected exactly one of {capped(names, 200)}; found {excerpt(value)}"
        case "anyOf" | "oneOf":
            message = f"fits none, or more than one, of {len(rule)} alternatives; found {excerpt(value)}"
        case "false":
            message = f"nothing is allowed here; found {excerpt(value)}"
        case _:
            message = f"expected {keyword} {excerpt(rule)}, found {excerpt(value)}"
    return Violation(_pointer(error), keyword, capped(message, 500))


def _of_what_may_be_null(error: ValidationError) -> ValidationError:
    """Return what is wrong by the one alternative to null, which tells more than that no alternative fits."""
    if error.validator != "anyOf":
        return error
    alternatives: Any = error.validator_value
    others = [index for index, one in enumerate(alternatives) if one != {"type": "null"}]
    if len(others) != 1 or len(alternatives) != 2:
        return error
    return next((inner for inner in error.context or () if inner.schema_path[0] == others[0]), error)


def _allowed(error: ValidationError) -> str:
    schema: Any = error.schema
    known = schema.get("properties", {})
    return f"known properties: {', '.join(map(repr, islice(known, 20))) or 'none'}"


_extend: Any = dialects.extend
"""The library leaves this function without types."""

_WHOLE_VALUE = frozenset(
    {"const", "contains", "enum", "if", "not", "oneOf", "unevaluatedItems", "unevaluatedProperties", "uniqueItems"}
)
"""Keywords whose verdict can turn with any part of the value, so that one unknown part suspends them."""


@lru_cache(maxsize=16)
def _strict_dialect(dialect: Any) -> Any:
    own = {
        "uniqueItems": _unique_items,
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties(dialect.VALIDATORS["additionalProperties"]),
        "unevaluatedProperties": _unevaluated_properties,
    }
    return _extend(dialect, {name: check for name, check in own.items() if name in dialect.VALIDATORS})


@lru_cache(maxsize=16)
def _partial_dialect(dialect: Any) -> Any:
    return _extend(dialect, {name: _excusing(name, check) for name, check in dialect.VALIDATORS.items()})


def _excusing(keyword: str, check: Any) -> Any:
    def excused(validator: Any, rule: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        if instance is UNKNOWN:
            return
        if keyword in _WHOLE_VALUE and _holds_unknown(instance):
            if keyword == "oneOf":
                yield from validator.VALIDATORS["anyOf"](validator, rule, instance, schema) or ()
            return
        yield from check(validator, rule, instance, schema) or ()

    return excused


def _holds_unknown(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_holds_unknown, value.values()))
    return any(map(_holds_unknown, value)) if isinstance(value, list) else value is UNKNOWN


def _pattern(validator: Any, rule: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(instance, "string") and not is_found(rule, instance):
        yield ValidationError(f"does not match {rule!r}")


def _pattern_properties(validator: Any, rule: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(instance, "object"):
        for pattern, inner in rule.items():
            for name, value in instance.items():
                if is_found(pattern, name):
                    yield from validator.descend(value, inner, path=name, schema_path=pattern)


def _additional_properties(check: Any) -> Any:
    """Return the library's check without its own way to match names: those that a pattern matches are known to it."""

    def checked(validator: Any, rule: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        patterns = schema.get("patternProperties")
        if patterns and validator.is_type(instance, "object"):
            known = {name: True for name in instance if any(is_found(pattern, name) for pattern in patterns)}
            rest = {name: inner for name, inner in schema.items() if name != "patternProperties"}
            schema = {**rest, "properties": {**known, **schema.get("properties", {})}}
        yield from check(validator, rule, instance, schema) or ()

    return checked


def _unevaluated_properties(validator: Any, rule: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    # The library's check, for a schema that says nothing else: it knows the names that are evaluated elsewhere.
    if validator.is_type(instance, "object"):
        elsewhere = {name: inner for name, inner in schema.items() if name != "unevaluatedProperties"}
        known = {"properties": dict.fromkeys(evaluated_names(validator, instance, elsewhere), True)}
        check: Any = jsonschema.Draft202012Validator.VALIDATORS["unevaluatedProperties"]
        yield from check(validator, rule, instance, {**known, "unevaluatedProperties": rule})


def _unique_items(validator: Any, rule: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    # The library compares every pair when the items cannot be sorted: minutes for a large array of objects.
    if not rule or not validator.is_type(instance, "array"):
        return
    seen: set[str] = set()
    for item in instance:
        key = json.dumps(_comparable(item), sort_keys=True)
        if key in seen:
            yield ValidationError("has non-unique elements")
            return
        seen.add(key)


def _comparable(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _comparable(item) for key, item in value.items()}
    return [_comparable(item) for item in value] if isinstance(value, list) else value
