"""Schemas from strangers: whatever they refer to is looked at, and nothing in them keeps a process busy."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from planq.shared.agentic.agents.document import parse_agent
from planq.shared.agentic.references.schema_paths import NotInSchema, declared_type, follow
from planq.shared.agentic.schema.schemas import MAX_STEPS, Steps, check_schema, compile_schema
from planq.shared.platform.errors import InvalidRequest, Misconfigured
from tests.unit.agentic.strategies import json_values

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
    assert (found.code, "known properties: 'b'" in found.message) == ("unevaluatedProperties", True)


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
    assert (found.pointer, found.code) == ("/left", "unevaluatedProperties")


LEVELS = 30


def branching(keyword: str) -> dict[str, Any]:
    """Two kilobytes that come to a thousand million schemas."""
    following = [[{"$ref": f"#/$defs/d{level + 1}"}] * 2 for level in range(LEVELS)]
    if keyword == "properties":
        levels: list[dict[str, Any]] = [{"properties": dict(zip("ab", two, strict=True))} for two in following]
    elif keyword == "if":
        levels = [{"if": one, "then": two, "else": two} for one, two in following]
    else:
        levels = [{keyword: two} for two in following]
    definitions = {f"d{level}": one for level, one in enumerate(levels)} | {f"d{LEVELS}": {"type": "string"}}
    return {"type": "object", "properties": {"x": {"$ref": "#/$defs/d0"}}, "$defs": definitions}


def within(levels: int, keyword: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"properties": {"a": True}}
    for _ in range(levels):
        schema = {"allOf": [schema], keyword: False}
    return {"type": "object", "properties": {"x": schema}}


def tree(levels: int, value: Any = 1) -> Any:
    for _ in range(levels):
        value = {"c": value}
    return {"x": value}


LEAF = {"required": ["c"], "properties": {"c": {"$ref": "#/$defs/t"}}}
ALTERNATIVES = [{**LEAF, "type": "object", "properties": {**LEAF["properties"], "kind": {"const": k}}} for k in "abc"]
AMBIGUOUS = {
    "type": "object",
    "properties": {"x": {"$ref": "#/$defs/t"}},
    "$defs": {"t": {"oneOf": [*ALTERNATIVES, {"type": "string"}]}},
}
EITHER = {**AMBIGUOUS, "$defs": {"t": {"anyOf": [*ALTERNATIVES, {"type": "string"}]}}}
BRANCHING = [branching(keyword) for keyword in ("allOf", "anyOf", "oneOf", "if", "properties")]
NAMES = ["allOf", "anyOf", "oneOf", "if", "properties"]


@pytest.mark.parametrize("keyword", NAMES)
@pytest.mark.parametrize("value", [{"x": "text"}, {"x": 1}, {"x": {"a": {"b": 1}}}], ids=["text", "number", "object"])
def test_a_schema_that_branches_at_each_level_is_never_gone_through(keyword: str, value: Any) -> None:
    found = compile_schema(branching(keyword)).violations(value)

    assert [one.code for one in found] == ([] if keyword == "properties" else ["cost"])


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        (within(LEVELS, "unevaluatedProperties"), {"x": {"a": 1}}, ["cost"]),
        (within(LEVELS, "unevaluatedProperties"), {"x": {"b": 1}}, ["cost"]),
        (within(LEVELS, "unevaluatedItems"), {"x": [1, 2]}, ["cost"]),
        (AMBIGUOUS, tree(90), ["schema"]),
        (EITHER, tree(90), ["schema"]),
        (EITHER, tree(90, "text"), []),
    ],
    ids=["names", "other names", "items", "alternatives", "several alternatives", "valid"],
)
def test_a_schema_that_refers_to_itself_in_alternatives_is_decided_soon(
    schema: dict[str, Any], value: Any, expected: list[str]
) -> None:
    assert [one.code for one in compile_schema(schema).violations(value)] == expected


def test_what_one_of_many_alternatives_misses_is_told_while_there_are_few() -> None:
    (found,) = compile_schema(EITHER).violations(tree(3))

    assert found.render() == "/x: fits none, or more than one, of 4 alternatives; found an object ('c')"


def test_a_large_value_is_told_its_first_fault() -> None:
    schema = {"properties": {"x": {"items": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}}
    items = ["a"] * 100_000

    (found,) = compile_schema(schema).violations({"x": [*items, 1, 2]})

    assert found.render() == "/x/100000: expected string, found 1"


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"contains": {"type": "string"}, "unevaluatedItems": {"pattern": "a"}}, list(range(200_000))),
        ({"anyOf": [{"type": "string"}, {"uniqueItems": True, "maxItems": 1}] * 2_000}, list(range(100_000))),
        (
            {"items": {"properties": {f"p{number}": {"not": {}} for number in range(10_000)}}},
            [{} for _ in range(100_000)],
        ),
        ({"items": {"properties": {f"p{number}": {} for number in range(10_000)}}}, [{} for _ in range(100_000)]),
        ({"pattern": "(.*a.{400})+z"}, "abxy" * 100_000),
    ],
)
def test_what_takes_too_many_steps_is_said_to(schema: Any, value: Any) -> None:
    (found,) = compile_schema({"properties": {"x": schema}}).violations({"x": value})

    assert found.code == "cost"
    assert f"more than {MAX_STEPS} steps" in found.message


def test_checks_can_share_their_steps() -> None:
    compiled, steps = compile_schema(AMBIGUOUS), Steps(20_000)

    assert [one.code for one in compiled.violations(tree(3), steps=steps)] == ["oneOf"]
    assert not steps.are_spent
    assert [one.code for one in compiled.violations(tree(90), steps=steps)] == ["cost"]
    assert steps.are_spent


@pytest.mark.parametrize("schema", BRANCHING, ids=NAMES)
def test_a_schema_that_nobody_could_write_out_is_refused(schema: dict[str, Any]) -> None:
    check_schema(schema, "mine")
    with pytest.raises(Misconfigured, match=r"theirs: with its references written out, the schema at /\$defs/d\d+ "):
        check_schema(schema, "theirs", is_trusted=False)


def test_an_agent_with_such_a_schema_is_refused_with_its_path() -> None:
    hostile = branching("allOf")
    document = {"name": "a", "structured_output": True, **hostile, "actions": {"go": {"input_schema": hostile}}}

    with pytest.raises(InvalidRequest, match="written out") as refused:
        parse_agent(document)

    assert [one["path"] for one in refused.value.details["errors"]] == ["", "/actions/go/input_schema"]


def test_definitions_that_refer_to_each_other_are_counted_as_they_stand() -> None:
    names = [f"n{number}" for number in range(40)]
    each = {"anyOf": [{"type": "object", "properties": {"of": {"$ref": f"#/$defs/{name}"}}} for name in names]}

    check_schema({"$defs": dict.fromkeys(names, each), "$ref": "#/$defs/n0"}, "theirs", is_trusted=False)


def test_what_a_branching_schema_says_of_a_field_is_found() -> None:
    schema = branching("anyOf")

    assert follow(schema, ["x", "y"]) == NotInSchema(1, ())
    assert declared_type(schema, [schema["properties"]["x"]]) == "string"


@pytest.mark.parametrize(
    "dialect", ["http://json-schema.org/draft-07/schema#", "http://json-schema.org/draft-04/schema#"]
)
def test_a_part_that_names_its_own_dialect_keeps_the_bounds(dialect: str) -> None:
    inner = {"$schema": dialect, "pattern": HOSTILE}
    compiled = compile_schema({"properties": {"x": {"not": inner}, "y": inner}})

    assert [one.pointer for one in compiled.violations({"x": LONG[:-1], "y": LONG})] == ["/x", "/y"]


def test_patterns_that_repeat_too_much_are_refused_in_time() -> None:
    for pattern in ("(x{0,1000}){0,1000}", "(.{0,900}x){9}"):
        with pytest.raises(Misconfigured, match="repeats too much"):
            check_schema({"properties": {"x": {"pattern": pattern}}}, "theirs", is_trusted=False)
    many = {f"p{number}": {"pattern": f"^.{{1,{300 + number}}}$"} for number in range(500)}
    with pytest.raises(Misconfigured, match="too large together"):
        check_schema({"properties": many}, "theirs", is_trusted=False)


def test_a_large_schema_is_checked_word_for_word() -> None:
    large = {f"p{number}": {"anyOf": [{"type": "string"}, {"type": "null"}]} for number in range(5_000)}

    check_schema({"properties": large}, "theirs", is_trusted=False)
    with pytest.raises(Misconfigured, match="at /properties/last/anyOf"):
        check_schema({"properties": {**large, "last": {"anyOf": 5}}}, "theirs", is_trusted=False)


def any_schemas() -> st.SearchStrategy[Any]:
    """Schemas of every keyword whose meaning is bounded here, in any combination."""

    def deeper(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        several = st.lists(inner, min_size=1, max_size=3)
        keywords: dict[str, st.SearchStrategy[Any]] = {
            "type": st.sampled_from(["string", "integer", "object", "array", ["null", "number"]]),
            "enum": st.lists(st.sampled_from([0, 1, True, "a", [1], {}]), min_size=1, max_size=3),
            "properties": st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
            "patternProperties": st.dictionaries(st.sampled_from(["^a", "b"]), inner, max_size=2),
            "additionalProperties": inner,
            "unevaluatedProperties": inner,
            "prefixItems": several,
            "items": inner,
            "contains": inner,
            "minContains": st.integers(0, 2),
            "maxContains": st.integers(0, 2),
            "unevaluatedItems": inner,
            "uniqueItems": st.booleans(),
            "minItems": st.integers(0, 2),
            "maxProperties": st.integers(0, 2),
            "maxLength": st.integers(0, 2),
            "pattern": st.sampled_from(["^a", "b$"]),
            "not": inner,
            "allOf": several,
            "anyOf": several,
            "oneOf": several,
            "if": inner,
            "then": inner,
            "else": inner,
            "$ref": st.sampled_from(["#/$defs/one", "#/$defs/two"]),
        }
        # Two of them at a time: with twenty every value is invalid.
        return st.lists(st.sampled_from(sorted(keywords)), min_size=1, max_size=2, unique=True).flatmap(
            lambda names: st.fixed_dictionaries({name: keywords[name] for name in names})
        )

    return st.recursive(st.booleans() | st.just({}), deeper, max_leaves=8)


ITEMS = st.sampled_from([0, 1, 1.0, True, None, "", "a", "b", "ab"])
VALUES = st.recursive(
    ITEMS, lambda one: st.lists(one, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "ab"]), one, max_size=3)
)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}}},
        {
            "$ref": "#/$defs/d0",
            "$defs": {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{m}"} for m in range(12)]} for n in range(12)},
        },
        {"$dynamicAnchor": "a", "not": {"anyOf": [{"$dynamicRef": "#a"}, {"$dynamicRef": "#a"}]}},
        {"$schema": "https://json-schema.org/draft/2019-09/schema", "if": {"$recursiveRef": "#"}},
    ],
)
def test_a_schema_that_refers_to_itself_for_the_same_value_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(Misconfigured, match="refers to itself for the same value"):
        check_schema(schema, "mine")


@pytest.mark.parametrize("length", [200, 2_000, 5_000])
def test_a_chain_of_references_ends(length: int) -> None:
    chain = {f"d{number}": {"$ref": f"#/$defs/d{number + 1}"} for number in range(length)}
    definitions = {**chain, f"d{length}": {"type": "string"}}
    schema = {"type": "object", "properties": {"x": {"$ref": "#/$defs/d0"}}, "$defs": definitions}

    assert compile_schema(schema).violations({"x": "text"}) == []
    (found,) = compile_schema(schema).violations({"x": 1})
    assert found.code == ("type" if length < 500 else "depth")


@given(schema=any_schemas(), one=any_schemas(), value=VALUES | json_values)
def test_a_bounded_check_finds_what_the_library_finds(schema: Any, one: Any, value: Any) -> None:
    definitions = {
        "one": one,
        "two": {"properties": {"a": {"$ref": "#/$defs/one"}}, "items": {"$ref": "#/$defs/two"}},
    }
    whole = {"properties": {"x": schema}, "$defs": definitions}

    try:
        expected = {
            (tuple(map(str, error.absolute_path)), error.validator)
            for error in jsonschema.Draft202012Validator(whole).iter_errors({"x": value})
        }
    except RecursionError:
        return
    except BaseException as error:  # rpds panics where a lookup meets the end of the stack
        if type(error).__name__ != "PanicException":
            raise
        return
    try:
        found = compile_schema(whole).violations({"x": value})
    except Misconfigured:
        assume(False)  # it refers to itself for the same value

    assert {(tuple(one.pointer.split("/")[1:]), one.code) for one in found if one.code != "false"} <= {
        (tuple(part.replace("~", "~0").replace("/", "~1") for part in path), keyword) for path, keyword in expected
    } | {
        # What may be null is told by the other alternative.
        (tuple(one.pointer.split("/")[1:]), one.code)
        for one in found
        if any(keyword == "anyOf" for _, keyword in expected)
    }
    assert bool(found) is bool(expected)
