"""Expressions: what may be stored, what they select, and that no evaluation is unbounded."""

from __future__ import annotations

from typing import Any

import jmespath
import pytest

from planq.shared.agentic.rounds.block import ERROR_VARIABLES, LOOP_VARIABLES
from planq.shared.agentic.rounds.expressions import (
    MAX_EXPRESSION_BYTES,
    ExpressionFailed,
    expression_defect,
    expression_value,
    holds,
    rendered,
    template_defects,
)

KNOWN: dict[str, Any] = {
    "results": [
        {"index": 0, "name": "web_fetch", "result": {"n": 1}, "error": None},
        {"index": 1, "name": "web_fetch", "result": None, "error": "{{ query }} broke"},
    ],
    "plan": {"reasoning": None, "steps": [{"index": 1}]},
    "vars": {"most": 3, "nothing": None},
    "round": 2,
    "query": "what is {{ round }}?",
}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("(" * 5000 + "round" + ")" * 5000, "10005 bytes; at most 1024"),
        ("(" * 500 + "round" + ")" * 500, "nested more than 32 levels deep"),
        ("!" * 500 + "round", "nested more than 32 levels deep"),
        ("round" + " | @" * 200, "nested more than 32 levels deep"),
        ("", "found an empty text"),
        ("results[", "does not parse at character"),
        ("round > 3", "numbers stand in backquotes"),
        ("round == `1` and query", "write &&"),
        ("'open", "does not parse at character"),
        ("resuls[0]", "names 'resuls'; known names are plan, query"),
        ("length(result) || x.y && [a, b]", "names 'a', 'b', 'result', 'x'"),
        ("lenght(results)", "no function 'lenght'"),
        ("length(results, plan)", "takes 1 arguments, found 2"),
        ("not_null()", "takes at least 1 arguments, found 0"),
        ("step.name", "names 'step'"),
        (7, "expected an expression (JMESPath), found 7"),
    ],
)
def test_what_cannot_be_evaluated_is_not_stored(text: Any, told: str) -> None:
    assert told in (expression_defect(text, LOOP_VARIABLES) or "")


def test_names_count_where_an_expression_begins_and_nowhere_else() -> None:
    text = "results[?error && contains(name, 'web')].{a: result.n, b: args.url} | sort_by(@, &a)[0].b"

    assert expression_defect(text, LOOP_VARIABLES) is None
    assert expression_defect("step.name == 'x' && error", ERROR_VARIABLES) is None
    assert expression_defect("anything.at.all") is None


@pytest.mark.parametrize(
    "text",
    [
        "results[-1].error",
        "results[?error].name | [0]",
        "length(results) >= `2` && round < vars.most",
        "results[].result.n | sum(@)",
        "results[*].[name, index] | [] | join(', ', [?type(@) == 'string'])",
        "vars.most == `3` || vars.nothing",
        "plan.steps[0].index == results[1].index",
        "sort_by(results, &name)[*].index | reverse(@)",
        "{a: round, b: query}",
        "results[0] == results[0]",
        "merge(vars, {x: `1`})",
    ],
)
def test_the_bounded_evaluation_selects_what_the_library_selects(text: str) -> None:
    assert expression_value(text, KNOWN) == jmespath.search(text, KNOWN)


@pytest.mark.parametrize(
    "text",
    [
        "to_string(" + "results | " + "[@,@]|" * 50 + "@)",
        "results | " + "[@,@]|" * 50 + "@",
        "[results|" + "[@,@]|" * 50 + "@, results|" + "[@,@]|" * 50 + "@] | [0] == [1]",
        "query | " + "join('', [@,@,@,@,@,@,@,@,@,@]) | " * 25 + "@",
        "results | " + "map(&`[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15]`, @) | [] | " * 15 + "@",
    ],
)
def test_what_grows_with_every_character_is_given_up(text: str) -> None:
    assert len(text) <= MAX_EXPRESSION_BYTES

    with pytest.raises(ExpressionFailed, match="takes more than 200000 steps"):
        expression_value(text, KNOWN)


def test_functions_over_the_wrong_types_say_so() -> None:
    with pytest.raises(ExpressionFailed, match="invalid type for value"):
        expression_value("length(round)", KNOWN)
    with pytest.raises(ExpressionFailed, match="failed"):
        expression_value("sort(results[*].[name, index][])", KNOWN)


def test_a_value_nested_too_deeply_is_no_crash() -> None:
    deep: Any = []
    for _ in range(50_000):
        deep = [deep]

    with pytest.raises(ExpressionFailed, match="nested too deeply"):
        expression_value("to_string(@)", deep)


@pytest.mark.parametrize(
    ("text", "is_true"),
    [("round", True), ("`0`", True), ("vars.nothing", False), ("''", False), ("`[]`", False), ("`{}`", False)],
)
def test_what_counts_as_true(text: str, is_true: bool) -> None:
    assert holds(text, KNOWN) is is_true


def test_a_whole_text_keeps_its_type_and_inserted_text_is_never_read_again() -> None:
    given = {
        "list": ["{{ results[*].index }}", " {{round}} ", "{{ vars.nothing }}"],
        "text": "in round {{ round }}: {{ query }} {{ results[1].error }}{{ vars.nothing }} {{ plan.steps }}",
        "literal": "\\{{ round }}",
        "number": 3,
    }

    assert rendered(given, KNOWN) == {
        "list": [[0, 1], 2, None],
        "text": 'in round 2: what is {{ round }}? {{ query }} broke [{"index":1}]',
        "literal": "{{ round }}",
        "number": 3,
    }


def test_templates_are_checked_where_they_are_stored() -> None:
    given = {
        "a": "{{ x.__class__ }}",
        "b": ["{{ round }", {"c": "{{ lenght(query) }}"}],
        "d": "$0.output.text",
        "e": "{{ round }} and {{ }}",
        "f": "\\{{ x }} costs $5.00",
    }

    found = dict(template_defects(given, LOOP_VARIABLES))

    assert set(found) == {("a",), ("b", 0), ("b", 1, "c"), ("d",), ("e",)}
    assert "names 'x'" in found[("a",)]
    assert "no closing }}" in found[("b", 0)]
    assert "is not read here" in found[("d",)]


def test_an_attribute_is_a_field_that_nothing_has() -> None:
    assert rendered("{{ query.__class__ }}", KNOWN) is None


def test_what_templates_put_together_is_bounded() -> None:
    long = {**KNOWN, "query": "x" * 1_000_000}

    with pytest.raises(ExpressionFailed, match="put together more than"):
        rendered(["{{ query }}." * 5], long)
    with pytest.raises(ExpressionFailed, match="put together more than"):
        rendered(["{{ query }}"] * 5, long)
