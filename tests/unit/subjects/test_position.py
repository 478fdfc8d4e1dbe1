"""Positions in the event log: what they look like, and in which order they stand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planq.shared.subjects.events.position import BEGINNING, Position

NUMBERS = st.integers(min_value=0, max_value=10**18 - 1)


@given(NUMBERS, NUMBERS)
def test_a_position_is_what_its_text_says(xid: int, sequence: int) -> None:
    position = Position(xid, sequence)

    assert Position.parse(str(position)) == position
    assert position >= BEGINNING


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-1",
        "x",
        "1",
        "1-",
        "-",
        "1-2-3",
        " 1-2",
        "1-2\n",
        "1-x",
        "٣-٤",
        "9" * 19 + "-1",
        "1-" + "9" * 19,
        "1" * 10_000,
    ],
)
def test_any_other_text_is_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(ValueError, match="expected the id of an event"):
        Position.parse(text)


def test_the_transaction_comes_before_the_sequence() -> None:
    assert Position(9, 100) < Position(10, 1) < Position(10, 2)
