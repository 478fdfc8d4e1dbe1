"""How JSON of others, and artifacts of others, stand on a page."""

from __future__ import annotations

import json
from typing import Any

import pytest

from planq.api.jobs.page.job import Preview, shown_body
from planq.api.page.trees import Table, marks_of, table_of, tree


def test_a_value_that_a_reference_brought_says_from_where() -> None:
    marks = marks_of({"n": "$0.output.result", "all": "$1.output", "text": "{{ $2.output.a }}, {{ $3.output.b }}"})
    html = tree({"n": 7, "all": {"x": [1]}, "text": "a, b", "own": 8}, "s", marks)

    assert '<a class="ref" href="#step-0" data-from="from $0.output.result">' in html
    assert '<a class="ref" href="#step-1">all of it from $1.output</a>' in html
    assert 'data-from="from $2.output.a, $3.output.b"' in html
    assert html.count('class="ref"') == 3


def test_hostile_json_is_text() -> None:
    html = tree(
        {"<img src=x onerror=a()>": "<script>b()</script>\u202e", "\ud800": 10**5000, "url": "javascript:c()"}, "s"
    )

    assert "<img" not in html
    assert "<script" not in html
    assert "href" not in html
    assert "\\u202e" in html
    assert "\\ud800" in html
    assert "a number too long to be shown" in html


def _nested(levels: int) -> Any:
    value: Any = "innermost"
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [_nested(500), ["x" * 5_000_000] * 50, [{"a": [1] * 10}] * 10_000, {str(n): "y" * 900 for n in range(5_000)}],
)
def test_a_tree_is_bounded_whatever_it_shows(value: Any) -> None:
    html = tree(value, "s")
    assert len(html) < 260_000
    assert "the JSON has it" in html or "is in the JSON" in html


def test_a_list_of_alike_objects_is_a_table() -> None:
    assert table_of([{"a": 1, "b": "x"}, {"a": None, "c": True}]) == Table(
        ["a", "b", "c"], [["1", "x", ""], ["", "", "true"]], 0
    )
    assert table_of([{"a": n} for n in range(250)])[2] == 150  # type: ignore[index]
    for other in ([{"a": 1}], [{"a": 1}, {"a": [1]}], [1, 2], {"a": 1}, [{}, {}], "x"):
        assert table_of(other) is None


@pytest.mark.parametrize(
    ("kind", "text", "shown"),
    [
        (None, json.dumps({"a": [1]}), Preview("json", {"a": [1]})),
        (None, json.dumps({"artifact": {"format": "markdown", "markdown": "# Hi"}}), Preview("markdown", "# Hi")),
        (None, json.dumps([{"a": 1}, {"a": 2}]), Preview("table", Table(["a"], [["1"], ["2"]], 0))),
        ("application/json", "{", Preview("text", "{")),
        ("application/json", "[" * 100_000, Preview("text", "[" * 100_000)),
        ("text/markdown", "# Hi", Preview("markdown", "# Hi")),
        ("text/csv", "a,b\n1,2\n3,4\n", Preview("table", Table(["a", "b"], [["1", "2"], ["3", "4"]], 0))),
        ("text/csv", "", Preview("text", "")),
        ("text/html", "<script>", Preview("text", "<script>")),
    ],
)
def test_an_artifact_is_shown_as_what_it_is(kind: str | None, text: str, shown: Preview) -> None:
    assert shown_body(kind, text.encode()) == shown
