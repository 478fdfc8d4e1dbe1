"""JSON to read is the standard library's, however it was made."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planq.shared.agentic.schema.schemas import violations
from planq.shared.platform.values.decoding import has_long_integer
from planq.shared.platform.values.describe import is_deeper_than
from planq.shared.platform.values.encoding import encode, indented, is_nested_deeper, most_parts
from tests.unit.agentic.strategies import json_values


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


def _reference(value: Any) -> Any:
    """Return what Python's own encoder says of a value: the value to read back, or the class of its refusal."""
    try:
        return json.loads(json.dumps(value, ensure_ascii=False, allow_nan=False).encode())
    except (ValueError, TypeError, RecursionError) as error:
        return type(error)


_anything = st.recursive(
    json_values
    | st.floats()
    | st.integers(-(2**70), 2**70)
    | st.text(st.characters(), max_size=5)
    | st.sampled_from(["\x00", "\ud800", 2**63, 2**64, object(), b"a", {1, 2}, None]),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@given(_anything)
def test_what_is_encoded_is_what_the_standard_library_writes(value: Any) -> None:
    expected = _reference(value)
    if isinstance(expected, type):
        with pytest.raises(expected):
            encode(value)
    else:
        assert repr(json.loads(encode(value))) == repr(expected)


_signs = st.text(st.sampled_from('[]{}"\\,: a'), max_size=6)
_nested = st.recursive(
    _signs | st.integers(0, 9), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_signs, inner, max_size=3)
)


@given(_nested, st.integers(0, 5))
def test_the_depth_of_a_text_is_that_of_its_value(value: Any, limit: int) -> None:
    for text in (encode(value), json.dumps(value, indent=1).encode()):
        assert is_nested_deeper(text, limit) == is_deeper_than(value, limit)


@given(_nested, st.sampled_from([{"type": "object"}, {"items": {"type": "integer"}}, {}]))
def test_a_bound_on_its_parts_changes_nothing_of_a_check(value: Any, schema: dict[str, Any]) -> None:
    assert violations(schema, value, parts=most_parts(encode(value))) == violations(schema, value)


_digits = st.integers(0, 40).map(lambda count: (b"1234567890" * 4)[:count])


@given(st.lists(st.binary(max_size=3) | _digits, max_size=5).map(b"".join))
def test_long_integers_are_found_wherever_nineteen_digits_stand_together(text: bytes) -> None:
    assert has_long_integer(text) == (re.search(rb"[0-9]{19}", text) is not None)
