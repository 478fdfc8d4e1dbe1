"""JSON Schema (2020-12, or the draft that a schema names): compiled once, checked before use, never fetched.

A schema is a value: it must not be changed after its first use here. No `$ref` ever leaves the schema: the registry
holds the official meta-schemas and refuses all else. Values are untrusted: depth is looked at before anything
recurses, and messages quote short excerpts only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from typing import Any

import jsonschema
import jsonschema_rs
from jsonschema import validators as dialects
from referencing.exceptions import Unresolvable

from planq.shared.agentic.schema.patterns import are_too_large, is_readable, needs_backtracking
from planq.shared.agentic.schema.quick_check import quick_check
from planq.shared.agentic.schema.reach import MAX_WRITTEN_OUT, ReachableSchema, reachable, too_branched
from planq.shared.agentic.schema.validators import (
    MAX_STEPS,
    MAX_VIOLATIONS,
    UNKNOWN,
    BoundedSchema,
    Fault,
    Steps,
    TooCostly,
)
from planq.shared.platform.errors import Misconfigured, capped
from planq.shared.platform.values.defects import Defect
from planq.shared.platform.values.describe import MAX_DEPTH, excerpt, is_deeper_than
from planq.shared.platform.values.pointers import Tokens, to_pointer

__all__ = [
    "MAX_DEPTH",
    "MAX_STEPS",
    "MAX_VIOLATIONS",
    "UNKNOWN",
    "Schema",
    "Steps",
    "check_schema",
    "compile_schema",
    "excerpt",
    "is_deeper_than",
    "rebase",
    "schema_defects",
    "violations",
]

_COMPILED_KEPT = 1_024


@contextmanager
def _deep_lookups() -> Iterator[None]:
    """Raise RecursionError where a reference is looked up at the very end of the interpreter's stack.

    The library's registry is a map in Rust (rpds), which panics when the comparison of two keys raises; a panic is a
    BaseException, which no handler of errors would see, and its class cannot be imported.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise RecursionError from error


class Schema:
    """A schema that has been checked; make one with `compile_schema`."""

    def __init__(self, schema: Mapping[str, Any], *, remembers: bool = True) -> None:
        self._strict = BoundedSchema(schema, partial=False, remembers=remembers)
        self._partial = BoundedSchema(schema, partial=True, remembers=remembers)
        self._quick = quick_check(schema, partial=False)
        self._quick_partial = quick_check(schema, partial=True)

    def violations(
        self,
        value: Any,
        *,
        partial: bool = False,
        steps: Steps | None = None,
        parts: int | None = None,
    ) -> list[Defect]:
        """Return at most `MAX_VIOLATIONS`, at most one for each place and keyword; empty when `value` is valid.

        With `partial`, parts of `value` may be `UNKNOWN`: what depends on them is taken to be satisfied. It takes at
        most `steps`, which several checks may share, or `MAX_STEPS`; what needs more is one violation of `cost`. Who
        has seen that `value` is no deeper than `MAX_DEPTH` hands over how many `parts` it has at most.
        """
        if parts is None:
            parts = _parts(value)
        if parts is None:
            return [Defect("", "depth", f"nested more than {MAX_DEPTH} levels deep; expected a flatter value")]
        quick, bounded = (self._quick_partial, self._partial) if partial else (self._quick, self._strict)
        try:
            if parts <= quick.most_parts and quick.is_valid(value):
                return []
        except ValueError:  # no JSON, of which the bounded check says what is wrong
            pass
        try:
            with _deep_lookups():
                faults = bounded.faults(value, Steps() if steps is None else steps)
        except TooCostly:
            return [Defect("", "cost", _COSTLY)]
        except RecursionError:
            return [Defect("", "depth", "nested too deeply to be checked against its schema")]
        except Unresolvable as error:
            absent = capped(str(error.ref), 100)
            return [Defect("", "$ref", f"its schema refers to {absent!r}, which is not in the schema")]
        except ArithmeticError:
            return [Defect("", "number", "a number is too large to be checked against its schema")]
        found: dict[tuple[str, str], Defect] = {}
        for violation in map(_describe, faults):
            found.setdefault((violation.pointer, violation.code), violation)
        return list(found.values())[:MAX_VIOLATIONS]


def check_schema(schema: Any, place: str, *, is_trusted: bool = True) -> None:
    """Return when `schema` can be used as a tool's schema; `place` says to people where it comes from.

    Raises `Misconfigured` naming the place and the fault: no object, a top level of another type than `object`, not
    valid JSON Schema, nested too deeply, a `$ref` that does not resolve within the schema, or, from those who are not
    trusted, a pattern that only Python's engine can read, patterns that are too large, or references that branch so
    often that nobody could write the schema without them.
    """
    if not isinstance(schema, Mapping):
        raise Misconfigured(f"{place}: expected a JSON Schema object, found {excerpt(schema)}")
    if schema.get("type", "object") != "object":
        raise Misconfigured(f'{place}: expected "type": "object" at the top, found {excerpt(schema["type"])}')
    if is_deeper_than(schema, MAX_DEPTH):
        raise Misconfigured(f"{place}: the schema is nested more than {MAX_DEPTH} levels deep")
    dialect = dialects.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        with _deep_lookups():
            _check_by(dialect, schema, place)
            reached = list(reachable(schema))
            for one in reached:
                if not one.is_declared:
                    _check_by(dialect, one.contents, place)
    except Unresolvable as error:
        raise Misconfigured(
            f"{place}: $ref {capped(str(error.ref), 100)!r} is not in the schema; references to other documents "
            "are never followed, so put what it names under $defs"
        ) from None
    except RecursionError:
        raise Misconfigured(f"{place}: the schema is nested too deeply") from None
    if not is_trusted:
        _check_bounds(schema, reached, place)


def schema_defects(schema: Mapping[str, Any]) -> list[tuple[tuple[str | int, ...], str]]:
    """Return the places where `schema` breaks the rules of its dialect: the path to each, and a sentence.

    Empty where it is valid. Raises RecursionError when it is nested too deeply.
    """
    with _deep_lookups():
        return _broken_rules(dialects.validator_for(schema, default=jsonschema.Draft202012Validator), schema)


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


def violations(
    schema: Mapping[str, Any], value: Any, *, steps: Steps | None = None, parts: int | None = None
) -> list[Defect]:
    return compile_schema(schema).violations(value, steps=steps, parts=parts)


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
    # Where a dynamic reference leads depends on the way that led to it.
    remembers = not any("$dynamicRef" in one.contents or "$recursiveRef" in one.contents for one in reachable(schema))
    return Schema(schema, remembers=remembers)


def _parts(value: Any) -> int | None:
    """Return how many parts a value has; None where it is too deep."""
    parts = 1
    level = [value] if isinstance(value, (dict, list, tuple)) else []
    for _ in range(MAX_DEPTH):
        if not level:
            return parts
        parts += sum(map(len, level))
        level = [
            child
            for item in level
            for child in (item.values() if isinstance(item, dict) else item)
            if isinstance(child, (dict, list, tuple))
        ]
    return None if level else parts


def _check_by(dialect: Any, schema: Mapping[str, Any], place: str) -> None:
    for path, message in _broken_rules(dialect, schema)[:1]:
        raise Misconfigured(f"{place}: not a valid JSON Schema at {_pointer(path) or 'the top'}: {message}")


_RULES: Mapping[Any, Any] = {
    stock: rules(stock.META_SCHEMA, validate_formats=True, offline=True)
    for stock, rules in (
        (jsonschema.Draft4Validator, jsonschema_rs.Draft4Validator),
        (jsonschema.Draft6Validator, jsonschema_rs.Draft6Validator),
        (jsonschema.Draft7Validator, jsonschema_rs.Draft7Validator),
        (jsonschema.Draft201909Validator, jsonschema_rs.Draft201909Validator),
        (jsonschema.Draft202012Validator, jsonschema_rs.Draft202012Validator),
    )
}
"""What each dialect demands of schemas: 11 ms for a schema of 150 kB, for which jsonschema takes 11 s (2026-11)."""


def _broken_rules(dialect: Any, schema: Mapping[str, Any]) -> list[tuple[tuple[str | int, ...], str]]:
    """Return at most `MAX_VIOLATIONS` places where a schema breaks its dialect's rules."""
    rules = _RULES.get(dialect)
    if rules is None:
        return [(("$schema",), "this draft is too old; expected draft 4 of JSON Schema, or a later one")]
    found: dict[tuple[str | int, ...], str] = {}
    try:
        if rules.is_valid(schema):
            return []
        for error in rules.iter_errors(schema):
            message = _broken_rule(error)
            if message is not None:
                found.setdefault(tuple(error.instance_path), message)
            if len(found) >= MAX_VIOLATIONS:
                break
    except (TypeError, ValueError, OverflowError) as error:
        return [((), f"expected JSON: {capped(str(error), 200)}")]
    return list(found.items())


def _broken_rule(error: jsonschema_rs.ValidationError) -> str | None:
    """Return what is wrong with a part of a schema; None where it is well enough."""
    kind = error.kind
    if isinstance(kind, jsonschema_rs.ValidationErrorKind.PropertyNames):
        return _broken_rule(kind.error)
    if not isinstance(kind, jsonschema_rs.ValidationErrorKind.Format):
        return capped(error.message, 200)
    if kind.format != "regex":
        return None  # nothing here asserts other formats
    pattern = str(error.instance)
    return None if is_readable(pattern) else f"{excerpt(pattern)} is not a 'regex'"


def _check_bounds(schema: Mapping[str, Any], reached: Sequence[ReachableSchema], place: str) -> None:
    patterns = [pattern for one in reached for pattern in _patterns(one.contents)]
    for pattern in patterns:
        if needs_backtracking(pattern):
            raise Misconfigured(
                f"{place}: the pattern {excerpt(pattern)} needs look-around or back-references, which may never end, "
                "or repeats too much; write it without"
            )
    if are_too_large(patterns):
        raise Misconfigured(f"{place}: the patterns are too large together; repeat less in them")
    branched = too_branched(schema, reached)
    if branched is not None:
        raise Misconfigured(
            f"{place}: with its references written out, the schema at {_pointer(branched) or 'the top'} consists of "
            f"more than {MAX_WRITTEN_OUT} schemas; refer to large definitions from fewer places"
        )


def _patterns(contents: Mapping[str, Any]) -> Iterator[str]:
    named = contents.get("patternProperties")
    for pattern in (contents.get("pattern"), *(named if isinstance(named, Mapping) else ())):
        if isinstance(pattern, str):
            yield pattern


def _pointer(path: Iterable[str | int]) -> str:
    tokens: Tokens = None
    for token in path:
        tokens = (tokens, token)
    return to_pointer(tokens)


_COSTLY = f"needs more than {MAX_STEPS} steps to be checked against its schema; send less, or simplify the schema"


def _describe(fault: Fault) -> Defect:
    before = fault.path
    fault = _of_what_may_be_null(fault)
    path = before if fault.path is before else (*before, *fault.path)
    keyword = fault.keyword if fault.keyword is not None else "false"
    value: Any = fault.value
    rule: Any = fault.rule
    match keyword:
        case "type":
            wanted = rule if isinstance(rule, str) else " or ".join(map(str, rule))
            message = f"expected {wanted}, found {excerpt(value)}"
        case "required":
            absent = [name for name in rule if name not in value]
            message = f"required but missing: {', '.join(capped(repr(name), 60) for name in absent)}"
        case "additionalProperties" | "unevaluatedProperties":
            message = f"{capped(fault.message, 200)}; {_allowed(fault)}"
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
    return Defect(_pointer(path), keyword, capped(message, 500))


def _of_what_may_be_null(fault: Fault) -> Fault:
    """Return what is wrong by the one alternative to null, which tells more than that no alternative fits."""
    if fault.keyword != "anyOf":
        return fault
    others = [index for index, one in enumerate(fault.rule) if one != {"type": "null"}]
    if len(others) != 1 or len(fault.rule) != 2:
        return fault
    return next((inner for inner in fault.context if inner.branch == others[0]), fault)


def _allowed(fault: Fault) -> str:
    known = fault.schema.get("properties", {})
    return f"known properties: {', '.join(map(repr, islice(known, 20))) or 'none'}"
