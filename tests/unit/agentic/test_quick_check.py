"""The quick check never calls valid what the bounded check refuses, and it understands the schemas of real tools."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planq.shared.agentic.schema.quick_check import quick_check
from planq.shared.agentic.schema.schemas import UNKNOWN, compile_schema
from planq.shared.agentic.schema.validators import BoundedSchema, Steps
from planq.worker.tools import builtin
from tests.support.harness import make_tool
from tests.unit.agentic.strategies import json_values

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
            "allOf": st.lists(inner, min_size=1, max_size=2),
            "oneOf": st.lists(inner, min_size=1, max_size=2),
            "minimum": SMALL,
            "exclusiveMaximum": SMALL | st.sampled_from([2**53, 2.0**53, 2**64, 0.1]),
            "minLength": SMALL,
            "maxItems": SMALL,
            "maxProperties": SMALL,
            "const": st.sampled_from(["a", 1, 0.1, 2**53, 2**64, [1], {}]),
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
def values(draw: st.DrawFn, *, unknown: bool = False) -> Any:
    simple = st.sampled_from(["", "a", "abcde", 0, 1, 1.0, 2.5, True, False, None, *([UNKNOWN] if unknown else ())])
    shaped = st.recursive(
        simple, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=6
    )
    large = st.sampled_from([2**53, 2**53 + 1, 2.0**53, 2**64, 2**64 + 1, 2.0**64, 0.1])
    return draw(shaped | json_values | large)


def is_surely_valid(schema: Any, value: Any, *, partial: bool = False) -> bool:
    check = quick_check(schema, partial=partial)
    try:
        return check.most_parts >= 1_000 and check.is_valid(value)
    except ValueError:  # no JSON
        return False


def is_understood(schema: Any) -> bool:
    """Whether the quick check says of anything that it is valid."""
    return any(is_surely_valid(schema, value) for value in ({}, {"a": 1}, "a"))


@given(schemas(), values())
def test_what_is_quickly_called_valid_is_valid(schema: Any, value: Any) -> None:
    if is_surely_valid(schema, value):
        assert list(jsonschema.Draft202012Validator(schema).iter_errors(value)) == []
        assert BoundedSchema(schema, partial=False, remembers=True).faults(value, Steps()) == ()


@given(schemas(), values(unknown=True))
def test_what_is_quickly_excused_is_excused(schema: Any, value: Any) -> None:
    if is_surely_valid(schema, value, partial=True):
        assert BoundedSchema(schema, partial=True, remembers=True).faults(value, Steps()) == ()


SCHEMA = {
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/one"}, "b": {"type": ["integer", "null"], "minimum": 0}},
    "required": ["a"],
    "additionalProperties": False,
    "$defs": {"one": {"type": "array", "items": {"enum": ["x", "y"]}, "minItems": 1}},
}


@pytest.mark.parametrize("value", [{"a": ["x"]}, {"a": ["x", "y"], "b": 3.0}, {"a": ["y"], "b": None}])
def test_valid_values_are_recognized(value: Any) -> None:
    assert is_surely_valid(SCHEMA, value)
    assert is_surely_valid(SCHEMA, value, partial=True)


@pytest.mark.parametrize("value", [UNKNOWN, {"a": UNKNOWN}, {"a": ["x", UNKNOWN], "b": UNKNOWN}])
def test_parts_that_are_not_known_are_excused_where_they_may_be(value: Any) -> None:
    assert is_surely_valid(SCHEMA, value, partial=True)
    assert not is_surely_valid(SCHEMA, value)


@pytest.mark.parametrize(
    "value",
    [{}, {"a": []}, {"a": ["z"]}, {"a": ["x"], "b": -1}, {"a": ["x"], "c": 1}, {"a": [UNKNOWN], "c": UNKNOWN}, [], 1],
)
def test_invalid_values_are_left_to_the_bounded_check_and_explained(value: Any) -> None:
    assert not is_surely_valid(SCHEMA, value, partial=True)
    assert compile_schema(SCHEMA).violations(value, partial=True) != []


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"maximum": 2.0**80}, 2**80 + 1),
        ({"const": 10**300}, 1e300),
        ({"type": "number"}, float("inf")),
        ({"type": "string"}, "\ud800"),
        ({"type": "object"}, {1: 2}),
    ],
)
def test_what_another_library_may_see_otherwise_is_left_to_the_bounded_check(schema: Any, value: Any) -> None:
    assert not is_surely_valid(schema, value)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}},
        {"$ref": "#/$defs/absent"},
        {"patternProperties": {"^a": {}}, "additionalProperties": False},
        {"pattern": "a"},
        {"unevaluatedProperties": False},
        {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"},
        {"properties": {f"p{number}": True for number in range(10_000)}},
    ],
    ids=lambda schema: next(iter(schema)),
)
def test_what_is_not_understood_is_left_to_the_bounded_check(schema: Any) -> None:
    assert not is_understood(schema)


LEVELS = 30


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf"])
def test_a_schema_that_branches_at_each_level_is_never_written_out(keyword: str) -> None:
    levels = {f"d{level}": {keyword: [{"$ref": f"#/$defs/d{level + 1}"}] * 2} for level in range(LEVELS)}

    assert not is_understood({"$ref": "#/$defs/d0", "$defs": {**levels, f"d{LEVELS}": {}}})


def test_a_chain_of_references_that_is_too_long_is_left_to_the_bounded_check() -> None:
    chain = {f"d{level}": {"items": {"$ref": f"#/$defs/d{level + 1}"}} for level in range(1_500)}

    assert not is_understood({"$ref": "#/$defs/d0", "$defs": {**chain, "d1500": {}}})


def test_a_value_that_meets_too_much_is_left_to_the_bounded_check() -> None:
    alternatives = [{"minimum": number, "maximum": 9, "minLength": 1} for number in range(100)]
    check = quick_check({"items": {"allOf": [{"anyOf": alternatives} for _ in range(10)]}}, partial=False)

    assert check.is_valid([1])
    assert 2 < check.most_parts < 40_000


def test_a_schema_is_compiled_once_for_each_text_and_found_again_by_identity() -> None:
    schema = {"type": "object", "title": "found again"}
    assert compile_schema(schema) is compile_schema(dict(schema)) is compile_schema(schema)


@pytest.mark.parametrize(
    "definition",
    [make_tool(getattr(builtin, name)).definition for name in builtin.__all__],
    ids=lambda definition: definition.name,
)
def test_the_tools_that_come_with_planq_are_checked_quickly(definition: Any) -> None:
    anything = {**definition.input_schema, "required": []}

    assert is_understood(anything)
