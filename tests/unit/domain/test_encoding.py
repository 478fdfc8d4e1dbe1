"""JSON to read is the standard library's, however it was made."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planq.shared.domain.values.encoding import encode, has_long_integer, indented
from tests.unit.domain.strategies import json_values


@given(json_values | st.dictionaries(st.text(max_size=5), st.text(max_size=5) | st.integers() | st.booleans()))
def test_json_to_read_is_that_of_the_standard_library(value: Any) -> None:
    assert indented(value) == json.dumps(value, ensure_ascii=False, indent=2)


@pytest.mark.parametrize(
    "value", [{1: 2}, {"a": {1, 2}}, {"a": (1, None)}, {"\ud800": "\ud800"}, {"a": float("nan")}, {"a": 10**40}, {}]
)
def test_what_is_no_json_is_shown_all_the_same(value: Any) -> None:
    assert indented(value) == json.dumps(value, ensure_ascii=False, indent=2, default=str)


@pytest.mark.parametrize(
    "value", [{1: 1, "1": 2}, {"a": [{True: 1, "true": 2}]}, {"a": ({None: 1, "null": 2},)}, {1.0: 1, "1.0": 2}]
)
def test_keys_that_are_one_text_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="the same text in JSON"):
        encode(value)


def test_keys_that_are_no_text_become_it() -> None:
    assert encode({1: 1, "2": [{None: 1, True: 2}]}) == b'{"1":1,"2":[{"null":1,"true":2}]}'


_digits = st.integers(0, 40).map(lambda count: (b"1234567890" * 4)[:count])


@given(st.lists(st.binary(max_size=3) | _digits, max_size=5).map(b"".join))
def test_long_integers_are_found_wherever_nineteen_digits_stand_together(text: bytes) -> None:
    assert has_long_integer(text) == (re.search(rb"[0-9]{19}", text) is not None)
