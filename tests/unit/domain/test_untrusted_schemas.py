"""Schemas from strangers: whatever they refer to is looked at, and no pattern of theirs keeps a process busy."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.domain.errors import Misconfigured
from shared.domain.schemas import check_schema, compile_schema

HOSTILE = "^(a+)+$"
"""Python's own engine takes twice as long for each further `a`: hours for these forty."""
LONG = "a" * 40 + "!"

NAMED = {"patternProperties": {HOSTILE: {"type": "integer"}}}
BEHIND = [
    NAMED,
    {"allOf": [NAMED]},
    {"anyOf": [{"required": ["x"]}, NAMED]},
    {"$ref": "#/$defs/named", "$defs": {"named": NAMED}},
    {"if": {"required": ["x"]}, "else": NAMED},
    {"dependentSchemas": {"b": NAMED}},
]


@pytest.mark.parametrize(
    "dialect", ["https://json-schema.org/draft/2019-09/schema", None], ids=["2019-09", "2020-12"]
)
@pytest.mark.parametrize("schema", BEHIND, ids=lambda schema: next(iter(schema)))
def test_names_that_are_not_evaluated_are_found_as_fast_as_any(schema: dict[str, Any], dialect: str | None) -> None:
    head = {} if dialect is None else {"$schema": dialect}
    compiled = compile_schema({**head, **schema, "properties": {"b": True}, "unevaluatedProperties": False})

    assert compiled.violations({LONG[:-1]: 1, "b": 1}) == []
    (found,) = compiled.violations({LONG: 1, "b": 1})
    assert (found.keyword, "known properties: 'b'" in found.message) == ("unevaluatedProperties", True)


LEAVES: st.SearchStrategy[Any] = st.sampled_from(
    [
        {},
        {"properties": {"a": {"type": "integer"}, "b": True}},
        {"patternProperties": {"^a": {"type": "integer"}}},
        {"patternProperties": {"b|c": True}, "required": ["c"]},
        {"additionalProperties": {"type": "integer"}},
        {"unevaluatedProperties": {"type": "string"}},
        {"$ref": "#/$defs/one"},
        {"$dynamicRef": "#two"},
        False,
    ]
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(lambda many: {"allOf": many}, st.lists(inner, min_size=1, max_size=2)),
        st.builds(lambda many: {"anyOf": many}, st.lists(inner, min_size=1, max_size=2)),
        st.builds(lambda many: {"oneOf": many}, st.lists(inner, min_size=1, max_size=2)),
        st.builds(lambda one, two, three: {"if": one, "then": two, "else": three}, inner, inner, inner),
        st.builds(lambda one: {"dependentSchemas": {"a": one}}, inner),
    ),
    max_leaves=4,
)
DEFINITIONS = {
    "one": {"properties": {"a": True}},
    "two": {"$dynamicAnchor": "two", "patternProperties": {"^c$": True}},
}


@given(
    schema=SCHEMAS,
    rest=st.sampled_from([False, True, {"type": "integer"}]),
    value=st.dictionaries(st.sampled_from(["a", "b", "c", "ab"]), st.sampled_from([1, "x"])),
)
def test_what_is_evaluated_is_what_the_library_takes_for_it(schema: Any, rest: Any, value: dict[str, Any]) -> None:
    whole = {"allOf": [schema], "$defs": DEFINITIONS, "unevaluatedProperties": rest}

    expected = jsonschema.Draft202012Validator(whole).is_valid(value)

    assert (compile_schema(whole).violations(value) == []) is expected


LOOKS_AROUND = "^(?=a)b"


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"x": {"pattern": LOOKS_AROUND}}},
        {"patternProperties": {LOOKS_AROUND: True}},
        {"properties": {"x": {"$ref": "#/properties/y/default"}, "y": {"default": {"pattern": LOOKS_AROUND}}}},
        {"properties": {"x": {"$ref": "#/examples/0"}}, "examples": [{"items": {"pattern": LOOKS_AROUND}}]},
    ],
)
def test_a_pattern_that_needs_the_slow_engine_is_for_those_who_are_trusted(schema: dict[str, Any]) -> None:
    check_schema(schema, "mine")
    with pytest.raises(Misconfigured, match=r"theirs: the pattern .* needs look-around"):
        check_schema(schema, "theirs", is_trusted=False)


def test_what_is_no_schema_and_never_referred_to_may_hold_any_pattern() -> None:
    check_schema({"examples": [{"pattern": LOOKS_AROUND}], "const": {"pattern": "("}}, "theirs", is_trusted=False)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"properties": {"x": {"pattern": "("}}}, "is not a 'regex'"),
        ({"patternProperties": {"[": True}}, "is not a 'regex'"),
        ({"properties": {"x": {"$ref": "#/default"}}, "default": {"pattern": "("}}, "is not a 'regex'"),
        ({"properties": {"x": {"$ref": "#/default"}}, "default": {"type": "nonsense"}}, "not a valid JSON Schema"),
        ({"$ref": "#/default", "default": {"$ref": "#/nowhere"}}, "is not in the schema"),
    ],
)
def test_what_could_not_be_checked_is_refused_before_it_is_used(schema: dict[str, Any], words: str) -> None:
    with pytest.raises(Misconfigured, match=words):
        check_schema(schema, "mine")


def test_a_schema_that_refers_to_itself_ends() -> None:
    tree = {"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}, "unevaluatedProperties": False}

    check_schema(tree, "theirs", is_trusted=False)
    compiled = compile_schema(tree)
    assert compiled.violations({"left": {"right": {}}}) == []
    (found,) = compiled.violations({"left": {"middle": {}}})
    assert (found.pointer, found.keyword) == ("/left", "unevaluatedProperties")
