"""How texts of others, and forms for schemas of others, stand on a page."""

from __future__ import annotations

from typing import Any

import pytest

from planq.api.http.exchange import HttpRefusal
from planq.api.page.fields import content_of, fields_in
from planq.api.page.words import SHOWN_CHARS, batch_state, cost, dollars, inert, job_state, markdown, pretty
from planq.shared.platform.errors import InvalidRequest

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "share": {"type": "number"},
        "sure": {"type": "boolean"},
        "size": {"enum": [1, 2, "x"]},
        "more": {"type": "array"},
    },
    "required": ["name"],
}


def test_a_models_markdown_runs_and_loads_nothing() -> None:
    html = markdown(
        "# Hi\n<img src=x onerror=a()> ![b](http://c/d.png) [e](javascript:f()) [g](https://h)\n\n|i|\n|-|\n|j|"
    )
    assert "<h1>Hi</h1>" in html
    assert "<td>j</td>" in html
    assert "<img" not in html
    assert '<a href="https://h" rel="noopener noreferrer nofollow">g</a>' in html
    assert 'href="javascript' not in html


def test_what_would_steer_the_text_around_it_is_named() -> None:
    assert inert("a\u202eb\x00c\ud800\nd") == "a\\u202eb\\u0000c\\ud800\nd"
    assert inert("x" * (SHOWN_CHARS + 5)).endswith("… [5 more characters]")


def test_json_of_any_depth_is_shown() -> None:
    value: Any = 1
    for _ in range(500):
        value = [value]
    assert pretty(value).startswith("[\n")
    for _ in range(100_000):
        value = [value]
    assert "too deeply" in pretty(value)


def test_small_amounts_keep_their_digits() -> None:
    assert (cost(None), cost(0), cost(0.0123), cost(12.5)) == ("–", "$0.00", "$0.0123", "$12.50")


def test_a_form_gives_what_the_schema_wants() -> None:
    given = {"name": "Ann", "age": "7", "share": "0.5", "sure": "true", "size": "2", "more": "[1]"}
    fields = {f"field.{name}": value for name, value in given.items()}
    expected = {"name": "Ann", "age": 7, "share": 0.5, "sure": True, "size": 2, "more": [1]}
    assert content_of(SCHEMA, fields) == expected
    assert content_of(SCHEMA, {"field.name": "Ann", "field.age": ""}) == {"name": "Ann", "sure": False}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("age", "x"),
        ("share", "x"),
        ("share", "nan"),
        ("share", "1e999"),
        ("more", "x"),
        ("more", "[NaN]"),
        ("more", '{"a": 1, "a": 2}'),
    ],
)
def test_a_field_that_cannot_be_read_says_so(name: str, text: str) -> None:
    with pytest.raises((InvalidRequest, HttpRefusal), match=f"{name}: expected"):
        content_of(SCHEMA, {f"field.{name}": text})


@pytest.mark.parametrize("schema", [True, {}, {"type": "string"}, {"properties": 3}, {"properties": {}}])
def test_any_other_schema_takes_json(schema: Any) -> None:
    (field,) = fields_in(schema)
    assert field.kind == "json"
    assert content_of(schema, {field.name: '{"a": 1}'}) == {"a": 1}


@pytest.mark.parametrize("schema", [None, {"type": "object"}, {"type": "object", "properties": {}}])
def test_a_schema_that_wants_nothing_has_no_fields(schema: Any) -> None:
    assert fields_in(schema) == []
    assert content_of(schema, {}) == {}


@pytest.mark.parametrize(
    ("amount", "shown"),
    [(0, "$0.00"), (0.000001, "$0.000001"), (0.01, "$0.01"), (0.300001, "$0.30"), (1234.5, "$1,234.50")],
)
def test_sums_of_money_are_cents_with_all_of_it_behind_them(amount: float, shown: str) -> None:
    exact = f"{amount:.9f}".rstrip("0").ljust(4, "0")
    assert dollars(amount) == f'<data value="{exact}" title="${exact}">{shown}</data>'
    assert dollars(None) == "–"


@pytest.mark.parametrize(
    ("batch", "shown"),
    [
        ({"status": "in_progress"}, ("run", "Running")),
        ({"status": "in_progress", "paused_at": "2026-01-01T00:00:00+00:00"}, ("idle", "Paused")),
        ({"status": "completed"}, ("ok", "Completed")),
        ({"status": "completed", "counts": {"failed": 0, "partial": 1, "invalid": 0}}, ("bad", "Completed in part")),
        ({"status": "cancelled", "paused_at": "2026-01-01T00:00:00+00:00"}, ("idle", "Cancelled")),
    ],
)
def test_a_batch_of_which_lines_failed_is_not_shown_as_whole(batch: dict[str, Any], shown: tuple[str, str]) -> None:
    whole = {"paused_at": None, "counts": dict.fromkeys(("failed", "partial", "incomplete", "invalid"), 0)}
    assert batch_state({**whole, **batch}) == shown


def test_a_job_whose_answer_was_cut_off_is_shown_as_incomplete() -> None:
    assert job_state({"status": "completed", "outcome": "incomplete"}) == ("bad", "Incomplete")
