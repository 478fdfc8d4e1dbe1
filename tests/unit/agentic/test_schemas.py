"""JSON Schema: checked before use, never fetched, and safe on hostile values."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planq.shared.agentic.schema.schemas import MAX_DEPTH, UNKNOWN, check_schema, compile_schema, rebase, violations
from planq.shared.platform.errors import Misconfigured
from planq.shared.platform.values.describe import excerpt, is_deeper_than
from tests.unit.agentic.strategies import json_values

SEARCH = {
    "type": "object",
    "properties": {"query": {"type": "string"}, "limit": {"type": "integer", "minimum": 1}},
    "required": ["query"],
    "additionalProperties": False,
}


def test_each_violation_names_its_place_and_what_was_found() -> None:
    found = {item.pointer: item.message for item in violations(SEARCH, {"limit": 0, "more": 1})}
    assert found["/limit"] == "expected minimum 1, found 0"
    assert {item.code for item in violations(SEARCH, {"limit": 0, "more": 1})} == {
        "minimum",
        "required",
        "additionalProperties",
    }
    assert violations(SEARCH, {"query": "x", "limit": 2}) == []


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        ([], "expected a JSON Schema object"),
        ({"type": "array"}, "at the top"),
        ({"properties": {"a": {"type": 5}}}, "/properties/a/type"),
        ({"properties": {"a": {"pattern": "("}}}, "/properties/a/pattern"),
        ({"properties": {"a": {"$ref": "#/$defs/gone"}}}, "not in the schema"),
        ({"$ref": "https://example.org/schema.json"}, "never followed"),
    ],
)
def test_a_bad_schema_is_refused_with_its_place(schema: Any, fault: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        check_schema(schema, "tool 'x' of mcp:y")
    assert "tool 'x' of mcp:y" in refused.value.message
    assert fault in refused.value.message


def test_the_dialect_a_schema_names_is_used() -> None:
    draft7 = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "definitions": {"n": {"type": "integer"}},
        "properties": {"a": {"items": [{"$ref": "#/definitions/n"}]}},
    }
    check_schema(draft7, "x")
    assert [item.pointer for item in violations(draft7, {"a": ["no"]})] == ["/a/0"]


def nested(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels - 1):
        value = {"c": value}
    return value


def test_depth_is_refused_before_anything_recurses() -> None:
    tree = {"type": "object", "properties": {"c": {"$ref": "#"}}}
    assert violations(tree, nested(MAX_DEPTH)) == []
    assert violations(tree, nested(MAX_DEPTH + 1))[0].code == "depth"
    assert violations(tree, nested(10_000))[0].code == "depth"
    with pytest.raises(Misconfigured, match="refers to itself"):
        violations({"$ref": "#"}, {})
    with pytest.raises(Misconfigured, match="levels deep"):
        check_schema({"properties": nested(10_000)}, "x")
    with pytest.raises(Misconfigured):
        compile_schema({"properties": nested(10_000)})


@pytest.mark.parametrize("levels", [0, 1, 5])
def test_depth_counts_containers(levels: int) -> None:
    value: Any = 1
    for _ in range(levels):
        value = [value, 2]
    assert not is_deeper_than(value, levels)
    assert levels == 0 or is_deeper_than(value, levels - 1)


def test_large_values_are_checked_in_reasonable_time_and_quoted_briefly() -> None:
    items = [{"a": index} for index in range(30_000)]
    unique = {"properties": {"x": {"uniqueItems": True}}}
    assert violations(unique, {"x": items}) == []
    assert violations(unique, {"x": [*items, {"a": 5.0}]})[0].code == "uniqueItems"
    assert violations(unique, {"x": [1, True, 0, False]}) == []
    (violation,) = violations({"properties": {"x": {"type": "integer"}}}, {"x": "y" * 1_000_000})
    assert len(violation.message) < 300
    assert len(violations({"additionalProperties": {"type": "null"}}, dict.fromkeys(map(str, range(999)), 1))) == 20


def test_parts_not_known_yet_are_excused_and_the_rest_is_checked() -> None:
    schema = compile_schema(
        {
            "properties": {
                "mode": {"enum": ["a", "b"]},
                "list": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "maxItems": 3},
                "one": {"oneOf": [{"required": ["x"]}, {"required": ["y"]}]},
                "const": {"const": {"k": 1}},
            }
        }
    )
    good = {"mode": UNKNOWN, "list": [UNKNOWN, UNKNOWN, 3], "one": {"x": UNKNOWN}, "const": {"k": UNKNOWN}}
    assert schema.violations(good, partial=True) == []
    bad = {"mode": "c", "list": [UNKNOWN, "x", 1, 2], "one": {"z": UNKNOWN}}
    found = {(item.pointer, item.code) for item in schema.violations(bad, partial=True)}
    assert found == {("/mode", "enum"), ("/list/1", "type"), ("/list", "maxItems"), ("/one", "oneOf")}


KNOWN_IN_PARTS = {
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/one"}, "b": {"type": ["integer", "null"], "minimum": 0}},
    "required": ["a"],
    "additionalProperties": False,
    "$defs": {"one": {"type": "array", "items": {"enum": ["x", "y"]}, "minItems": 1}},
}


@pytest.mark.parametrize(
    "value", [UNKNOWN, {"a": UNKNOWN}, {"a": ["x", UNKNOWN], "b": UNKNOWN}, {"a": ["x"], "b": 3.0}]
)
def test_parts_that_are_not_known_are_excused_where_they_may_be(value: Any) -> None:
    assert compile_schema(KNOWN_IN_PARTS).violations(value, partial=True) == []


@pytest.mark.parametrize(
    "value",
    [{}, {"a": []}, {"a": ["z"]}, {"a": ["x"], "b": -1}, {"a": ["x"], "c": 1}, {"a": [UNKNOWN], "c": UNKNOWN}, [], 1],
)
def test_parts_that_are_known_are_checked(value: Any) -> None:
    assert compile_schema(KNOWN_IN_PARTS).violations(value, partial=True) != []


def test_a_place_where_nothing_may_be_forbids_what_is_not_known() -> None:
    schema = compile_schema({"properties": {"x": False, "y": {"anyOf": [{"const": 1}, {"required": ["z"]}]}}})

    assert [one.render() for one in schema.violations({"x": UNKNOWN, "y": UNKNOWN}, partial=True)] == [
        "/x: nothing is allowed here; found <not known yet>"
    ]


@pytest.mark.parametrize("value", [float("nan"), {1: 2}, b"x"], ids=["number", "name", "bytes"])
def test_what_is_no_json_is_invalid(value: Any) -> None:
    (found,) = violations({"additionalProperties": {"type": "number"}}, {"x": value})

    assert found.pointer in ("/x", "")


def test_one_text_is_compiled_once() -> None:
    schema = dict(SEARCH)

    assert compile_schema(schema) is compile_schema(dict(SEARCH)) is compile_schema(schema)


def test_references_follow_a_schema_to_its_new_place() -> None:
    moved = rebase({"$ref": "#/$defs/A", "$defs": {"A": {"properties": {"$ref": {"$ref": "#"}}}}}, "/properties/x")
    assert moved["$ref"] == "#/properties/x/$defs/A"
    assert moved["$defs"]["A"]["properties"]["$ref"] == {"$ref": "#/properties/x"}


@given(json_values)
def test_an_excerpt_is_short_whatever_the_value(value: Any) -> None:
    assert len(excerpt(value)) < 400


@given(json_values, st.sampled_from([SEARCH, {"anyOf": [SEARCH, {"type": "array"}]}, {"not": SEARCH}]))
def test_any_value_is_either_valid_or_explained(value: Any, schema: dict[str, Any]) -> None:
    for violation in violations(schema, value):
        assert violation.render()


def test_what_may_be_null_is_told_by_what_else_it_may_be() -> None:
    schema = {
        "type": "object",
        "properties": {
            "seconds": {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "null"}]},
            "names": {"anyOf": [{"type": "null"}, {"type": "array", "items": {"enum": ["a"]}}]},
            "either": {"anyOf": [{"type": "string"}, {"type": "number"}]},
        },
    }

    assert violations(schema, {"seconds": None, "names": None}) == []
    assert [one.render() for one in violations(schema, {"seconds": 0, "names": ["b"], "either": None})] == [
        "/seconds: expected exclusiveMinimum 0, found 0",
        '/names/0: expected one of "a"; found "b"',
        "/either: fits none, or more than one, of 2 alternatives; found null",
    ]


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("date", ["2026-02-28"], ["2026-02-30", "28.2.2026", ""]),
        ("date-time", ["2026-02-28T10:00:00Z", "2026-02-28T10:00:00.5+01:00", "2026-02-28T10:00:00"], ["2026-02-28"]),
        ("time", ["10:00:00Z", "10:00:00"], ["25:00:00", "ten"]),
        ("duration", ["P1D", "PT5M"], ["5m"]),
        ("email", ["ana@example.org"], ["ana", "ana@"]),
        ("uuid", ["0f8fad5b-d9cb-469f-a165-70867728950e"], ["0f8fad5b"]),
        ("uri", ["https://example.org/a", "mailto:a@b"], ["example.org/a"]),
        ("ipv4", ["10.0.0.1"], ["10.0.0"]),
        ("password", ["anything"], []),
    ],
)
@pytest.mark.parametrize("partial", [False, True])
def test_a_text_has_the_format_that_its_schema_names(
    name: str, good: list[str], bad: list[str], partial: bool
) -> None:
    # Pins: `format` was not looked at, and a tool was called with "tomorrow" for a date.
    schema = compile_schema({"properties": {"x": {"type": ["string", "integer"], "format": name}}})

    for text in (*good, 7):
        assert schema.violations({"x": text}, partial=partial) == []
    for text in bad:
        (found,) = schema.violations({"x": text}, partial=partial)
        assert (found.pointer, found.code) == ("/x", "format")
        assert found.message == f"expected format {json.dumps(name)}, found {json.dumps(text)}"
    assert schema.violations({"x": UNKNOWN}, partial=True) == []


def test_a_surrogate_is_in_no_format() -> None:
    assert len(violations({"format": "email"}, "a@\ud800.b")) == 1
