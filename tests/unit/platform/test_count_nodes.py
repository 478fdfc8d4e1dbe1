"""How many values a JSON text has, counted without building them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planq.shared.platform.values import decoding
from planq.shared.platform.values.decoding import count_nodes

TEXTS = st.text(alphabet='a,:[]{}"\\\n', max_size=8)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.integers() | TEXTS, lambda one: st.lists(one) | st.dictionaries(TEXTS, one), max_leaves=30
)


def nodes_of(value: Any) -> tuple[int, int]:
    """Return how many values and keys there are, and how many empty lists and objects are among them."""
    if isinstance(value, dict):
        inner = [nodes_of(one) for one in value.values()]
        return 1 + len(value) + sum(one for one, _ in inner), (not value) + sum(empty for _, empty in inner)
    if isinstance(value, list):
        inner = [nodes_of(one) for one in value]
        return 1 + sum(one for one, _ in inner), (not value) + sum(empty for _, empty in inner)
    return 1, 0


@pytest.mark.parametrize("piece", [1, 7, 64 * 1024])
@given(value=VALUES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_count_is_exact_but_for_what_is_empty(value: Any, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "_PIECE", piece)
    nodes, empty = nodes_of(value)

    assert count_nodes(json.dumps(value).encode(), nodes + empty) == nodes + empty


@given(VALUES, st.integers(0, 40))
def test_a_text_with_more_nodes_than_the_limit_is_never_counted_below_it(value: Any, limit: int) -> None:
    nodes, _ = nodes_of(value)

    assert count_nodes(json.dumps(value).encode(), limit) > limit or nodes <= limit


def test_signs_in_texts_are_no_nodes() -> None:
    assert count_nodes(json.dumps({"a": ',[{:"\\' * 100_000}).encode(), 10) == 3
