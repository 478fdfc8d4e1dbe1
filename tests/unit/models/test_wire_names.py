"""Names and schemas of tools as providers take them, and the arguments of calls by their own names again."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planq.shared.agentic.models.adaptations import Adaptation
from planq.worker.models.schemas import flat_root, inlined, plain_schema, sent_schema
from planq.worker.models.wire_names import PropertyNames, WireNames, foreign_properties

ALLOWED = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
ROW = {"type": "object", "properties": {"$top": {"type": "integer"}, "next": {"$ref": "#/$defs/row"}}}
ODD = {
    "type": "object",
    "properties": {
        "$top": {"type": "integer", "description": "How many."},
        "top": {"type": "integer"},
        "filter[name]": {"type": "string"},
        "имя": {"type": "string"},
        "дата": {"type": "string"},
        "x" * 90: {"type": "string"},
        "free": {"type": "object"},
        "rows": {"type": "array", "items": {"$ref": "#/$defs/row"}},
        "either": {"anyOf": [{"type": "null"}, {"type": "object", "properties": {"@id": {"type": "string"}}}]},
        "same": {"$ref": "#/properties/filter[name]"},
    },
    "required": ["$top", "top"],
    "$defs": {
        "row": {"type": "object", "properties": {"$top": {"type": "integer"}, "next": {"$ref": "#/$defs/row"}}}
    },
}
ARGUMENTS = {
    "$top": 1,
    "top": 2,
    "filter[name]": "a",
    "имя": "b",
    "дата": "c",
    "x" * 90: "d",
    "free": {"$top": 1, "top_2": 2, "имя": 3},
    "rows": [{"$top": 3, "next": {"$top": 4, "next": {"$top": 5}}}],
    "either": {"@id": "e"},
    "unlisted": {"$top": 6},
}


def test_properties_are_renamed_on_the_wire_and_back() -> None:
    names = PropertyNames(ODD)

    assert list(foreign_properties(names.schema)) == []
    sent = names.out(ARGUMENTS)
    assert names.back(sent) == ARGUMENTS
    assert sent["top"] == 2, "what has a name that is taken keeps it"
    assert sent["top_2"] == 1
    assert sent["filter_name"] == "a"
    assert {sent["argument"], sent["argument_2"]} == {"b", "c"}
    assert sent["free"] == ARGUMENTS["free"], "keys of an object without listed properties are data"
    assert sent["unlisted"] == {"$top": 6}
    assert sent["rows"][0] == {"top_2": 3, "next": {"top_2": 4, "next": {"top_2": 5}}}
    assert sent["either"] == {"id": "e"}
    jsonschema.Draft202012Validator.check_schema(names.schema)
    jsonschema.validate(sent, names.schema)
    assert names.schema["required"] == ["top_2", "top"]
    assert names.schema["properties"]["top_2"]["description"] == "Its name is `$top`. How many."
    assert names.schema["properties"]["same"] == {"$ref": "#/properties/filter_name"}


@given(
    st.dictionaries(st.text(min_size=1, max_size=80), st.sampled_from([{"type": "string"}, {}, True]), max_size=8),
)
def test_every_name_comes_back(properties: dict[str, Any]) -> None:
    names = PropertyNames({"type": "object", "properties": properties, "additionalProperties": False})
    arguments = dict.fromkeys(properties, "x")

    sent = names.out(arguments)

    assert all(ALLOWED.fullmatch(name) for name in sent)
    assert len(sent) == len(arguments)
    assert names.back(sent) == arguments


@pytest.mark.parametrize("arguments", [None, [], "text", 3, {"$top": [1]}, {"rows": {"$top": 1}}])
def test_arguments_of_another_form_are_left_as_they_are_shaped(arguments: Any) -> None:
    names = PropertyNames(ODD)
    assert names.back(names.out(arguments)) == arguments


def test_tools_with_names_that_all_take_are_sent_as_they_are() -> None:
    plain = {"name": "a", "description": "", "parameters": {"type": "object", "properties": {"x": {}}}}
    odd = {"name": "b", "description": "", "parameters": ODD}

    every = WireNames([plain, odd])
    strict = WireNames([plain, odd], [Adaptation.PLAIN_PROPERTIES])

    assert "$top" in every.schema("b")["properties"]
    assert every.arguments_out("b", {"$top": 1}) == {"$top": 1}
    assert strict.schema("a") == every.schema("a")
    assert "$top" not in strict.schema("b")["properties"]
    assert strict.arguments_back("b", strict.arguments_out("b", {"$top": 1})) == {"$top": 1}
    assert strict.arguments_back("nobody's", {"top": 1}) == {"top": 1}


def test_a_reference_is_replaced_by_what_it_refers_to() -> None:
    made = inlined(ODD)

    assert "$defs" not in made
    row = made["properties"]["rows"]["items"]
    assert row["properties"]["next"]["properties"]["$top"] == {"type": "integer"}
    assert made["properties"]["same"] == {"type": "string"}
    jsonschema.validate(ARGUMENTS | {"$top": 1}, made)


def test_references_that_multiply_end() -> None:
    definitions = {
        f"d{number}": {
            "type": "object",
            "properties": {f"p{one}": {"$ref": f"#/$defs/d{number + 1}"} for one in range(10)},
        }
        for number in range(11)
    }
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": definitions}

    assert len(json.dumps(inlined(schema))) < 5_000_000


@pytest.mark.parametrize("pointer", ["#/$defs/none", "other.json#/a", "#/properties/a/0/b", 3])
def test_a_reference_to_nothing_takes_anything(pointer: Any) -> None:
    assert inlined({"type": "object", "properties": {"a": {"$ref": pointer}}})["properties"] == {"a": {}}


def test_the_top_of_a_schema_has_no_alternatives() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "allOf": [{"properties": {"b": {"type": "integer"}}, "required": ["b"]}],
        "oneOf": [{"properties": {"c": {}}, "required": ["c"]}, {"properties": {"d": {}}, "required": ["d"]}],
    }

    made = flat_root(schema)

    assert set(made["properties"]) == {"a", "b", "c", "d"}
    assert made["required"] == ["b"]
    assert not {"allOf", "oneOf", "anyOf"} & set(made)
    assert sent_schema({"$ref": "#/$defs/x", "$defs": {"x": schema}}, ())["required"] == ["b"]


def test_a_plain_schema_says_what_it_can_with_what_every_provider_takes() -> None:
    schema = {
        "type": ["object", "null"],
        "title": "T",
        "additionalProperties": False,
        "properties": {
            "n": {"type": "integer", "exclusiveMinimum": 0, "default": 1, "description": "A number."},
            "s": {"type": ["string", "null"], "pattern": "^a", "format": "uuid"},
            "k": {"const": "x"},
            "e": {"enum": [1, 2]},
            "u": {"oneOf": [{"type": "string"}, {"type": "integer"}]},
            "o": {"anyOf": [{"type": "null"}, {"type": "array", "prefixItems": [{"type": "string"}]}]},
            "t": {"type": ["string", "integer"]},
            "all": {"allOf": [{"type": "object", "properties": {"x": {"type": "string"}}}], "description": "D"},
            "any": True,
        },
        "required": ["n", "gone"],
    }

    assert plain_schema(schema) == {
        "type": "object",
        "properties": {
            "n": {"type": "integer", "description": "A number."},
            "s": {"type": "string"},
            "k": {"enum": ["x"]},
            "e": {},
            "u": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
            "o": {"type": "array", "items": {}},
            "t": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
            "all": {"type": "object", "properties": {"x": {"type": "string"}}, "description": "D"},
            "any": {},
        },
        "required": ["n"],
    }
