"""Resolution: one pass, JSON types kept, inserted text never read again (docs/decisions.md, D3)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planq.shared.agentic.references.resolution import resolve
from planq.shared.platform.errors import InvalidArguments
from planq.shared.platform.values.excerpts import Excerpts
from tests.unit.agentic.strategies import json_values


def test_a_whole_string_keeps_the_json_type_and_an_embedded_one_becomes_text() -> None:
    outputs = {0: {"n": 7, "s": "a", "o": {"k": [1, None]}}}
    arguments = {"a": "$0.output.o", "b": "{{ $0.output.o }}", "c": "{{ $0.output.n }}", "d": "<{{$0.output.s}}>"}

    assert resolve(arguments, outputs).arguments == {
        "a": {"k": [1, None]},
        "b": '{"k":[1,null]}',
        "c": "7",
        "d": "<a>",
    }


def test_numeric_segments_index_arrays_and_are_keys_of_objects() -> None:
    outputs = {0: {"items": [{"id": "x"}, {"id": "y"}], "map": {"0": "zero"}}}

    resolved = resolve(["$0.output.items.1.id", "$0.output.items[0].id", "$0.output.map.0"], outputs)

    assert resolved.arguments == ["y", "x", "zero"]
    assert resolved.missing == ()


@pytest.mark.parametrize(
    ("template", "field", "available"),
    [
        ("$0.output.b.c", "b", ("a", "list")),
        ("$0.output.list.2", "2", ()),
        ("$0.output.list.x", "x", ()),
        ("$0.output.a.b", "b", ()),
        ("$5.output.z", "z", ()),
        ("$0.output.list." + "9" * 5_000, "9" * 5_000, ()),
    ],
)
def test_an_absent_path_is_null_and_named(template: str, field: str, available: tuple[str, ...]) -> None:
    resolved = resolve({"v": template}, {0: {"a": "text", "list": [1, 2]}})

    assert resolved.arguments == {"v": None}
    (missing,) = resolved.missing
    assert (missing.pointer, missing.template, missing.field) == ("/v", template, field)
    assert missing.available == available
    assert len(missing.render()) < 1_000


def test_the_whole_output_is_a_value_and_a_text() -> None:
    outputs = {0: {"n": 1}, 1: [{"id": 7}]}

    resolved = resolve(["$0.output", "all: {{ $0.output }}", "$1.output[0].id", "\\$0.output"], outputs)

    assert resolved.arguments == [{"n": 1}, 'all: {"n":1}', 7, "$0.output"]
    assert resolve(["$5.output"], outputs).missing[0].field == "output"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "It is {{ $0.output.c }}.",
            r"\{\{ \$0\.output\.c \}\} found no 'c' .*fields there: 'a', 'list'.*/v cannot be",
        ),
        ("{{ $0.output.list.2 }}", "an array of 2"),
        ("{{ $5.output }}", r"\$5, which has no output"),
    ],
)
def test_what_is_absent_cannot_be_written_into_a_text(text: str, told: str) -> None:
    with pytest.raises(InvalidArguments, match=told):
        resolve({"v": text}, {0: {"a": "text", "list": [1, 2]}})


def test_a_null_is_written_into_a_text() -> None:
    assert resolve(["<{{ $0.output.a }}>"], {0: {"a": None}}).arguments == ["<null>"]


def test_a_present_null_is_not_missing() -> None:
    assert resolve("$0.output.a", {0: {"a": None}}).missing == ()


def test_the_result_shares_nothing_with_the_outputs() -> None:
    outputs: dict[int, Any] = {0: {"list": [1]}}
    arguments = resolve({"a": "$0.output.list", "b": "$0.output.list"}, outputs).arguments

    arguments["a"].append(2)

    assert arguments["b"] == [1]
    assert outputs == {0: {"list": [1]}}


def test_depth_is_no_limit_except_in_text() -> None:
    deep: Any = "end"
    for _ in range(50_000):
        deep = [deep]
    resolved = resolve({"a": "$0.output.deep"}, {0: {"deep": deep}}).arguments["a"]
    for _ in range(50_000):
        (resolved,) = resolved
    assert resolved == "end"
    with pytest.raises(InvalidArguments):
        resolve("{{ $0.output.deep }}", {0: {"deep": deep}})


@given(json_values)
def test_inserted_text_is_never_read_as_a_template(value: Any) -> None:
    hostile = {
        "text": "$1.output.secret {{ $1.output.secret }}",
        "whole": "$1.output.secret",
        "more": value,
        "e": "\\{{",
    }
    outputs = {0: {"v": hostile}, 1: {"secret": "S3CRET"}}

    resolved = resolve({"a": "$0.output.v", "b": "x {{ $0.output.v.text }} {{ $0.output.v.whole }}"}, outputs)

    assert resolved.arguments["a"] == hostile
    assert resolved.arguments["b"] == f"x {hostile['text']} {hostile['whole']}"
    assert "S3CRET" not in str(resolved)


@given(json_values, st.dictionaries(st.integers(0, 3), json_values, max_size=3))
def test_any_arguments_resolve_and_keep_their_shape(arguments: Any, outputs: dict[int, Any]) -> None:
    resolved = resolve(arguments, outputs).arguments
    if "$" not in str(arguments) and "{{" not in str(arguments):
        assert resolved == arguments


@pytest.mark.parametrize(
    "arguments",
    [
        "{{ $0.output.text }}" * 11,
        ["$0.output.text"] * 11,
        {"a": ["$0.output.many"] * 11},
        {"a": "$0.output.keys", "b": "$0.output.keys"},
    ],
    ids=["embedded", "whole", "values", "keys"],
)
def test_a_short_plan_cannot_put_together_a_huge_value(arguments: Any) -> None:
    outputs = {0: {"text": "x" * 1_000, "many": [0] * 1_000, "keys": {"k" * 6_000: 1}}}

    with pytest.raises(InvalidArguments, match="more than 10000 characters"):
        resolve(arguments, outputs, max_size=10_000)


def test_the_size_counts_characters_and_values() -> None:
    assert resolve({"a": ["$0.output.t", 1, None]}, {0: {"t": "xyz"}}).size == 1 + 1 + 1 + (1 + 3) + 1 + 1


def loaded(output: Any, *paths: tuple[str, ...]) -> Excerpts:
    """An output that was read for this very resolution."""
    return Excerpts(b"", len(json.dumps(output)), {}).extended(output, paths)


def test_what_nobody_else_holds_is_given_away_where_one_reference_leads_to_it() -> None:
    rows = [{"a": ["$0.output.b"]}]
    outputs = {0: loaded({"rows": rows}, ("rows",))}

    own = resolve({"x": {"y": "$0.output.rows"}, "z": "t"}, outputs, owned=[0])
    copied = resolve({"x": {"y": "$0.output.rows"}, "z": "t"}, outputs)

    assert own.arguments == copied.arguments == {"x": {"y": rows}, "z": "t"}
    assert own.arguments["x"]["y"] is rows
    assert copied.arguments["x"]["y"] is not rows
    assert own.size >= copied.size


@pytest.mark.parametrize(
    "arguments",
    [
        ["$0.output.rows", "$0.output.rows"],
        ["$0.output.rows", "$0.output.rows[0]"],
        ["$0.output.rows", "{{ $0.output.rows }}"],
        ["{{ $0.output.rows }}"],
    ],
)
def test_what_is_named_more_than_once_or_in_a_text_is_copied(arguments: list[str]) -> None:
    rows = [{"a": [1]}]
    outputs = {0: loaded({"rows": rows}, ("rows",), ("rows", "0"))}

    resolved = resolve(arguments, outputs, owned=[0])

    assert resolved == resolve(arguments, outputs)
    assert not any(value is rows or value is rows[0] for value in resolved.arguments)


def test_what_is_put_together_may_be_as_large_as_its_bound() -> None:
    arguments, outputs = ["$0.output.text", "y"], {0: {"text": "x" * 50}}
    size = resolve(arguments, outputs, max_size=1000).size

    assert resolve(arguments, outputs, max_size=size).arguments == ["x" * 50, "y"]
    with pytest.raises(InvalidArguments, match=f"more than {size - 1} characters"):
        resolve(arguments, outputs, max_size=size - 1)


def test_what_is_given_away_counts_with_its_size_unless_a_copy_would_count_less() -> None:
    rows = ["x" * 60]
    outputs = {step: loaded({"rows": rows}, ("rows",)) for step in (0, 1)}  # 73 bytes of JSON, 62 of which count

    one = resolve(["$0.output.rows", "y" * 20], outputs, owned=[0, 1], max_size=130)
    two = resolve(["$0.output.rows", "$1.output.rows"], outputs, owned=[0, 1], max_size=130)

    assert (one.arguments[0] is rows, two.arguments[0] is rows) == (True, False)
    with pytest.raises(InvalidArguments, match="more than 90 characters"):
        resolve(["$0.output.rows", "y" * 20], outputs, owned=[0], max_size=90)


def test_what_is_missing_in_an_owned_output_is_told_as_ever() -> None:
    outputs = {0: loaded({"a": 1}, ("rows",))}

    assert resolve(["$0.output.rows"], outputs, owned=[0]).missing == resolve(["$0.output.rows"], outputs).missing
