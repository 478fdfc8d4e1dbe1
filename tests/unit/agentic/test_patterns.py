from __future__ import annotations

import re

import pytest

from planq.shared.agentic.agents.document import parse_agent
from planq.shared.agentic.schema.patterns import is_found, needs_backtracking, patterns_of
from planq.shared.agentic.schema.schemas import compile_schema
from planq.shared.platform.errors import InvalidRequest

HOSTILE = "^(a+)+$"
"""Python's own engine takes twice as long for each further `a`: hours for these forty."""
LONG = "a" * 40 + "!"


def schema(pattern: str) -> dict[str, object]:
    return {"type": "object", "properties": {"x": {"type": "string", "pattern": pattern}}}


def test_a_hostile_pattern_is_answered_like_any_other() -> None:
    assert not is_found(HOSTILE, LONG)
    assert is_found(HOSTILE, LONG[:-1])
    assert [v.code for v in compile_schema(schema(HOSTILE)).violations({"x": LONG})] == ["pattern"]
    assert compile_schema(schema(HOSTILE)).violations({"x": LONG[:-1]}) == []


def test_names_of_properties_are_matched_as_fast() -> None:
    named = compile_schema({"patternProperties": {HOSTILE: {"type": "integer"}}, "additionalProperties": False})

    assert named.violations({LONG[:-1]: 1}) == []
    assert [v.code for v in named.violations({LONG[:-1]: "1"})] == ["type"]
    assert [v.code for v in named.violations({LONG: 1})] == ["additionalProperties"]


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("b", "abc"),
        ("^b", "abc"),
        (r"^\d{4}-\d{2}$", "2026-11"),
        (r"\/x", "a/x"),
        ("", ""),
        ("^(?!a)", "b"),
        (r"^\S+$", "ü"),
    ],
)
def test_a_pattern_finds_what_python_finds(pattern: str, text: str) -> None:
    assert is_found(pattern, text) == (re.search(pattern, text) is not None)


def test_what_is_no_regular_expression_says_so() -> None:
    assert needs_backtracking("(")
    with pytest.raises(ValueError, match="regex"):
        is_found("(", "x")


def test_all_patterns_of_a_schema_are_found() -> None:
    nested = {
        "properties": {"pattern": {"items": {"pattern": "a"}}, "b": {"const": {"pattern": "no"}}},
        "patternProperties": {"^c": {"anyOf": [{"pattern": "d"}]}},
    }

    assert sorted(patterns_of(nested), key=lambda found: found[1]) == [
        (("patternProperties", "^c"), "^c"),
        (("properties", "pattern", "items", "pattern"), "a"),
        (("patternProperties", "^c", "anyOf", 0, "pattern"), "d"),
    ]


def test_a_document_with_a_pattern_that_can_take_for_ever_is_refused() -> None:
    document = {"name": "a", "description": "d", "structured_output": True, **schema("^(?=a)(a+)+$")}

    with pytest.raises(InvalidRequest, match="look-around"):
        parse_agent(document)
    parse_agent({**document, **schema(HOSTILE)})
    hidden = {"x": {"$ref": "#/properties/y/default"}, "y": {"default": {"pattern": "^(?=a)(a+)+$"}}}
    with pytest.raises(InvalidRequest, match="look-around"):
        parse_agent({**document, "properties": hidden})


@pytest.mark.parametrize("pattern", ["^(?=a)a", "(", "[z-a]"])
def test_a_pattern_that_is_refused_is_told_where_it_stands(pattern: str) -> None:
    document = {"name": "a", **schema(pattern), "actions": {"go": {"input_schema": schema(pattern)}}}

    with pytest.raises(InvalidRequest) as refused:
        parse_agent(document)

    assert [one["path"] for one in refused.value.details["errors"]] == [
        "/actions/go/input_schema/properties/x/pattern",
        "/properties/x/pattern",
    ]
