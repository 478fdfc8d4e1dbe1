"""Previews: bounded, of the same form, every cut saying so; and the measure that they and the limits rest on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from planq.shared.platform.values.encoding import encode, is_larger, measure
from planq.shared.platform.values.preview import PREVIEW_CHARS, preview
from tests.unit.agentic.strategies import finite_json_values


@given(finite_json_values, st.integers(0, 200))
@example(5.960464477539063e-08, 20)  # Python writes its exponent with a zero, orjson without
def test_the_measure_is_never_more_than_the_bytes_and_stops_at_its_limit(value: Any, limit: int) -> None:
    size = len(encode(value))

    assert measure(value, 10_000) <= size
    assert is_larger(value, limit) == (measure(value, 10_000) > limit)
    if size <= limit:
        assert not is_larger(value, limit)


def test_looking_at_a_huge_value_costs_no_more_than_the_limit() -> None:
    class Endless(list[int]):
        def __iter__(self) -> Any:
            raise AssertionError("looked into it")

    assert is_larger(Endless([0] * 1_000), 999)


@pytest.mark.parametrize(
    "value",
    ["plain", {"a": [1, 2.5, None, True]}, {"text": "x" * 100_000}, ["y" * 10] * 5_000],
)
def test_what_fits_is_shown_as_it_is(value: Any) -> None:
    assert preview(value) == value


@pytest.mark.parametrize(
    "value",
    [
        "x" * 50_000_000,
        {"artifact": {"markdown": "x" * 1_000_000, "title": "T"}, "artifact_id": "a"},
        [{"id": n, "text": "word " * 20} for n in range(100_000)],
        {f"key {n}": n for n in range(100_000)},
        {"k" * 1_000_000: "x" * 1_000_000},
        [0.1234567890123] * 1_000_000,
        [["x" * 1_000] * 300] * 300,
    ],
    ids=["text", "artifact", "rows", "keys", "long key", "numbers", "nested"],
)
def test_what_does_not_fit_is_shortened_and_says_so(value: Any) -> None:
    text = json.dumps(preview(value), ensure_ascii=False)

    assert len(text) < 1.5 * PREVIEW_CHARS
    assert "…" in text


def test_the_form_stays_so_that_known_fields_are_found() -> None:
    shown = preview({"artifact": {"markdown": "m" * 500_000, "title": "T"}, "artifact_id": "a", "rows": [1] * 9})

    assert (shown["artifact_id"], shown["artifact"]["title"], shown["rows"]) == ("a", "T", [1] * 9)
    assert shown["artifact"]["markdown"].startswith("m" * 100_000)
    assert "more characters]" in shown["artifact"]["markdown"]


def test_what_has_a_hundred_characters_shows_something_of_what_is_in_it() -> None:
    assert preview([["x" * 500]], 100) == [[f"{'x' * 68}… [432 more characters]"]]
    assert preview([["x" * 500]], 99) == "… [left out]"


def test_deep_values_end_somewhere() -> None:
    deep: Any = "x" * 1_000_000
    for _ in range(900):
        deep = {"a": deep, "b": 1}

    assert len(json.dumps(preview(deep))) < PREVIEW_CHARS


@given(finite_json_values, st.integers(1, 60))
def test_any_value_has_a_bounded_preview(value: Any, chars: int) -> None:
    assert measure(preview(value, chars), 100_000) <= 4 * chars + 400
