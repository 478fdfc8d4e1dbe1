"""JSON in and out: strict, exact, and never a crash."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planq.api.http.exchange import HttpRefusal, body_digest, decode_body, json_bytes
from planq.shared.platform.errors import InvalidRequest

INT64 = st.integers(min_value=-(2**63), max_value=2**64 - 1)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | INT64 | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(VALUES)
def test_what_was_encoded_is_decoded_again(value: Any) -> None:
    assert decode_body(json_bytes(value)) == value


@given(VALUES)
def test_the_digest_knows_no_spelling(value: Any) -> None:
    spelt_otherwise = json.dumps(value, ensure_ascii=True, indent=3).encode()

    assert body_digest(decode_body(spelt_otherwise)) == body_digest(value)


@given(st.binary())
def test_any_bytes_are_a_value_or_a_refusal(body: bytes) -> None:
    try:
        value, status = decode_body(body), 200
    except HttpRefusal as refusal:
        value, status = None, refusal.status_code

    assert status in (400, 422) or value == json.loads(body)


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**19 * 2, 10**300])
def test_an_integer_that_would_lose_digits_is_refused(number: int) -> None:
    with pytest.raises(HttpRefusal, match="64 bits"):
        decode_body(f'{{"a": {number}}}'.encode())


@pytest.mark.parametrize("text", ['"12345678901234567890123"', "0.12345678901234567890123", "18446744073709551615"])
def test_long_digits_that_lose_nothing_are_taken(text: str) -> None:
    assert decode_body(text.encode()) == json.loads(text)


def test_a_place_is_named_by_line_and_column() -> None:
    with pytest.raises(HttpRefusal) as refused:
        decode_body(b'{\n "a": 1,\n "b": nope}')

    assert refused.value.members == {"line": 3, "column": 7}


@pytest.mark.parametrize("value", [2**200, "\ud800", {"\udfff": [2**64]}])
def test_values_of_tools_that_only_json_itself_can_hold_are_encoded(value: Any) -> None:
    assert json.loads(json_bytes(value)) == value


def test_what_is_too_deep_has_no_digest() -> None:
    value: Any = 1
    for _ in range(1_000):
        value = [value]

    with pytest.raises(InvalidRequest, match="too deeply"):
        body_digest(value)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ('{"a": 1, "a": 1}', "a"),
        ('{"with": {"t": [0, {"b/c": 1, "b/c": 2}]}}', "with/t/1/b~1c"),
        ('{"x": {"k": 1, "k": 2}, "y": 1, "y": 2}', "y"),
        ('{"x": [{"k": 1, "k": 2}], "y": {"l": 1, "l": 2}}', "x/0/k"),
        ('{"\\u0061": 1, "a": 2}', "a"),
    ],
)
def test_a_key_that_stands_twice_is_refused_with_its_place(body: str, field: str) -> None:
    with pytest.raises(HttpRefusal) as refused:
        decode_body(body.encode())

    assert (refused.value.status_code, refused.value.code) == (422, "invalid_request")
    assert [one["field"] for one in refused.value.members["errors"]] == [field]
    assert decode_body(body.encode(), is_unique=False) == json.loads(body)


def test_what_is_nested_too_deeply_to_be_looked_through_is_left_to_its_reader() -> None:
    depth = 1_000

    assert decode_body(b'{"a":' + b"[" * depth + b"]" * depth + b"}")["a"] is not None
