"""How deep a path is followed through an output schema: as deep as the schema knows it (docs/decisions.md, D4)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planq.shared.agentic.references.schema_paths import NotInSchema, PathSchemas, declared_type, follow

TITLED = {"type": "object", "properties": {"t": {"type": "integer"}}}


def look(schema: dict[str, Any], path: str) -> PathSchemas | NotInSchema:
    return follow(schema, path.split("."), first_must_be_declared=True)


def holding(inner: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": inner}, **more}


@pytest.mark.parametrize(
    ("schema", "path", "type_"),
    [
        (holding({"type": "string"}), "a", "string"),
        (holding({"type": ["string"]}), "a", "string"),
        (holding({"type": ["string", "null"]}), "a", None),
        (holding(TITLED), "a.t", "integer"),
        (holding({"type": "object"}), "a.anything.at.all", None),
        (holding({}), "a.anything", None),
        (holding({"type": "array"}), "a.0.id", None),
        (holding({"type": "array", "items": TITLED}), "a.7.t", "integer"),
        (holding({"prefixItems": [{"type": "string"}, TITLED]}), "a.1.t", "integer"),
        (holding({"$ref": "#/$defs/X", "description": "d"}, **{"$defs": {"X": TITLED}}), "a.t", "integer"),
        (holding({"anyOf": [TITLED, {"type": "null"}]}), "a.t", "integer"),
        (holding({"anyOf": [TITLED, {"type": "object"}]}), "a.u", None),
        (holding({"anyOf": [TITLED, {}]}), "a.t", None),
        (holding({"allOf": [{"properties": {"x": {}}}, TITLED]}), "a.t", "integer"),
        (holding({"type": "object", "additionalProperties": {"type": "boolean"}}), "a.k", "boolean"),
        (holding({"type": "object", "properties": {"k": {}}, "additionalProperties": True}), "a.z", None),
        (holding({"type": "object", "patternProperties": {"^n": {"type": "number"}}}), "a.nine", "number"),
        (holding({"type": "object", "properties": {"k": {}}, "then": TITLED}), "a.t", None),
        (holding({"$ref": "https://elsewhere.example/x"}), "a.z", None),
        ({"$ref": "#/$defs/X", "$defs": {"X": TITLED}}, "t", "integer"),
        ({"type": "object", "properties": {"child": {"$ref": "#"}}}, "child.child.child", "object"),
    ],
)
def test_a_possible_path_is_known_with_its_type(schema: dict[str, Any], path: str, type_: str | None) -> None:
    found = look(schema, path)
    assert isinstance(found, PathSchemas)
    assert declared_type(schema, found.schemas) == type_


@pytest.mark.parametrize(
    ("schema", "path", "position", "available"),
    [
        ({"type": "object"}, "v", 0, ()),
        ({}, "v", 0, ()),
        (TITLED, "v", 0, ("t",)),
        (holding(TITLED), "a.nope.more", 1, ("t",)),
        (holding({"type": "string"}), "a.length", 1, ()),
        (holding({"type": "array"}), "a.first", 1, ()),
        (holding({"type": "array", "items": TITLED}), "a.0.nope", 2, ("t",)),
        (holding({"prefixItems": [{}], "items": False}), "a.1", 1, ()),
        (holding({"anyOf": [TITLED, {"type": "null"}]}), "a.u", 1, ("t",)),
        (holding({"anyOf": [TITLED, {"properties": {"w": {}}}]}), "a.u", 1, ("t", "w")),
        (holding({"$ref": "#/$defs/X"}, **{"$defs": {"X": TITLED}}), "a.u", 1, ("t",)),
        (holding({"type": "object", "additionalProperties": False}), "a.u", 1, ()),
        (holding({"type": ["object", "null"], "properties": {"t": {}}}), "a.u", 1, ("t",)),
        ({"$ref": "#"}, "v", 0, ()),
    ],
)
def test_an_impossible_path_is_absent_and_says_what_is_there(
    schema: dict[str, Any], path: str, position: int, available: tuple[str, ...]
) -> None:
    assert look(schema, path) == NotInSchema(position, available)


def test_a_long_path_through_a_schema_that_branches_at_every_level_ends() -> None:
    tree = {"properties": {"l": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}, "r": {"$ref": "#"}}}
    assert isinstance(follow(tree, ["l", "r"] * 5_000), PathSchemas)


_schemas = st.recursive(
    st.booleans() | st.just({}) | st.sampled_from(["string", "object", "array", 5, None]).map(lambda t: {"type": t}),
    lambda inner: st.dictionaries(
        st.sampled_from(["properties", "anyOf", "allOf", "items", "$ref", "additionalProperties", "prefixItems"]),
        inner | st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab0"), inner) | st.just("#"),
        max_size=3,
    ),
    max_leaves=6,
)


@given(_schemas, st.lists(st.sampled_from("ab0"), max_size=4))
def test_any_junk_in_place_of_a_schema_is_followed_without_failing(schema: Any, path: list[str]) -> None:
    found = follow(schema if isinstance(schema, dict) else {"properties": schema}, path)
    if isinstance(found, PathSchemas):
        declared_type(schema if isinstance(schema, dict) else {}, found.schemas)


_plain_schemas = st.recursive(
    st.sampled_from([{}, {"type": "string"}, {"type": ["array", "null"]}, {"$ref": "#/$defs/X"}]),
    lambda inner: st.one_of(
        st.builds(lambda a, b: {"type": "object", "properties": {"a": a, "0": b}, "title": "T"}, inner, inner),
        st.builds(
            lambda a, more: {"type": "object", "properties": {"a": a}, "additionalProperties": more},
            inner,
            st.booleans() | inner,
        ),
        st.builds(lambda item: {"type": "array", "items": item}, inner),
        st.builds(lambda item: {"type": "array", "items": item, "prefixItems": [{"type": "integer"}]}, inner),
        st.builds(lambda a: {"type": ["object", "array"], "properties": {"a": a}, "items": a}, inner),
    ),
    max_leaves=5,
)


@given(_plain_schemas, st.lists(st.sampled_from(["a", "0", "7", "x"]), min_size=1, max_size=4), st.booleans())
def test_a_plain_schema_says_the_same_as_when_it_is_looked_at_with_all_its_keywords(
    schema: dict[str, Any], path: list[str], is_strict: bool
) -> None:
    root = {**schema, "$defs": {"X": TITLED}}
    # A conjunct that says nothing keeps a schema from being taken for a plain one.
    assert _ends(root, path, is_strict) == _ends(_with_conjuncts(root), path, is_strict)


def _with_conjuncts(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_with_conjuncts(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {
        key: {name: _with_conjuncts(one) for name, one in value.items()}
        if key in ("properties", "$defs")
        else _with_conjuncts(value)
        for key, value in schema.items()
    }
    return {**inner, "allOf": []} if "type" in inner else inner


def _ends(schema: dict[str, Any], path: list[str], is_strict: bool) -> Any:
    end = follow(schema, path, first_must_be_declared=is_strict)
    return end if isinstance(end, NotInSchema) else declared_type(schema, end.schemas)
