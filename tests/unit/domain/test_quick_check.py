"""The quick check never calls valid what the validator refuses, and it understands the schemas of real tools."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.domain.quick_check import quick_check
from shared.domain.schemas import UNKNOWN, compile_schema, violations
from tests.support.harness import make_tool
from tests.unit.domain.strategies import json_values
from worker.tools import builtin

NAMES = st.sampled_from(["a", "b", "c"])
TYPES = st.sampled_from(["string", "integer", "number", "boolean", "null", "object", "array"])
SMALL = st.integers(0, 4)


def schemas() -> st.SearchStrategy[Any]:
    """Schemas of known keywords mostly, in any combination, and some that are not known."""

    def deeper(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        keywords: dict[str, st.SearchStrategy[Any]] = {
            "type": TYPES | st.lists(TYPES, min_size=1, max_size=3, unique=True),
            "properties": st.dictionaries(NAMES, inner, max_size=3),
            "required": st.lists(NAMES, max_size=2, unique=True),
            "additionalProperties": st.booleans() | inner,
            "items": inner,
            "enum": st.lists(st.sampled_from(["a", "b", 1, True, None]), min_size=1, max_size=3),
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "minimum": SMALL,
            "exclusiveMaximum": SMALL,
            "minLength": SMALL,
            "maxItems": SMALL,
            "const": st.sampled_from(["a", 1]),
            "$ref": st.sampled_from(["#/$defs/one", "#/$defs/two"]),
            "multipleOf": st.just(2),
            "description": st.just("said"),
        }
        return st.fixed_dictionaries({}, optional=keywords)

    inner = st.recursive(st.just({}) | st.just(True), deeper, max_leaves=6)
    return st.tuples(inner.filter(lambda schema: schema is not True), inner, inner).map(
        lambda three: {**three[0], "$defs": {"one": three[1], "two": three[2]}}
    )


@st.composite
def values(draw: st.DrawFn) -> Any:
    simple = st.sampled_from(["", "a", "abcde", 0, 1, 1.0, 2.5, True, False, None])
    shaped = st.recursive(
        simple, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=6
    )
    return draw(shaped | json_values)


@given(schemas(), values())
def test_what_is_quickly_called_valid_is_valid(schema: Any, value: Any) -> None:
    check = quick_check(schema, UNKNOWN)
    if check is not None and check(value):
        assert list(jsonschema.Draft202012Validator(schema).iter_errors(value)) == []


SCHEMA = {
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/one"}, "b": {"type": ["integer", "null"], "minimum": 0}},
    "required": ["a"],
    "additionalProperties": False,
    "$defs": {"one": {"type": "array", "items": {"enum": ["x", "y"]}, "minItems": 1}},
}


@pytest.mark.parametrize("value", [{"a": ["x"]}, {"a": ["x", "y"], "b": 3}, {"a": ["y"], "b": None}, {"a": UNKNOWN}])
def test_valid_values_are_recognized(value: Any) -> None:
    check = quick_check(SCHEMA, UNKNOWN)
    assert check is not None
    assert check(value)


@pytest.mark.parametrize("value", [{}, {"a": []}, {"a": ["z"]}, {"a": ["x"], "b": -1}, {"a": ["x"], "c": 1}, [], 1])
def test_invalid_values_are_left_to_the_validator_and_explained(value: Any) -> None:
    check = quick_check(SCHEMA, UNKNOWN)
    assert check is not None
    assert not check(value)
    assert violations(SCHEMA, value) != []


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}},
        {"$ref": "#/$defs/absent"},
        {"properties": {"a": False}},
        {"additionalProperties": {"type": "string"}},
        {"patternProperties": {"^a": {}}, "additionalProperties": False},
        {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"},
        {"oneOf": [{}]},
    ],
)
def test_what_is_not_understood_is_left_to_the_validator(schema: Any) -> None:
    assert quick_check(schema, UNKNOWN) is None


def test_a_schema_is_compiled_once_for_each_text_and_found_again_by_identity() -> None:
    schema = {"type": "object", "title": "found again"}
    assert compile_schema(schema) is compile_schema(dict(schema)) is compile_schema(schema)


@pytest.mark.parametrize(
    "definition",
    [make_tool(getattr(builtin, name)).definition for name in builtin.__all__],
    ids=lambda definition: definition.name,
)
def test_the_tools_that_come_with_planq_are_checked_quickly(definition: Any) -> None:
    assert quick_check(definition.input_schema, UNKNOWN) is not None
