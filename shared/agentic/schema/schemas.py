"""JSON Schema (2020-12, or the draft that a schema names): compiled once, checked before use, never fetched.

jsonschema-rs compiles schemas and checks values; this module bounds what it may be given, and words its errors.
A schema is a value: it must not be changed after its first use here. No `$ref` ever leaves the schema except to the
official meta-schemas. Values are untrusted: depth and work are measured before the library sees them, and messages
quote short excerpts only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import jsonschema_rs
from referencing.exceptions import Unresolvable

from planq.shared.agentic.schema.explain import MAX_VIOLATIONS, UNKNOWN, explain
from planq.shared.agentic.schema.patterns import (
    PATTERN_OPTIONS,
    are_too_large,
    encodable,
    is_readable,
    needs_backtracking,
    own_patterns,
)
from planq.shared.agentic.schema.reach import MAX_WRITTEN_OUT, ReachableSchema, endless, reachable, too_branched
from planq.shared.agentic.schema.work import MAX_STEPS, Steps, TooCostly, Work
from planq.shared.platform.errors import Misconfigured, capped
from planq.shared.platform.values.defects import Defect
from planq.shared.platform.values.describe import MAX_DEPTH, excerpt, is_deeper_than
from planq.shared.platform.values.pointers import path_pointer

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

_MAX_COPIED = 20_000
"""Maximum parts of values copied into the errors of one check: a second for the worst schemas (2026-11)."""

_DIALECTS: Mapping[str, type[jsonschema_rs.Validator]] = {
    "http://json-schema.org/draft-04/schema": jsonschema_rs.Draft4Validator,
    "http://json-schema.org/draft-06/schema": jsonschema_rs.Draft6Validator,
    "http://json-schema.org/draft-07/schema": jsonschema_rs.Draft7Validator,
    "https://json-schema.org/draft/2019-09/schema": jsonschema_rs.Draft201909Validator,
    "https://json-schema.org/draft/2020-12/schema": jsonschema_rs.Draft202012Validator,
}
_NEWEST = "https://json-schema.org/draft/2020-12/schema"
_TOO_OLD = "http://json-schema.org/draft-03/schema"

_RULES = {
    name: dialect(
        {"$ref": name},
        formats={"regex": is_readable, "uri": lambda _: True, "uri-reference": lambda _: True},
        validate_formats=True,
        mask="it",
        offline=True,
    )
    for name, dialect in _DIALECTS.items()
}
"""What each dialect demands of schemas."""


def _has_format(check: jsonschema_rs.Validator, text: str) -> bool:
    # Python writes times without a zone, which have no offset.
    return check.is_valid(text) or check.is_valid(f"{text}Z")


_FORMATS: Mapping[str, Callable[[str], bool]] = {
    **{
        name: partial(
            _has_format, jsonschema_rs.Draft202012Validator({"format": name}, validate_formats=True, offline=True)
        )
        for name in ("date-time", "time")
    },
    **{
        name: jsonschema_rs.Draft202012Validator({"format": name}, validate_formats=True, offline=True).is_valid
        for name in ("duration", "uuid")
    },
    **dict.fromkeys(
        (
            "idn-email",
            "idn-hostname",
            "iri",
            "iri-reference",
            "json-pointer",
            "regex",
            "relative-json-pointer",
            "uri-template",
        ),
        lambda _: True,
    ),
}
"""Formats that differ from jsonschema-rs: times, those that older dialects do not know, and those not asserted.

Others that it does not know (`password`, `binary`, a tool's own) inform people only.
"""


class Schema:
    """A schema that has been checked; make one with `compile_schema`."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema
        self._work = Work(schema)
        self._few = self._work.few_parts
        self._check = _DIALECTS[_dialect(schema)](
            dict(schema),
            formats=dict(_FORMATS),
            validate_formats=True,
            mask="it",
            pattern_options=PATTERN_OPTIONS,
            offline=True,
        )

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
        most `steps`, which several checks may share, or `MAX_STEPS`; what needs more is one violation of `cost`.
        Callers that know that `value` is no deeper than `MAX_DEPTH` pass the maximum number of its `parts`.
        """
        if parts is None:
            parts = _parts(value)
        if parts is None:
            return [Defect("", "depth", f"nested more than {MAX_DEPTH} levels deep; expected a flatter value")]
        try:
            if parts <= self._few and self._check.is_valid(value):
                return []
        except ValueError:  # no JSON; what follows says so
            pass
        steps = Steps() if steps is None else steps
        try:
            self._work.decide(value, parts, steps)
            try:
                return self._decided(value, partial, steps)
            except UnicodeEncodeError:
                return self._decided(_encodable(value), partial, steps)
        except TooCostly:
            return [Defect("", "cost", _COSTLY)]
        except RecursionError:
            return [Defect("", "depth", "nested too deeply to be checked against its schema")]
        except (ValueError, OverflowError) as error:
            return [Defect("", "json", f"expected JSON: {capped(str(error), 200)}")]

    def _decided(self, value: Any, partial: bool, steps: Steps) -> list[Defect]:
        if self._check.is_valid(value):
            return []
        cost = self._work.count(value, steps)
        if cost.copied <= _MAX_COPIED:
            return explain(self._check.iter_errors(value), self._schema, value, partial=partial)
        if cost.alternatives <= _MAX_COPIED and not partial:
            try:
                self._check.validate(value)
            except jsonschema_rs.ValidationError as error:
                return explain([error], self._schema, value, partial=False)
        return [] if partial else [Defect("", "schema", _UNCLEAR)]


def check_schema(schema: Any, place: str, *, is_trusted: bool = True) -> None:
    """Return when `schema` can be used as a tool's schema; `place` says to people where it comes from.

    Raises `Misconfigured` naming the place and the fault: no object, a top level of another type than `object`, not
    valid JSON Schema, nested too deeply, a `$ref` that does not resolve within the schema or leads back to itself
    for the same value, or, from those who are not trusted, a pattern that needs backtracking, patterns that are too
    large, or references that branch so often that nobody could write the schema without them.
    """
    if not isinstance(schema, Mapping):
        raise Misconfigured(f"{place}: expected a JSON Schema object, found {excerpt(schema)}")
    if schema.get("type", "object") != "object":
        raise Misconfigured(f'{place}: expected "type": "object" at the top, found {excerpt(schema["type"])}')
    if is_deeper_than(schema, MAX_DEPTH):
        raise Misconfigured(f"{place}: the schema is nested more than {MAX_DEPTH} levels deep")
    dialect = _dialect(schema)
    try:
        _check_by(dialect, schema, place)
        reached = reachable(schema)
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
    circle = endless(schema, reached)
    if circle is not None:
        raise Misconfigured(
            f"{place}: the schema at {path_pointer(circle) or 'the top'} refers to itself for the same value, so its "
            "check would never end; refer to it from below `properties` or `items`"
        )
    if not is_trusted:
        _check_bounds(schema, reached, place)


def schema_defects(schema: Mapping[str, Any]) -> list[tuple[tuple[str | int, ...], str]]:
    """Return the places where `schema` breaks the rules of its dialect: the path to each, and a sentence.

    Empty where it is valid. Raises RecursionError when it is nested too deeply.
    """
    return _broken_rules(_dialect(schema), schema)


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
    return Schema(schema)


def _dialect(schema: Mapping[str, Any]) -> str:
    named = schema.get("$schema")
    named = named.removesuffix("#") if isinstance(named, str) else _NEWEST
    return named if named in _DIALECTS or named == _TOO_OLD else _NEWEST


def _encodable(value: Any) -> Any:
    """Return a copy of a value with `?` for lone surrogates."""
    if isinstance(value, dict):
        return {_encodable(name): _encodable(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encodable(inner) for inner in value]
    return encodable(value) if isinstance(value, str) else value


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


def _check_by(dialect: str, schema: Mapping[str, Any], place: str) -> None:
    for path, message in _broken_rules(dialect, schema)[:1]:
        raise Misconfigured(f"{place}: not a valid JSON Schema at {path_pointer(path) or 'the top'}: {message}")


def _broken_rules(dialect: str, schema: Mapping[str, Any]) -> list[tuple[tuple[str | int, ...], str]]:
    """Return at most `MAX_VIOLATIONS` places where a schema breaks its dialect's rules."""
    rules = _RULES.get(dialect)
    if rules is None:
        return [(("$schema",), "this draft is too old; expected draft 4 of JSON Schema, or a later one")]
    try:
        if rules.is_valid(schema):
            return []
        found: dict[tuple[str | int, ...], str] = {}
        for error in rules.iter_errors(schema):
            found.setdefault(tuple(error.instance_path), _broken_rule(error))
            if len(found) >= MAX_VIOLATIONS:
                break
    except (TypeError, ValueError, OverflowError) as error:
        return [((), f"expected JSON: {capped(str(error), 200)}")]
    return list(found.items())


def _broken_rule(error: jsonschema_rs.ValidationError) -> str:
    kind = error.kind
    if isinstance(kind, jsonschema_rs.ValidationErrorKind.PropertyNames):
        return _broken_rule(kind.error)
    if isinstance(kind, jsonschema_rs.ValidationErrorKind.Format):
        return f"{excerpt(error.instance)} is not a 'regex', or repeats too much"
    return capped(error.message, 200)


def _check_bounds(schema: Mapping[str, Any], reached: Sequence[ReachableSchema], place: str) -> None:
    patterns = [pattern for one in reached for pattern in own_patterns(one.contents)]
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
            f"{place}: with its references written out, the schema at {path_pointer(branched) or 'the top'} consists "
            f"of more than {MAX_WRITTEN_OUT} schemas; refer to large definitions from fewer places"
        )


_COSTLY = f"needs more than {MAX_STEPS} steps to be checked against its schema; send less, or simplify the schema"

_UNCLEAR = "does not fit its schema, which has too many alternatives to say where; simplify the value or the schema"
