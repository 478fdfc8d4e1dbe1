"""Turns the errors of jsonschema-rs into defects that say what was expected and what was found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from itertools import islice
from typing import Any, Final

import jsonschema_rs

from planq.shared.platform.errors import capped
from planq.shared.platform.values.defects import Defect
from planq.shared.platform.values.describe import excerpt
from planq.shared.platform.values.pointers import path_pointer

Kind = jsonschema_rs.ValidationErrorKind

MAX_VIOLATIONS = 20
"""Maximum number of violations reported of one value; an author who repairs twenty finds the rest on the next try."""


class Unknown(Enum):
    """Stands for a part of a value that is not known yet: no schema is taken to forbid it."""

    UNKNOWN = "\0 not known yet"
    """What jsonschema-rs takes it for: a text that strangers may send too, to be checked when their step runs."""

    def __repr__(self) -> str:
        return "<not known yet>"


UNKNOWN: Final = Unknown.UNKNOWN


def explain(
    errors: Iterable[jsonschema_rs.ValidationError], schema: Mapping[str, Any], value: Any, *, partial: bool
) -> list[Defect]:
    """Return at most `MAX_VIOLATIONS` defects, one for each place and keyword.

    With `partial`, errors that what is `UNKNOWN` in `value` may cause are left out.
    """
    has_unknown = partial and _holds_unknown(value)
    found: dict[tuple[str, str], list[jsonschema_rs.ValidationError]] = {}
    for error in errors:
        if not (has_unknown and _is_excused(error, value)):
            told = _of_what_may_be_null(error)
            found.setdefault((path_pointer(told.instance_path), _keyword(told)), []).append(told)
    return [
        Defect(pointer, keyword, capped(_message(keyword, same, schema, value), 500))
        for (pointer, keyword), same in islice(found.items(), MAX_VIOLATIONS)
    ]


def _inner(error: jsonschema_rs.ValidationError) -> jsonschema_rs.ValidationError:
    """Return the error about the name of a property that an error of `propertyNames` holds."""
    return _inner(error.kind.error) if isinstance(error.kind, Kind.PropertyNames) else error


def _keyword(error: jsonschema_rs.ValidationError) -> str:
    error = _inner(error)
    return "false" if isinstance(error.kind, Kind.FalseSchema) else str(error.schema_path[-1])


def _message(
    keyword: str, errors: Sequence[jsonschema_rs.ValidationError], schema: Mapping[str, Any], whole: Any
) -> str:
    outer, error = errors[0], _inner(errors[0])
    value = error.instance if error is not outer else _at(whole, outer.instance_path)
    rule = _at(schema, error.schema_path, error.kind.value)
    match error.kind:
        case Kind.Type(types):
            return f"expected {' or '.join(types)}, found {excerpt(value)}"
        case Kind.Required() if keyword == "required":
            missing = (capped(repr(one.kind.property), 60) for one in errors if isinstance(one.kind, Kind.Required))
            return f"required but missing: {', '.join(dict.fromkeys(missing))}"
        case Kind.AdditionalProperties() | Kind.UnevaluatedProperties():
            known = _at(schema, [*error.schema_path[:-1], "properties"], {})
            names = ", ".join(map(repr, islice(known, 20))) or "none"
            return f"{capped(error.message, 200)}; known properties: {names}"
        case Kind.Enum(options):
            return f"expected one of {', '.join(excerpt(item) for item in options[:20])}; found {excerpt(value)}"
        case Kind.OneOfNotValid() | Kind.OneOfMultipleValid() if _requires_only(rule):
            names = " or ".join(", ".join(map(repr, one["required"])) for one in rule)
            return f"expected exactly one of {capped(names, 200)}; found {excerpt(value)}"
        case Kind.AnyOf(context) | Kind.OneOfNotValid(context) | Kind.OneOfMultipleValid(context):
            return f"fits none, or more than one, of {len(context)} alternatives; found {excerpt(value)}"
        case Kind.FalseSchema():
            return f"nothing is allowed here; found {excerpt(value)}"
        case _:
            return f"expected {keyword} {excerpt(rule)}, found {excerpt(value)}"


def _requires_only(alternatives: Any) -> bool:
    return isinstance(alternatives, list) and all(
        isinstance(one, Mapping) and one.keys() == {"required"} for one in alternatives
    )


def _of_what_may_be_null(error: jsonschema_rs.ValidationError) -> jsonschema_rs.ValidationError:
    """Return what is wrong by the one alternative to null, which says more than that no alternative fits."""
    if isinstance(error.kind, Kind.AnyOf) and len(error.kind.context) == 2:
        others = [branch for branch in error.kind.context if not _is_about_null(branch)]
        if len(others) == 1 and others[0]:
            return others[0][0]
    return error


def _is_about_null(branch: Sequence[jsonschema_rs.ValidationError]) -> bool:
    return len(branch) == 1 and isinstance(branch[0].kind, Kind.Type) and branch[0].kind.types == ["null"]


def _at(whole: Any, path: Iterable[str | int], default: Any = None) -> Any:
    for token in path:
        try:
            whole = whole[token]
        except (KeyError, IndexError, TypeError):
            return default
    return whole


_WHOLE_VALUE = frozenset(
    {"const", "contains", "enum", "maxContains", "minContains", "not", "oneOf", "unevaluatedItems"}
    | {"unevaluatedProperties", "uniqueItems"}
)
"""Keywords whose verdict can turn with any part of the value, so that one unknown part suspends them."""


def _is_excused(error: jsonschema_rs.ValidationError, whole: Any) -> bool:
    """Return whether an unknown part of the value may be the cause of an error."""
    value = _at(whole, error.instance_path)
    match error.kind:
        case Kind.FalseSchema():
            return False  # nothing may be there, whatever it is
        case Kind.AnyOf(context) | Kind.OneOfNotValid(context):
            return value is UNKNOWN or any(all(_is_excused(one, whole) for one in branch) for branch in context)
    return (
        value is UNKNOWN
        or "then" in error.schema_path
        or "else" in error.schema_path
        or (_keyword(error) in _WHOLE_VALUE and _holds_unknown(value))
    )


def _holds_unknown(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_holds_unknown, value.values()))
    return any(map(_holds_unknown, value)) if isinstance(value, list) else value is UNKNOWN
